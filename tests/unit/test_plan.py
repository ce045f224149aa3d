"""The numbers of a plan, by hand."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from border_cli.agents.dqn.config import DqnConfig
from border_cli.config import budget, resources, throughput
from border_cli.config.resources import Sizes
from border_cli.config.schema import CheckpointConfig, EnvConfig, TrainConfig, TrainerConfig
from border_cli.config.throughput import Measured, Speeds
from border_cli.display.tables import print_plan
from border_cli.runtime import machine

SIZES = Sizes(replay=1_000_000, ring=2_000, channel=300, model=400, training=1_600)
NONE = {"max_opts": None, "max_env_steps": None, "max_time": None}


def config(n_actors: int = 4, threads: int = 1, keep: int = 3, **trainer: object) -> TrainConfig:
    return TrainConfig(
        agent=DqnConfig(),
        env=EnvConfig(id="CartPole-v1"),
        trainer=TrainerConfig(**(NONE | {"warmup_period": 100, "opt_interval": 2.0} | trainer)),  # type: ignore[arg-type]
        checkpoint=CheckpointConfig(keep=keep),
        n_actors=n_actors,
        threads=threads,
    )


@pytest.mark.parametrize(
    ("trainer", "env_steps", "opt_steps", "limit"),
    [
        ({"max_env_steps": 1_101}, 1_101, 500, "max_env_steps"),
        ({"max_opts": 500}, 1_100, 500, "max_opts"),
        ({"max_opts": 499, "max_env_steps": 1_101}, 1_098, 499, "max_opts"),
        ({"max_opts": 501, "max_env_steps": 1_101}, 1_101, 500, "max_env_steps"),
        ({"max_opts": 3, "opt_interval": 0.3}, 101, 3, "max_opts"),
        ({"max_env_steps": 101, "opt_interval": 0.1}, 101, 10, "max_env_steps"),
        ({"max_time": 60.0}, None, None, "max_time"),
        ({"max_opts": 500, "opt_interval": None}, None, 500, "max_opts"),
        (
            {"max_env_steps": 500, "max_time": 9.0, "opt_interval": None},
            500,
            None,
            "max_env_steps or max_time",
        ),
    ],
)
def test_budget(trainer: dict[str, object], env_steps: int | None, opt_steps: int | None, limit: str) -> None:
    found = budget.counts(config(**trainer))
    assert (found.env_steps, found.opt_steps, found.limit) == (env_steps, opt_steps, limit)


@pytest.mark.parametrize(
    ("opts", "interval", "times", "saves"),
    [(500, 100, 5, 5), (501, 100, 6, 6), (99, 100, 1, 1), (500, None, 0, 1)],
)
def test_evaluations_and_checkpoints(opts: int, interval: int | None, times: int, saves: int) -> None:
    """They happen at each interval and for the last model."""
    intervals = dict.fromkeys(("eval_interval", "record_interval", "save_interval"), interval)
    found = budget.counts(config(max_opts=opts, **intervals))
    assert (found.evaluations, found.checkpoints) == (times, saves)


@pytest.mark.parametrize(
    ("trainer", "exact"),
    [({}, True), ({"max_time": 9.0}, False), ({"stop_return": 1.0}, False), ({"opt_interval": None}, False)],
)
def test_counts_are_exact_if_nothing_can_end_the_run_earlier(trainer: dict[str, object], exact: bool) -> None:
    assert budget.counts(config(max_opts=500, **trainer)).exact == exact


def test_memory() -> None:
    need = resources.memory_need(config(n_actors=4), SIZES)
    assert need == {
        "replay": 1_000_000,
        "learner": resources.LEARNER_BYTES + 4_800,
        "rings": 8_000,
        "model channel": 300,
        "actors": 4 * resources.ACTOR_BYTES + 6_400,
    }
    assert set(resources.memory_need(config(n_actors=1, type="sync"), SIZES)) == {"replay", "learner"}


def test_disk() -> None:
    one = 2_000 + resources.JSON_BYTES
    many = config(max_opts=1_000, save_interval=100, eval_interval=None)
    assert SIZES.fixed == one
    assert resources.disk_need(many, SIZES, False) == {"checkpoints": 4 * one}
    shared = resources.disk_need(many, SIZES, True)
    assert (shared["checkpoints"], shared["replay in them"]) == (4 * one, 2 * 1_000_000)
    alone = resources.disk_need(config(max_opts=50, save_interval=100), SIZES, True)
    assert (alone["checkpoints"], alone["replay in them"]) == (one, 1_000_000)
    few = config(max_opts=200, save_interval=100)
    assert resources.disk_need(few, SIZES, False)["checkpoints"] == 2 * one
    need = resources.disk_need(config(max_time=60.0), SIZES, False)
    assert need == {"checkpoints": 4 * one, "best model": 2 * (400 + resources.JSON_BYTES)}


def test_processes_threads_and_descriptors() -> None:
    four, sync = config(n_actors=4, threads=2), config(n_actors=1, threads=2, type="sync")
    assert (resources.processes(four), resources.compute_threads(four)) == (5, 6)
    assert (resources.processes(sync), resources.compute_threads(sync)) == (1, 2)
    assert resources.tasks_need(four, cpus=16) == 2 + 16 + resources.HELPER_TASKS + 8
    assert resources.tasks_need(sync, cpus=16) == 2 + 16 + resources.HELPER_TASKS
    assert resources.descriptors_need(four) == resources.LEARNER_DESCRIPTORS + 20
    assert resources.descriptors_need(sync) == resources.LEARNER_DESCRIPTORS
    sync.evaluator.type, sync.recorder.wandb = "process", "offline"
    others = resources.ACTOR_TASKS + resources.RECORDER_TASKS
    assert resources.tasks_need(sync, cpus=16) == 2 + 16 + resources.HELPER_TASKS + others
    assert resources.descriptors_need(sync) == resources.LEARNER_DESCRIPTORS + 2 * resources.ACTOR_DESCRIPTORS


LOOP = throughput.LOOP_S
SYNC = {"n_actors": 1, "type": "sync", "max_opts": 500}
FREE = {"n_actors": 3, "opt_interval": None, "max_opts": 500, "max_env_steps": 6_000}


@pytest.mark.parametrize(
    ("trainer", "speeds", "cpus", "seconds", "bound_by"),
    [
        # 100 env steps of warm-up by 4 actors, then 500 opt steps, each with 2 env steps
        ({"max_opts": 500}, (1_000, 100), 16, 0.025 + 500 * (0.01 + LOOP), "learning"),
        ({"max_opts": 500}, (10, 100), 16, 2.5 + 500 * 0.05, "acting"),
        ({"max_opts": 500}, (100, 100), 2, 0.5 + 500 * (0.02 + 0.01 + LOOP) / 2, "CPUs"),
        (SYNC, (1_000, 100), 16, 0.1 + 500 * (0.002 + 0.01 + LOOP), "learning"),  # both sides alternate
        # without a ratio the sides are taken to do one env step per opt step, until one budget is used up
        (FREE, (1_000, 100), 16, 100 / 3_000 + 500 * (0.01 + LOOP), "learning"),
        ({"max_time": 3.0}, (1, 1), 1, 3.0, "max_time"),
        ({"max_time": 3.0, "max_opts": 500}, (1, 1), 1, 3.0, "max_time"),
        ({"max_time": 1e9, "max_opts": 500}, (1, 1), 1, 100 + 500 * (3.0 + LOOP), "CPUs"),
    ],
)
def test_the_estimated_time_and_what_bounds_it(
    trainer: dict[str, Any], speeds: tuple[float, float], cpus: int, seconds: float, bound_by: str
) -> None:
    found = throughput.duration(config(**trainer), Speeds(*speeds), cpus)
    assert found == (pytest.approx(seconds), bound_by)


def printed(found: TrainConfig, compiled: bool = False) -> dict[str, str]:
    """Return label and value of each row."""
    out = io.StringIO()
    measured = Measured({1: 1_000.0}, 100.0, compiled=compiled)
    print_plan(Console(file=out), found, SIZES, measured, Path())
    return cells(out.getvalue())


def cells(text: str) -> dict[str, str]:
    rows = [line.strip("|").split("|") for line in text.splitlines() if "|" in line]
    return {row[0].strip(): row[1].strip() for row in rows}


def test_the_printed_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "cpus", lambda: 2)
    rows = printed(config(max_opts=500))
    assert rows["ends by"] == "max_opts"
    assert (rows["env steps"], rows["opt steps"]) == ("1,100", "500")
    assert (rows["processes"], rows["compute threads"]) == ("5", "5 on 2 CPUs")
    assert rows["env steps/s of one actor alone"] == "1,000"
    assert rows["slower side"] == "the learner"
    assert rows["training"] == "0:00:05"
    assert (rows["opt steps/s of the learner alone"], rows["opt steps are"]) == ("100.0", "eager")
    assert printed(config(max_opts=500), compiled=True)["opt steps are"] == "compiled"


def test_unknown_values_are_marked() -> None:
    rows = printed(config(max_time=90.0))
    assert (rows["ends by"], rows["training"]) == ("max_time", "0:01:30")
    assert {rows[name] for name in ("env steps", "opt steps", "evaluations", "checkpoints written")} == {
        "known at the end"
    }
    early = printed(config(max_opts=500, stop_return=1.0))
    assert (early["ends by"], early["opt steps"]) == ("max_opts, or earlier", "at most 500")
