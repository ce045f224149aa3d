"""How a run ends, and what its ratio and its budgets came to (contracts C2 and C3)."""

from __future__ import annotations

import os
import signal
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from border_cli.cli.train import main
from border_cli.config.checks import ratio_tolerance
from border_cli.evaluation.episodes import EpisodeRunner
from tests.real_runs import TINY, Run, tiny, train

WARMUP = 50
assert f"trainer.warmup_period={WARMUP}" in TINY
SHAPES = {
    "sync": ("trainer=sync",),
    "sync with 3 environments": ("trainer=sync", "actor_manager.envs_per_actor=3"),
    "1 actor": ("n_actors=1",),
    "2 actors with 3 environments": ("n_actors=2", "actor_manager.envs_per_actor=3"),
}
QUIET = "trainer.eval_interval=null"
every_shape = pytest.mark.parametrize("shape", list(SHAPES))
both_trainers = pytest.mark.parametrize("shape", ["sync", "2 actors with 3 environments"])

pytestmark = pytest.mark.usefixtures("workplace")


def ended_by(run: Run) -> str:
    summary = run.summary
    assert (summary["status"], summary["exit_code"], summary["error"]) == ("done", 0, None)
    name: str = summary["ended_by"]
    return name


def assert_ratio(run: Run) -> None:
    """C2: an opt step only when its env steps were there, and acting never further ahead than the tolerance."""
    opt_steps, env_steps = run.counts
    interval = run.config.trainer.opt_interval
    assert interval is not None
    ahead = env_steps - WARMUP - interval * opt_steps
    assert 0 <= ahead <= ratio_tolerance(run.config) + interval


