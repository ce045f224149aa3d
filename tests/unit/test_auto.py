"""What `auto` becomes for actors and environments, from speeds that are not measured: by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from border_cli.agents.dqn.config import DqnConfig
from border_cli.config.convert import to_config, to_plain
from border_cli.config.resolve import inherit, streams
from border_cli.config.schema import ActorManagerConfig, EnvConfig, RayConfig, TrainConfig, TrainerConfig
from border_cli.config.throughput import (
    Measured,
    decide,
    env_counts,
    most_actors,
    recommended,
    with_numbers,
)
from border_cli.config.validate import validate
from border_cli.core.errors import UsageError
from border_cli.run import probes

OPEN: dict[str, Any] = {"n_actors": None, "envs": None}


def config(
    n_actors: int | None = 1, envs: int | None = 1, min_actors: int = 1, **trainer: Any
) -> TrainConfig:
    return TrainConfig(
        agent=DqnConfig(batch_size=32),
        env=EnvConfig(id="CartPole-v1"),
        actor_manager=ActorManagerConfig(envs_per_actor=envs, min_actors=min_actors),
        trainer=TrainerConfig(**trainer),
        n_actors=n_actors,
        device="cpu",
    )


def numbers(whole: TrainConfig) -> tuple[int | None, int | None]:
    return whole.n_actors, whole.actor_manager.envs_per_actor


@pytest.mark.parametrize(
    ("values", "acting", "cpus", "expected"),
    [
        # 10 opt steps/s need 10 env steps/s, with 11 in hand: one actor of 20 is enough
        (OPEN, {1: 20, 16: 320}, 8, (1, 1)),
        # 10.5 are not enough in hand, and 10.89 count as 9.9 beside 10, which is not worth another actor
        (OPEN | {"envs": 1}, {1: 10.5}, 8, (2, 1)),
        (OPEN | {"envs": 1}, {1: 10.89}, 8, (1, 1)),
        # a step of one environment takes 1/9 s, of 16 1/8 s: two in one actor are enough
        (OPEN, {1: 9, 16: 128}, 8, (1, 2)),
        # the actors are fixed: 3·r(k) >= 44 with r(k) = k/(1/9 + (k - 1)·(16/128 - 1/9)/15)
        (OPEN | {"n_actors": 3, "opt_interval": 4.0}, {1: 9, 16: 128}, 8, (3, 2)),
        # no number is enough: one CPU stays with the learner
        (OPEN | {"envs": 1}, {1: 0.1}, 4, (3, 1)),
        # not fewer than min_actors
        (OPEN | {"min_actors": 2}, {1: 90, 16: 90}, 8, (2, 1)),
        # a ratio_tolerance of 3 does not give more than 3 environments an env step
        (OPEN | {"envs": 1, "ratio_tolerance": 3}, {1: 0.1}, 8, (3, 1)),
    ],
)
def test_what_is_chosen(
    values: dict[str, Any], acting: dict[int, float], cpus: int, expected: tuple[int, int]
) -> None:
    assert numbers(decide(config(**values), Measured(acting, {}, 10), cpus)[0]) == expected


@pytest.mark.parametrize("mode", [{"type": "sync"}, {"lockstep": True}])
def test_no_measurement_decides_in_a_reproducible_run(mode: dict[str, Any]) -> None:
    whole = config(**OPEN, **mode)
    assert (env_counts(whole), most_actors(whole, 64)) == ((), 1)
    decided, reason = decide(whole, None, 64)
    assert numbers(decided) == (1, 1)
    assert reason == "n_actors=1 envs_per_actor=1: a reproducible run decides nothing by a measurement"


def test_what_is_measured_of_acting() -> None:
    assert env_counts(config()) == ()
    assert env_counts(config(n_actors=None, envs=3)) == (3,)
    assert env_counts(config(envs=None)) == (1, 16)
    on_cluster = replace(config(n_actors=None), actor_manager=RayConfig(envs_per_actor=1))
    assert most_actors(on_cluster, 2) == 256


def test_auto_is_left_open_until_it_is_decided() -> None:
    words = {"n_actors": "auto", "threads": "auto", "actor_manager": {"envs_per_actor": "auto"}}
    whole = to_config(to_plain(config()) | words)
    assert (whole.n_actors, whole.threads, whole.actor_manager.envs_per_actor) == (None, None, None)
    assert whole == to_config(to_plain(whole)) and streams(whole) == 1
    validate(whole)
    decided, stored = with_numbers(whole, 3, 4), with_numbers(replace(config(), threads=7), 5, 6)
    assert inherit(whole, stored) == stored
    assert inherit(replace(decided, threads=2), stored) == replace(decided, threads=2)


@pytest.mark.parametrize("decided", [{"ratio_tolerance": 128}, {"lockstep": True, "ratio_tolerance": 128}])
def test_numbers_that_were_decided_do_not_limit_what_is_recommended(decided: dict[str, Any]) -> None:
    """128 is the tolerance of up to 64 environments by default. 9 actors with 16 environments take 144 env steps/s."""
    measured = Measured({1: 1.0, 16: 16.0}, {}, 1_000.0)
    assert numbers(recommended(config(**decided), measured, 10)) == (9, 16)


class FakeLearner:
    """10 opt steps/s, and 30 compiled ones; nothing is in the cache."""

    def __init__(self, *_: Any) -> None:
        pass

    def opt_steps(self, counts: Any, seconds: float) -> dict[int, float]:
        return dict.fromkeys(counts, 10.0)

    def compiled_opt_steps(self, counts: Any, seconds: float, only_cached: bool) -> dict[int, float]:
        return {} if only_cached else dict.fromkeys(counts, 30.0)


@pytest.mark.parametrize(
    ("device", "how", "opt_steps", "compile", "form", "rate"),
    [
        ("cpu", "auto", 200, True, "compiled", 30),
        ("cuda", "true", 1, True, "captured", 10),  # not counted as faster than measured
        ("cpu", "true", 1, False, "compiled, taken as 2 times as fast as eager ones", 20),
        ("cpu", "auto", 199, False, "eager", 10),
    ],
)
def test_which_opt_steps_a_prediction_is_of(
    monkeypatch: pytest.MonkeyPatch,
    device: str,
    how: str,
    opt_steps: int,
    compile: bool,
    form: str,
    rate: float,
) -> None:
    monkeypatch.setattr(probes, "Learner", FakeLearner)
    monkeypatch.setattr(probes, "acting", lambda _, envs, *rest: dict.fromkeys(envs, 10.0))
    monkeypatch.setattr(probes.machine, "cpus", lambda: 1)
    nothing: Any = None
    whole = replace(config(max_opts=opt_steps), device=device, agent=DqnConfig(compile=how))
    measured = probes.measure(whole, nothing, [1], 0.0, nothing, compile)
    assert (measured.form, measured.opt_steps) == (form, rate)
    measured_forms = {"eager", form} if form == "compiled" else {"captured" if device == "cuda" else "eager"}
    assert measured.learning.keys() == {(name, 1) for name in measured_forms}


def test_auto_needs_a_ratio() -> None:
    for values in ({"n_actors": None}, {"envs": None}):
        with pytest.raises(UsageError, match="no number of actors or environments is enough for `auto`"):
            validate(config(**values, opt_interval=None))
