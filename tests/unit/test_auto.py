"""What `auto` becomes for actors and environments, from speeds that are given: by hand."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from border_cli.agents.dqn.config import DqnConfig
from border_cli.config.convert import to_config, to_plain
from border_cli.config.resolve import inherit, steps_natively, streams
from border_cli.config.resources import cores_for_actors
from border_cli.config.schema import ActorManagerConfig, EnvConfig, RayConfig, TrainConfig, TrainerConfig
from border_cli.config.throughput import (
    LOOP_S,
    Measured,
    Speeds,
    decide,
    duration,
    env_counts,
    most_actors,
    open_numbers,
    predict,
    with_numbers,
)
from border_cli.config.validate import validate
from border_cli.core.errors import UsageError
from border_cli.run import probes
from border_cli.runtime.signals import StopFlag

OPT_S = 0.01 + LOOP_S
FIXED = {"n_actors": 1, "envs": 1}
OPEN: dict[str, Any] = dict.fromkeys(FIXED)


def config(**given: Any) -> TrainConfig:
    """Numbers that are not given are 1, keys of the trainer the defaults."""
    numbers = FIXED | {name: given.pop(name) for name in FIXED if name in given}
    min_actors = given.pop("min_actors", 1)
    return TrainConfig(
        agent=DqnConfig(batch_size=32),
        env=EnvConfig(id="CartPole-v1"),
        actor_manager=ActorManagerConfig(envs_per_actor=numbers["envs"], min_actors=min_actors),
        trainer=TrainerConfig(**given),
        n_actors=numbers["n_actors"],
        device="cpu",
    )


def numbers(found: TrainConfig) -> tuple[int | None, int | None]:
    return found.n_actors, found.actor_manager.envs_per_actor


@pytest.mark.parametrize(
    ("given", "acting", "learning", "cpus", "expected"),
    [
        # 10 opt steps/s need 10 env steps/s, with 11 in hand: one actor of 20 is enough
        (OPEN, {1: 20, 16: 320}, 10, 8, (1, 1)),
        # 10.5 are not enough in hand, and 10.89 count as 9.9 beside 10, which is not worth another actor
        (OPEN | {"envs": 1}, {1: 10.5}, 10, 8, (2, 1)),
        (OPEN | {"envs": 1}, {1: 10.89}, 10, 8, (1, 1)),
        # 9 are too few, and each environment costs the same time, so that two of them are no faster: two actors
        (OPEN, {1: 9, 16: 9}, 10, 8, (2, 1)),
        # a step of one environment takes 1/9 s, of 16 1/8 s: two in one actor are enough
        (OPEN, {1: 9, 16: 128}, 10, 8, (1, 2)),
        # 0.25 opt steps per env step: 44 env steps/s, five actors of 9; the environments are given
        (OPEN | {"envs": 1, "opt_interval": 4.0}, {1: 9}, 10, 8, (5, 1)),
        # the actors are given: 3·r(k) >= 44 with r(k) = k/(1/9 + (k - 1)·(16/128 - 1/9)/15)
        (OPEN | {"n_actors": 3, "opt_interval": 4.0}, {1: 9, 16: 128}, 10, 8, (3, 2)),
        # no number is enough: one CPU stays with the learner
        (OPEN | {"envs": 1}, {1: 0.1}, 10, 4, (3, 1)),
        # with two CPUs there is one actor, and with one CPU as well
        (OPEN | {"envs": 1}, {1: 0.1}, 10, 2, (1, 1)),
        (OPEN | {"envs": 1}, {1: 0.1}, 10, 1, (1, 1)),
        # opt steps that will be compiled count as 20/s, which need 22
        (OPEN | {"envs": 1, "compiling": True}, {1: 16}, 10, 8, (2, 1)),
        # not fewer than min_actors
        (OPEN | {"min_actors": 2}, {1: 90, 16: 90}, 10, 8, (2, 1)),
        # a ratio_tolerance of 3 does not give more than 3 environments an env step
        (OPEN | {"envs": 1, "ratio_tolerance": 3}, {1: 0.1}, 10, 8, (3, 1)),
    ],
)
def test_what_is_chosen(
    given: dict[str, Any],
    acting: dict[int, float],
    learning: float,
    cpus: int,
    expected: tuple[int, int],
) -> None:
    given = dict(given)
    measured = Measured(acting, learning, compiling=given.pop("compiling", False))
    assert numbers(decide(config(**given), measured, cpus)[0]) == expected


@pytest.mark.parametrize(
    ("given", "speeds", "cpus", "opt_steps", "bound_by", "waits"),
    [
        # 10 ms of opt step, beside 2·1 ms of acting
        ({}, Speeds(1_000, 100), 16, 1 / OPT_S, "learning", (1 - 0.002 / OPT_S, 0)),
        ({}, Speeds(100, 100), 16, 50, "acting", (0, 1 - OPT_S / 0.02)),
        (
            {"n_actors": 4},
            Speeds(100, 100),
            16,
            1 / OPT_S,
            "learning",
            (1 - 0.005 / OPT_S, 0),
        ),
        ({"n_actors": 4}, Speeds(100, 100), 2, 2 / (0.03 + LOOP_S), "CPUs", (1 - 0.005 / OPT_S, 0)),
    ],
)
def test_the_predicted_speed(
    given: dict[str, Any],
    speeds: Speeds,
    cpus: int,
    opt_steps: float,
    bound_by: str,
    waits: tuple[float, float],
) -> None:
    found = predict(config(**({"opt_interval": 2.0} | given)), speeds, cpus)
    assert (found.opt_steps, found.env_steps) == (pytest.approx(opt_steps), pytest.approx(2 * opt_steps))
    assert (found.bound_by, found.actors_blocked, found.learner_blocked) == (
        bound_by,
        *map(pytest.approx, waits),
    )


def test_actors_on_a_cluster_take_no_cpu_of_the_learner() -> None:
    """An opt step of 2 ms, beside 200 actors that each need 50 ms for an env step. The warm-up is theirs alone."""
    found = replace(
        config(opt_interval=1.0, n_actors=200, max_env_steps=6_000, warmup_period=2_000),
        actor_manager=RayConfig(envs_per_actor=1),
    )
    speeds = Speeds(20, 500)
    predicted = predict(found, speeds, 2)
    assert (predicted.opt_steps, predicted.bound_by) == (pytest.approx(1 / (0.002 + LOOP_S)), "learning")
    expected = 2_000 / (200 * 20) + 4_000 * (0.002 + LOOP_S)
    assert duration(found, speeds, 2)[0] == pytest.approx(expected)
    assert (most_actors(replace(found, n_actors=None), 2), cores_for_actors(found)) == (256, None)


REPRODUCIBLE = ({"type": "sync"}, {"lockstep": True})


@pytest.mark.parametrize("mode", REPRODUCIBLE)
def test_no_measurement_decides_in_a_reproducible_run(mode: dict[str, Any]) -> None:
    found = config(**OPEN, **mode)
    assert (env_counts(found), most_actors(found, 64)) == ((), 1)
    decided, reason = decide(found, None, 64)
    assert numbers(decided) == (1, 1)
    assert reason == "n_actors=1 envs_per_actor=1: a reproducible run decides nothing by a measurement"


def test_what_is_measured_of_acting() -> None:
    assert env_counts(config()) == ()
    assert env_counts(config(n_actors=None, envs=3)) == (3,)
    assert env_counts(config(envs=None)) == (1, 16)


def test_auto_is_left_open_until_it_is_decided() -> None:
    given = {"n_actors": "auto", "threads": "auto", "actor_manager": {"envs_per_actor": "auto"}}
    found = to_config(to_plain(config()) | given)
    assert (found.n_actors, found.threads, found.actor_manager.envs_per_actor) == (None, None, None)
    assert found == to_config(to_plain(found)) == with_numbers_open()
    assert streams(found) == 1
    validate(found)
    decided = with_numbers(found, 3, 4)
    assert streams(decided) == 12
    stored = with_numbers(replace(config(), threads=7), 5, 6)
    assert inherit(found, stored) == stored
    assert inherit(replace(decided, threads=2), stored) == replace(decided, threads=2)


def with_numbers_open() -> TrainConfig:
    return open_numbers(config(), 1.0)


@pytest.mark.parametrize("given", [{"ratio_tolerance": 128}, {"lockstep": True, "ratio_tolerance": 128}])
def test_numbers_that_were_decided_do_not_limit_what_is_recommended(given: dict[str, Any]) -> None:
    """128 is the tolerance of up to 64 environments by default. 9 actors with 16 environments take 144 env steps/s."""
    measured = Measured({1: 1.0, 16: 16.0}, 1_000.0)
    assert numbers(decide(open_numbers(config(**given), 1.0), measured, 10)[0]) == (9, 16)


class FakeLearner:
    """10 opt steps/s, and 30 compiled ones; nothing is in the cache."""

    def __init__(self, config: TrainConfig, *_: Any) -> None:
        on_cpu = config.device == "cpu"
        self.opt_steps = lambda counts, seconds: dict.fromkeys(counts, 10.0)
        self.compiled_opt_steps = lambda counts, seconds, only_cached=False: (
            dict.fromkeys(counts, 30.0) if on_cpu and not only_cached else {}
        )


@pytest.fixture
def fake_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probes, "Learner", FakeLearner)
    monkeypatch.setattr(probes, "acting", lambda _, envs, *rest: dict.fromkeys(envs, 10.0))
    monkeypatch.setattr(probes.machine, "cpus", lambda: 1)


@pytest.mark.parametrize(
    ("device", "how", "opt_steps", "compiling"),
    [
        ("cpu", "true", 1, True),
        ("cuda", "true", 1, False),  # captured opt steps are not counted as faster than measured
        ("cpu", "auto", 200, True),  # 20 s of eager ones
        ("cpu", "auto", 199, False),
    ],
)
def test_which_opt_steps_count_as_ones_to_be_compiled(
    fake_parts: None, device: str, how: str, opt_steps: int, compiling: bool
) -> None:
    given: Any = replace(config(max_opts=opt_steps), device=device, agent=DqnConfig(compile=how))
    stop: Any = None
    assert probes.measure(given, stop, [1], 0.0, stop).compiling is compiling


@pytest.mark.parametrize(
    ("device", "how", "expected"),
    [
        ("cpu", "auto", "compiled"),
        ("cpu", "false", "eager"),
        ("cuda", "true", "captured"),
        ("cuda", "false", "eager"),
    ],
)
def test_a_prediction_says_of_which_opt_steps_it_is(
    fake_parts: None, device: str, how: str, expected: str
) -> None:
    given: Any = replace(config(), device=device, agent=DqnConfig(compile=how))
    spec: Any = SimpleNamespace(mask=None)
    stop: Any = None
    assert probes.bench(given, spec, stop).opt_steps_are == expected


def test_games_are_measured_as_a_run_with_their_number_steps_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run of one game has stored that ALE's threads do not step it; 16 games are stepped by them."""
    game = EnvConfig(id="ALE/Pong-v5", preprocess="atari", native="never")
    tried: list[TrainConfig] = []

    def in_child(function: Any, args: tuple[list[TrainConfig], float], *_: Any) -> list[float]:
        tried.extend(args[0])
        return [1.0] * len(args[0])

    monkeypatch.setattr(probes, "run_in_child", in_child)
    assert probes.acting(replace(config(), env=game), [16, 1], 0.0, StopFlag()) == {1: 1.0, 16: 1.0}
    assert [(streams(one), steps_natively(one)) for one in tried] == [(1, False), (16, True)]


def test_auto_needs_a_ratio() -> None:
    for given in ({"n_actors": None}, {"envs": None}):
        with pytest.raises(UsageError, match="no number of actors or environments is enough for `auto`"):
            validate(config(**given, opt_interval=None))