def test_a_signal_in_the_last_evaluation_stops_the_run_and_resume_evaluates_its_result() -> None:
    words = tiny("trainer.max_opts=60", "trainer.eval_interval=1000", "trainer=sync")
    evaluate = EpisodeRunner.evaluate

    def struck(*given: Any) -> Any:
        os.kill(os.getpid(), signal.SIGTERM)
        return evaluate(*given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(EpisodeRunner, "evaluate", struck)
        assert main(words) == 143
    run = Run(Path("runs/latest").resolve())
    assert (run.summary["status"], run.summary["ended_by"]) == ("stopped", "sigterm")
    assert run.checkpoints == ["step-000000060"]
    assert run.summary["last_score"] is None
    assert main([f"resume={run.path}"]) == 0
    assert ended_by(run) == "max_opts"
    assert run.summary["last_score"]["opt_steps"] == 60


# -- budgets ------------------------------------------------------------


@every_shape
def test_max_opts_is_reached_exactly(shape: str) -> None:
    run = train("trainer.max_opts=77", QUIET, *SHAPES[shape])
    assert ended_by(run) == "max_opts"
    assert run.counts[0] == 77
    assert run.checkpoints == ["step-000000077"]
    assert_ratio(run)


@every_shape
@pytest.mark.parametrize(("interval", "opt_steps"), [("4", 238), ("0.5", 1906)])
def test_max_env_steps_are_used_up_and_every_opt_step_they_allow_is_done(
    shape: str, interval: str, opt_steps: int
) -> None:
    """1003 is no multiple of 2, 3 or 64, so the last credit is less than any actor's step of all its environments."""
    assert opt_steps == (1003 - WARMUP) // Fraction(interval)
    run = train("trainer.max_env_steps=1003", f"trainer.opt_interval={interval}", QUIET, *SHAPES[shape])
    assert ended_by(run) == "max_env_steps"
    assert run.counts == (opt_steps, 1003)
    assert sum(actor["env_steps"] for actor in run.summary["actors"]) == 1003


def test_the_budget_ends_a_run_that_is_never_ahead() -> None:
    """All of it is warm-up but one opt step."""
    run = train("trainer.max_env_steps=51", QUIET, "n_actors=1")
    assert run.counts == (1, 51)


@every_shape
def test_the_smallest_replay_that_is_allowed_is_enough_for_the_shortest_episodes(shape: str) -> None:
    """Every second row is a final observation, which no batch can begin with."""
    words = ["env=gym", "env.entry_point=border_cli.envs.counting:CountingEnv", "env.kwargs.lengths=[1,1,2]"]
    streams = {"sync": 1, "1 actor": 1, "sync with 3 environments": 3}.get(shape, 6)
    small = [f"buffer.capacity={2 * 16 + 4 * streams}", "buffer.n_step=3", "trainer.warmup_period=30"]
    run = train(*words, *small, "trainer.max_opts=200", QUIET, *SHAPES[shape])
    assert run.counts[0] == 200


@both_trainers
def test_max_time_ends_a_run(shape: str) -> None:
    run = train("trainer.max_time=1.5", "trainer.save_interval=null", QUIET, *SHAPES[shape])
    assert ended_by(run) == "max_time"
    opt_steps, env_steps = run.counts
    assert run.summary["seconds"] >= 1.5
    assert run.config.trainer.max_env_steps == 50_000  # no budget of another kind was typed
    assert env_steps < 50_000
    assert run.checkpoints == ([f"step-{opt_steps:09d}"] if opt_steps else [])


@both_trainers
def test_stop_return_ends_a_run_at_the_evaluation_that_reaches_it(shape: str) -> None:
    """No episode of CartPole is shorter than 8 env steps, so the first evaluation is good enough."""
    run = train("trainer.stop_return=5", "trainer.eval_interval=30", *SHAPES[shape])
    assert ended_by(run) == "stop_return"
    assert run.counts[0] == 30
    assert run.steps("eval/return_mean") == [30]
    assert run.checkpoints == ["step-000000030"]


def test_a_stop_return_out_of_reach_leaves_it_to_the_budget() -> None:
    run = train("trainer=sync", "trainer.stop_return=501", "trainer.eval_interval=30", "trainer.max_opts=60")
    assert ended_by(run) == "max_opts"
    assert run.steps("eval/return_mean") == [30, 60]  # the last model had its evaluation: it gets no second


@pytest.mark.parametrize(
    ("max_opts", "max_env_steps", "winner"), [(40, 1000, "max_opts"), (1000, 90, "max_env_steps")]
)
def test_of_two_typed_budgets_the_first_to_be_reached_ends_the_run(
    max_opts: int, max_env_steps: int, winner: str
) -> None:
    budgets = [f"trainer.max_opts={max_opts}", f"trainer.max_env_steps={max_env_steps}"]
    run = train("trainer=sync", QUIET, *budgets)
    assert ended_by(run) == winner
    assert run.counts == (40, 90)


@pytest.mark.parametrize(
    ("typed", "dropped", "opt_steps"),
    [("trainer.max_opts=20", "max_env_steps", 20), ("trainer.max_env_steps=100", "max_opts", 50)],
)
def test_the_budget_that_is_not_typed_is_dropped(
    workplace: Path, typed: str, dropped: str, opt_steps: int
) -> None:
    """Both stand in a preset of the user's, and both are less than what is typed would need."""
    preset = workplace / "conf" / "preset" / "short.yaml"
    preset.parent.mkdir(parents=True)
    preset.write_text("# @package _global_\ntrainer:\n  max_opts: 5\n  max_env_steps: 67\n", encoding="utf-8")
    run = train("--config-dir=conf", "preset=short", "trainer=sync", QUIET, typed)
    assert ended_by(run) == typed.partition("=")[0].removeprefix("trainer.")
    assert getattr(run.config.trainer, dropped) is None
    assert run.counts[0] == opt_steps


# -- intervals ----------------------------------------------------------


def test_without_evaluations_there_is_no_best() -> None:
    run = train("trainer=sync", "trainer.max_opts=20", "trainer.eval_interval=null")
    assert not (run.path / "best").exists()
    assert run.steps("eval/return_mean") == []
    assert (run.summary["best_score"], run.summary["last_score"]) == (None, None)


def test_without_a_save_interval_there_is_the_last_checkpoint_alone() -> None:
    run = train("trainer=sync", "trainer.max_opts=20", "trainer.save_interval=null", QUIET)
    assert run.checkpoints == ["step-000000020"]
    assert run.saves == [20]


def test_without_a_record_interval_evaluations_are_still_recorded() -> None:
    run = train(
        "trainer=sync", "trainer.max_opts=20", "trainer.record_interval=null", "trainer.eval_interval=15"
    )
    head = {"opt_steps", "env_steps", "time"}
    found = [
        (record["opt_steps"], {name.partition("/")[0] for name in record.keys() - head})
        for record in run.records
    ]
    assert found == [(15, {"eval", "time"}), (20, {"eval", "time"})]
    assert run.summary["counters"]["episodes"] > 0


def test_an_interval_longer_than_the_run_never_falls_due() -> None:
    intervals = [f"trainer.{name}_interval=21" for name in ("eval", "save", "record")]
    run = train("trainer=sync", "trainer.max_opts=20", *intervals)
    assert run.steps("eval/return_mean") == [20]
    assert run.saves == [20]
    assert run.steps("throughput/samples_total") == [0, 20]


# -- ratio --------------------------------------------------------------


@every_shape
@pytest.mark.parametrize("interval", ["0.5", "3"])
def test_the_ratio_holds_with_n_step_returns(shape: str, interval: str) -> None:
    words = ["buffer.n_step=3", f"trainer.opt_interval={interval}", "trainer.max_opts=200"]
    run = train(*words, QUIET, "trainer.record_interval=1", *SHAPES[shape])
    assert run.counts[0] == 200
    assert_ratio(run)
    tolerance = ratio_tolerance(run.config)
    for record in run.records:
        if record["opt_steps"] and "replay/size" in record:
            ahead = record["env_steps"] - WARMUP - float(interval) * record["opt_steps"]
            assert 0 <= ahead <= tolerance + float(interval)


def test_a_synchronous_run_is_never_ahead_by_more_than_a_round() -> None:
    """It acts only when no opt step is allowed: 3 environments can overshoot by 2 env steps."""
    run = train("trainer.max_opts=100", "trainer.opt_interval=2", QUIET, *SHAPES["sync with 3 environments"])
    assert run.counts[0] == 100
    assert 0 <= run.counts[1] - WARMUP - 2 * 100 <= 2


@pytest.mark.parametrize("shape", ["1 actor", "2 actors with 3 environments"])
def test_free_running_actors_wait_for_nobody(shape: str) -> None:
    run = train("trainer.opt_interval=null", "trainer.max_opts=100", QUIET, *SHAPES[shape])
    assert ended_by(run) == "max_opts"
    assert run.counts[0] == 100
    assert run.counts[1] >= WARMUP
    assert run.config.trainer.opt_interval is None


@pytest.mark.parametrize("shape", ["1 actor", "2 actors with 3 environments"])
def test_free_running_actors_do_not_overrun_the_budget(shape: str) -> None:
    run = train("trainer.opt_interval=null", "trainer.max_env_steps=1003", QUIET, *SHAPES[shape])
    assert ended_by(run) == "max_env_steps"
    assert run.counts[1] == 1003
