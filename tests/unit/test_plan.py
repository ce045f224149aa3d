"""What a run does, takes and lasts, by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from border_cli.agents.dqn.config import DqnConfig
from border_cli.config import resolve, resources
from border_cli.config.resources import Sizes
from border_cli.config.schema import (
    ActorManagerConfig,
    CheckpointConfig,
    EnvConfig,
    RayConfig,
    TrainConfig,
    TrainerConfig,
)
from border_cli.config.throughput import LOOP_S, Measured, duration, predict

SIZES = Sizes(replay=1_000_000, ring=2_000, channel=300, model=400, training=1_600)
NONE = {"max_opts": None, "max_env_steps": None, "max_time": None}


def config(n_actors: int = 4, threads: int = 1, keep: int = 3, **trainer: object) -> TrainConfig:
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


@pytest.mark.parametrize(
    ("trainer", "env_steps", "opt_steps", "limit"),
    [
        ({"max_env_steps": 1_101}, 1_101, 500, "max_env_steps"),
        ({"max_opts": 499, "max_env_steps": 1_101}, 1_098, 499, "max_opts"),
        ({"max_env_steps": 101, "opt_interval": 0.1}, 101, 10, "max_env_steps"),
        ({"max_opts": 500, "max_time": 9.0, "opt_interval": None}, None, 500, "max_opts or max_time"),
    ],
)
def test_budget(trainer: dict[str, object], env_steps: int | None, opt_steps: int | None, limit: str) -> None:
    counts = resolve.counts(config(**trainer))
    assert (counts.env_steps, counts.opt_steps, counts.limit) == (env_steps, opt_steps, limit)


@pytest.mark.parametrize(
    ("opts", "interval", "times", "saves"), [(500, 100, 5, 5), (501, 100, 6, 6), (500, None, 0, 1)]
)
def test_evaluations_and_checkpoints(opts: int, interval: int | None, times: int, saves: int) -> None:
    """They happen at each interval and for the last model."""
    counts = resolve.counts(config(max_opts=opts, eval_interval=interval, save_interval=interval))
    assert (counts.evaluations, counts.checkpoints) == (times, saves)


@pytest.mark.parametrize(
    ("trainer", "exact"),
    [({}, True), ({"max_time": 9.0}, False), ({"stop_return": 1.0}, False), ({"opt_interval": None}, False)],
)
def test_counts_are_exact_if_nothing_can_end_the_run_earlier(trainer: dict[str, object], exact: bool) -> None:
    assert resolve.counts(config(max_opts=500, **trainer)).exact == exact


def test_memory() -> None:
    assert resources.memory_need(config(n_actors=4), SIZES) == {
        "replay": 1_000_000,
        "learner": resources.LEARNER_BYTES + 4_800,
        "rings": 8_000,
        "model channel": 300,
        "actors": 4 * resources.ACTOR_BYTES + 6_400,
    }
    sync = config(n_actors=1, type="sync")
    assert set(resources.memory_need(sync, SIZES)) == {"replay", "learner"}
    sync.recorder.wandb = "offline"
    assert resources.memory_need(sync, SIZES)["recorders"] == resources.RECORDER_BYTES


def test_disk() -> None:
    """keep=3 checkpoints and the one being written, of which two share no block of the replay."""
    single = 2_000 + resources.JSON_BYTES
    many = config(max_opts=1_000, save_interval=100, eval_interval=None)
    assert resources.disk_need(many, SIZES, True) == {
        "checkpoints": 4 * single,
        "replay in them": 2 * 1_000_000,
    }
    alone = config(max_opts=50, save_interval=100)
    assert resources.disk_need(alone, SIZES, True) == {
        "checkpoints": single,
        "replay in them": 1_000_000,
        "best model": 2 * (400 + resources.JSON_BYTES),
    }
    assert resources.disk_need(config(max_time=60.0), SIZES, False)["checkpoints"] == 4 * single


def test_processes_threads_and_descriptors() -> None:
    four, sync = config(n_actors=4, threads=2), config(n_actors=1, threads=2, type="sync")
    sync.evaluator.type, sync.recorder.wandb = "process", "offline"
    assert (resources.processes(four), resources.compute_threads(four)) == (5, 6)
    assert (resources.processes(sync), resources.compute_threads(sync)) == (3, 3)
    assert resources.tasks_need(four, cpus=16) == 2 + 16 + resources.HELPER_TASKS + 4 * resources.ACTOR_TASKS
    others = resources.ACTOR_TASKS + resources.RECORDER_TASKS
    assert resources.tasks_need(sync, cpus=16) == 2 + 16 + resources.HELPER_TASKS + others
    descriptors = resources.LEARNER_DESCRIPTORS + 4 * resources.ACTOR_DESCRIPTORS
    assert resources.descriptors_need(four) == descriptors


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
    assert duration(config(**trainer), measured, cpus) == (pytest.approx(seconds), bound_by)


@pytest.mark.parametrize(
    ("n_actors", "acting", "cpus", "opt_steps", "busy"),
    [
        # an opt step takes 10 ms and LOOP_S, its 2 env steps 20 ms of one actor
        (1, 100, 16, 50, (0.02 + 0.01 + LOOP_S) / 0.02),
        (4, 100, 2, 2 / (0.03 + LOOP_S), (0.02 + 0.01 + LOOP_S) / (0.01 + LOOP_S)),
    ],
)
def test_the_predicted_speed(n_actors: int, acting: float, cpus: int, opt_steps: float, busy: float) -> None:
    predicted = predict(config(n_actors=n_actors), Measured({1: acting}, {}, 100), cpus)
    assert predicted.opt_steps == pytest.approx(opt_steps)
    assert predicted.env_steps == pytest.approx(2 * opt_steps)
    assert predicted.busy_cpus == pytest.approx(busy)


def test_actors_on_a_cluster_take_no_cpu_of_the_learner() -> None:
    """An opt step of 2 ms, beside 200 actors that each need 50 ms for an env step. The warm-up is theirs alone."""
    trainer = {"opt_interval": 1.0, "max_env_steps": 6_000, "warmup_period": 2_000}
    whole = replace(config(200, **trainer), actor_manager=RayConfig(envs_per_actor=1))
    measured = Measured({1: 20}, {}, 500)
    assert predict(whole, measured, 2).bound_by == "learning"
    expected = 2_000 / (200 * 20) + 4_000 * (0.002 + LOOP_S)
    assert duration(whole, measured, 2)[0] == pytest.approx(expected)
    assert resources.cores_for_actors(whole) is None
