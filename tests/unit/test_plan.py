"""The arithmetic of a plan, by hand."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from rich.console import Console

from border_cli.agents.dqn.config import DqnConfig
from border_cli.config import plan
from border_cli.config.plan import AgentBytes, Plan, Sizes, Speeds
from border_cli.config.schema import (
    ActorManagerConfig,
    CheckpointConfig,
    EnvConfig,
    TrainConfig,
    TrainerConfig,
)
from border_cli.recorders.plan_table import print_plan

SIZES = Sizes(replay=1_000_000, ring=2_000, channel=300, agent=AgentBytes(model=400, training=1_600))
NONE = {"max_opts": None, "max_env_steps": None, "max_time": None}


def config(n_actors: int = 4, threads: int = 1, keep: int = 3, **trainer: object) -> TrainConfig:
    return TrainConfig(
        agent=DqnConfig(),
        env=EnvConfig(id="CartPole-v1"),
        actor_manager=ActorManagerConfig(),
        trainer=TrainerConfig(**(NONE | {"warmup_period": 100, "opt_interval": 2.0} | trainer)),  # type: ignore[arg-type]
        checkpoint=CheckpointConfig(keep=keep),
        n_actors=n_actors,
        threads=threads,
    )


# -- counts -------------------------------------------------------------


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
def test_budgets(
    trainer: dict[str, object], env_steps: int | None, opt_steps: int | None, limit: str
) -> None:
    found = plan.counts(config(**trainer))
    assert (found.env_steps, found.opt_steps, found.limit) == (env_steps, opt_steps, limit)


@pytest.mark.parametrize(
    ("opts", "interval", "times"), [(500, 100, 5), (501, 100, 6), (99, 100, 1), (500, None, 0)]
)
def test_evaluations(opts: int, interval: int | None, times: int) -> None:
    """At each interval, and the last model."""
    assert plan.counts(config(max_opts=opts, eval_interval=interval)).evaluations == times
    assert plan.counts(config(max_opts=opts, record_interval=interval)).records == times


@pytest.mark.parametrize(("interval", "times"), [(100, 5), (120, 5), (500, 1), (None, 1)])
def test_checkpoints(interval: int | None, times: int) -> None:
    assert plan.counts(config(max_opts=500, save_interval=interval)).checkpoints == times


@pytest.mark.parametrize(
    ("trainer", "exact"),
    [({}, True), ({"max_time": 9.0}, False), ({"stop_return": 1.0}, False), ({"opt_interval": None}, False)],
)
def test_only_a_budget_that_nothing_precedes_is_exact(trainer: dict[str, object], exact: bool) -> None:
    assert plan.counts(config(max_opts=500, **trainer)).exact == exact


# -- bytes and processes ------------------------------------------------


def test_memory() -> None:
    need = plan.memory_need(config(n_actors=4), SIZES)
    assert need == {
        "replay": 1_000_000,
        "learner": plan.LEARNER_BYTES + 4_800,
        "rings": 8_000,
        "model channel": 300,
        "actors": 4 * plan.ACTOR_BYTES + 4_800,
    }
    assert set(plan.memory_need(config(n_actors=1, type="sync"), SIZES)) == {"replay", "learner"}


def test_disk() -> None:
    one = 2_000 + plan.JSON_BYTES
    many = config(max_opts=1_000, save_interval=100, eval_interval=None, record_interval=None)
    assert plan.checkpoint_bytes(SIZES) == plan.CheckpointBytes(one, 1_000_000)
    assert plan.disk_need(many, SIZES, False) == {"checkpoints": 4 * one, "records": 0}
    shared = plan.disk_need(many, SIZES, True)
    assert (shared["checkpoints"], shared["replay in them"]) == (4 * one, 2 * 1_000_000)
    alone = plan.disk_need(config(max_opts=50, save_interval=100), SIZES, True)
    assert (alone["checkpoints"], alone["replay in them"]) == (one, 1_000_000)
    few = config(max_opts=200, save_interval=100)
    assert plan.disk_need(few, SIZES, False)["checkpoints"] == 2 * one
    unknown = config(max_time=60.0, record_interval=1)
    need = plan.disk_need(unknown, SIZES, False)
    assert need == {"checkpoints": 4 * one, "best model": 2 * (400 + plan.JSON_BYTES)}
    recorded = plan.disk_need(config(max_opts=200, record_interval=100), SIZES, False)
    assert recorded["records"] == 2 * plan.RECORD_BYTES


def test_processes_threads_and_descriptors() -> None:
    four, sync = config(n_actors=4, threads=2), config(n_actors=1, threads=2, type="sync")
    assert (plan.processes(four), plan.compute_threads(four)) == (5, 6)
    assert (plan.processes(sync), plan.compute_threads(sync)) == (1, 2)
    assert plan.tasks_need(four, cpus=16) == 2 + 16 + plan.HELPER_TASKS + 8
    assert plan.tasks_need(sync, cpus=16) == 2 + 16 + plan.HELPER_TASKS
    assert plan.descriptors_need(four) == plan.LEARNER_DESCRIPTORS + 16
    assert plan.descriptors_need(sync) == plan.LEARNER_DESCRIPTORS


# -- time ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("speeds", "cpus", "seconds", "bound_by"),
    [
        # 100 env steps of warm-up by 4 actors, then 500 opt steps, each with 2 env steps
        (Speeds(env_steps=1_000, opt_steps=100), 16, 0.025 + 500 * 0.01, "learning"),
        (Speeds(env_steps=10, opt_steps=100), 16, 2.5 + 500 * 0.05, "acting"),
        (Speeds(env_steps=100, opt_steps=100), 2, 0.5 + 500 * (0.02 + 0.01) / 2, "CPUs"),
    ],
)
def test_the_slower_side_bounds_asynchronous_training(
    speeds: Speeds, cpus: int, seconds: float, bound_by: str
) -> None:
    found = plan.duration(config(n_actors=4, max_opts=500), speeds, cpus)
    assert found == plan.Duration(pytest.approx(seconds), bound_by)


def test_synchronous_training_takes_turns() -> None:
    found = plan.duration(config(n_actors=1, type="sync", max_opts=500), Speeds(1_000, 100), 16)
    assert found == plan.Duration(pytest.approx(0.1 + 500 * (0.002 + 0.01)), "learning")


def test_free_running_sides_share_the_cpus_until_the_first_budget() -> None:
    free = config(n_actors=3, opt_interval=None, max_opts=500, max_env_steps=6_000)
    assert plan.duration(free, Speeds(1_000, 100), 16) == plan.Duration(pytest.approx(2.0), "acting")
    assert plan.duration(free, Speeds(1_000, 100), 2) == plan.Duration(pytest.approx(4.0), "acting")
    assert plan.duration(free, Speeds(1_000, 1_000), 4) == plan.Duration(pytest.approx(0.5), "learning")


def test_max_time_is_never_exceeded() -> None:
    assert plan.duration(config(max_time=3.0), Speeds(1, 1), 1) == plan.Duration(3.0, "max_time")
    assert plan.duration(config(max_time=3.0, max_opts=500), Speeds(1, 1), 1).seconds == 3.0
    assert plan.duration(config(max_time=1e9, max_opts=500), Speeds(1, 1), 1).bound_by == "CPUs"


# -- printed ------------------------------------------------------------


def printed(found: TrainConfig) -> str:
    speeds = Speeds(1_000, 100)
    shown = Plan(
        counts=plan.counts(found),
        memory=plan.memory_need(found, SIZES),
        free_memory=None,
        checkpoint=plan.checkpoint_bytes(SIZES),
        disk=plan.disk_need(found, SIZES, False),
        free_disk=2**40,
        processes=plan.processes(found),
        threads=plan.compute_threads(found),
        cpus=2,
        speeds=speeds,
        duration=plan.duration(found, speeds, 2),
    )
    out = io.StringIO()
    print_plan(Console(file=out), shown)
    return out.getvalue()


def cells(text: str) -> dict[str, str]:
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if "|" in line
    ]
    return {row[0]: row[1] for row in rows}


def test_what_is_printed() -> None:
    rows = cells(printed(config(max_opts=500)))
    assert rows["ends by"] == "max_opts"
    assert (rows["env steps"], rows["opt steps"]) == ("1,100", "500")
    assert (rows["processes"], rows["compute threads"]) == ("5", "5 on 2 CPUs")
    assert rows["env steps/s of one actor alone"] == "1,000"
    assert rows["slower side"] == "the learner"
    assert rows["training"] == "0:00:05"


def test_what_cannot_be_known_is_shown_as_such() -> None:
    rows = cells(printed(config(max_time=90.0)))
    assert (rows["ends by"], rows["training"]) == ("max_time", "0:01:30")
    assert {rows[name] for name in ("env steps", "opt steps", "evaluations", "checkpoints written")} == {
        "known at the end"
    }
    early = cells(printed(config(max_opts=500, stop_return=1.0)))
    assert (early["ends by"], early["opt steps"]) == ("max_opts, or earlier", "at most 500")


def test_a_plan_of_one_thing_less() -> None:
    """Nothing of the async rows is left in a synchronous plan."""
    text = printed(replace(config(n_actors=1, max_opts=500, type="sync"), threads=2))
    assert "rings" not in text and "actors" not in cells(text)
