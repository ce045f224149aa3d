"""What `auto` becomes, and what a run does, takes and lasts, from speeds that are not measured: by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from border_cli.agents.dqn.config import DqnConfig
from border_cli.config import resource_checks
from border_cli.config.resource_checks import Sizes
from border_cli.config.schema import (
    ActorManagerConfig,
    CheckpointConfig,
    EnvConfig,
    TrainConfig,
    TrainerConfig,
)
from border_cli.config.throughput import (
    LOOP_S,
    Measured,
    decide,
    duration,
    env_counts,
    most_actors,
    predict,
    recommended,
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


@pytest.mark.parametrize(
    ("actor_cpus", "cpus", "expected"),
    [
        (0.04, 2, 11),  # 10 opt steps/s need 11 env steps/s: 11 actors, which keep 0.44 CPUs busy
        (0.2, 2, 5),  # five actors fill the one CPU that is not the learner's
        (0.6, 2, 1),  # not clearly waiting: it is taken as one CPU
        (0.04, 1, 1),  # the only CPU is the learner's
    ],
)
def test_more_actors_than_cpus_act_if_their_environments_wait(
    actor_cpus: float, cpus: int, expected: int
) -> None:
    """An actor takes one env step/s."""
    measured = Measured({1: 1.0}, {}, 10, actor_cpus=actor_cpus)
    assert numbers(decide(config(**OPEN | {"envs": 1}), measured, cpus)[0]) == (expected, 1)


def test_the_predicted_speed_of_actors_that_wait() -> None:
    """Per opt step, two env steps take an actor 2 s, of which 0.2 s on a CPU."""
    predicted = predict(plan_of(n_actors=8), Measured({1: 1.0}, {}, 100, actor_cpus=0.1), 1)
    assert predicted.opt_steps == pytest.approx(8 / 2)
    assert predicted.busy_cpus == pytest.approx((0.2 + 0.01 + LOOP_S) / (2 / 8))


@pytest.mark.parametrize("mode", [{"type": "sync"}, {"lockstep": True}])
def test_no_measurement_decides_in_a_reproducible_run(mode: dict[str, Any]) -> None:
    whole = config(**OPEN, **mode)
    assert (env_counts(whole), most_actors(whole, 64)) == ((), 1)
    decided, reason = decide(whole, None, 64)
    assert numbers(decided) == (1, 1)
    assert reason == "n_actors=1 envs_per_actor=1: a reproducible run decides nothing by a measurement"


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
    ("run", "opt_steps", "compile", "form", "rate"),
    [
        ("cpu auto", 200, True, "compiled", 30),
        ("cuda true", 1, True, "captured", 10),  # not counted as faster than measured
        ("cpu true", 1, False, "compiled, taken as 2 times as fast as eager ones", 20),
        ("cpu auto", 199, False, "eager", 10),
    ],
)
def test_which_opt_steps_a_prediction_is_of(
    monkeypatch: pytest.MonkeyPatch, run: str, opt_steps: int, compile: bool, form: str, rate: float
) -> None:
    device, how = run.split()
    monkeypatch.setattr(probes, "Learner", FakeLearner)
    monkeypatch.setattr(probes, "acting", lambda _, envs, *rest: (dict.fromkeys(envs, 10.0), 1.0))
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


# -- what a run does, takes and lasts --------------------------------------


SIZES = Sizes(replay=1_000_000, ring=2_000, channel=300, model=400, training=1_600)
NONE = {"max_opts": None, "max_env_steps": None, "max_time": None}


def plan_of(n_actors: int = 4, threads: int = 1, keep: int = 3, **trainer: object) -> TrainConfig:
    """A warm-up of 100 env steps, and 2 env steps per opt step."""
    return TrainConfig(
        agent=DqnConfig(),
        env=EnvConfig(id="CartPole-v1"),
        actor_manager=ActorManagerConfig(envs_per_actor=1),
        trainer=TrainerConfig(**(NONE | {"warmup_period": 100, "opt_interval": 2.0} | trainer)),  # type: ignore[arg-type]
        checkpoint=CheckpointConfig(keep=keep),
        n_actors=n_actors,
        threads=threads,
    )


def test_memory() -> None:
    assert resource_checks.memory_need(plan_of(n_actors=4), SIZES) == {
        "replay": 1_000_000,
        "learner": resource_checks.LEARNER_BYTES + 4_800,
        "rings": 8_000,
        "model channel": 300,
        "actors": 4 * resource_checks.ACTOR_BYTES + 6_400,
    }
    sync = plan_of(n_actors=1, type="sync")
    assert set(resource_checks.memory_need(sync, SIZES)) == {"replay", "learner"}
    sync.recorder.wandb = "offline"
    assert resource_checks.memory_need(sync, SIZES)["recorders"] == resource_checks.RECORDER_BYTES


def test_disk() -> None:
    """keep=3 checkpoints and the one being written, of which two share no block of the replay."""
    single = 2_000 + resource_checks.JSON_BYTES
    many = plan_of(max_opts=1_000, save_interval=100, eval_interval=None)
    assert resource_checks.disk_need(many, SIZES, True) == {
        "checkpoints": 4 * single,
        "replay in them": 2 * 1_000_000,
    }
    alone = plan_of(max_opts=50, save_interval=100)
    assert resource_checks.disk_need(alone, SIZES, True) == {
        "checkpoints": single,
        "replay in them": 1_000_000,
        "best model": 2 * (400 + resource_checks.JSON_BYTES),
    }
    assert resource_checks.disk_need(plan_of(max_time=60.0), SIZES, False)["checkpoints"] == 4 * single


SYNC = {"n_actors": 1, "type": "sync", "max_opts": 500}
FREE = {"n_actors": 3, "opt_interval": None, "max_opts": 500, "max_env_steps": 6_000}


@pytest.mark.parametrize(
    ("trainer", "speeds", "cpus", "seconds", "bound_by"),
    [
        # 100 env steps of warm-up by 4 actors, then 500 opt steps, each with 2 env steps
        ({"max_opts": 500}, (1_000, 100), 16, 0.025 + 500 * (0.01 + LOOP_S), "learning"),
        ({"max_opts": 500}, (10, 100), 16, 2.5 + 500 * 0.05, "acting"),
        ({"max_opts": 500}, (100, 100), 2, 0.5 + 500 * (0.02 + 0.01 + LOOP_S) / 2, "CPUs"),
        (SYNC, (1_000, 100), 16, 0.1 + 500 * (0.002 + 0.01 + LOOP_S), "learning"),  # both sides alternate
        # without a ratio the sides are taken to do one env step per opt step, until one budget is used up
        (FREE, (1_000, 100), 16, 100 / 3_000 + 500 * (0.01 + LOOP_S), "learning"),
        ({"max_time": 3.0, "max_opts": 500}, (1, 1), 1, 3.0, "max_time"),
    ],
)
def test_the_estimated_time_and_what_bounds_it(
    trainer: dict[str, Any], speeds: tuple[float, float], cpus: int, seconds: float, bound_by: str
) -> None:
    acting, learning = speeds
    measured = Measured({1: acting}, {}, learning)
    assert duration(plan_of(**trainer), measured, cpus) == (pytest.approx(seconds), bound_by)


@pytest.mark.parametrize(
    ("n_actors", "acting", "cpus", "opt_steps", "busy"),
    [
        # an opt step takes 10 ms and LOOP_S, its 2 env steps 20 ms of one actor
        (1, 100, 16, 50, (0.02 + 0.01 + LOOP_S) / 0.02),
        (4, 100, 2, 2 / (0.03 + LOOP_S), (0.02 + 0.01 + LOOP_S) / (0.01 + LOOP_S)),
    ],
)
def test_the_predicted_speed(n_actors: int, acting: float, cpus: int, opt_steps: float, busy: float) -> None:
    predicted = predict(plan_of(n_actors=n_actors), Measured({1: acting}, {}, 100), cpus)
    assert predicted.opt_steps == pytest.approx(opt_steps)
    assert predicted.env_steps == pytest.approx(2 * opt_steps)
    assert predicted.busy_cpus == pytest.approx(busy)
