"""Ends of runs: reasons, replay ratio and budgets; weights that are not finite."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from border_cli.agents.agent import NetworkAgent
from border_cli.cli.train import main
from border_cli.config.resolve import ratio_tolerance
from border_cli.core.metrics import Record
from tests.faults.amounts import FULL
from tests.real_runs import TINY, Run, tiny, train
from tests.warm import finished

WARMUP = 50
assert f"trainer.warmup_period={WARMUP}" in TINY
SHAPES = {
    "sync": ("trainer=sync",),
    "sync with 3 environments": ("trainer=sync", "actor_manager.envs_per_actor=3"),
    "1 actor": ("n_actors=1",),
    "2 actors with 3 environments": ("n_actors=2", "actor_manager.envs_per_actor=3"),
}
QUIET = "trainer.eval_interval=null"
full_tier = pytest.mark.skipif(not FULL, reason="make test-full")

pytestmark = pytest.mark.usefixtures("workplace")


def ended_by(run: Run) -> str:
    summary = run.summary
    assert (summary["status"], summary["exit_code"], summary["error"]) == ("done", 0, None)
    name: str = summary["ended_by"]
    return name


# -- budgets and ratio --------------------------------------------------


def assert_ratio(run: Run, opt_steps: int, env_steps: int) -> None:
    """Each opt step waits for its env steps, and actors are never further ahead than the tolerance."""
    interval = run.config.trainer.opt_interval
    assert interval is not None
    ahead = env_steps - WARMUP - interval * opt_steps
    assert 0 <= ahead <= ratio_tolerance(run.config) + interval
    if run.config.trainer.type == "sync":  # acts only while no opt step is allowed: at most one round ahead
        assert ahead < run.config.actor_manager.envs_per_actor


@pytest.mark.parametrize(
    ("shape", "interval"),
    [
        ("2 actors with 3 environments", "0.5"),
        ("2 actors with 3 environments", "null"),
        pytest.param("sync with 3 environments", "0.5", marks=full_tier),
    ],
)
def test_max_opts_is_reached_exactly_and_the_ratio_holds(shape: str, interval: str) -> None:
    args = ["trainer.max_opts=97", f"trainer.opt_interval={interval}", "trainer.record_interval=1"]
    run = train(*args, "buffer.n_step=3", QUIET, *SHAPES[shape])
    assert ended_by(run) == "max_opts"
    opt_steps, env_steps = run.counts
    assert opt_steps == 97
    assert run.checkpoints == ["step-000000097"]
    (at_the_end,) = [v for n, v in run.series("throughput/samples_per_opt_step") if n == 97][-1:]
    assert at_the_end == pytest.approx((env_steps - WARMUP) / 97)
    if interval == "null":
        assert run.config.trainer.opt_interval is None and env_steps >= WARMUP
        return
    assert_ratio(run, opt_steps, env_steps)
    for record in run.records:
        if record["opt_steps"] and "replay/size" in record:
            assert_ratio(run, record["opt_steps"], record["env_steps"])


@pytest.mark.parametrize(
    ("shape", "interval", "budget", "opt_steps"),
    [
        ("sync with 3 environments", "4", 203, 38),
        ("2 actors with 3 environments", "0.5", 203, 306),
        ("1 actor", "1", WARMUP + 1, 1),
    ],
)
def test_max_env_steps_are_used_completely_and_every_allowed_opt_step_is_done(
    shape: str, interval: str, budget: int, opt_steps: int
) -> None:
    """203 is no multiple of 2, 3 or 64, so the last credit is smaller than one step of all environments of an actor."""
    run = train(f"trainer.max_env_steps={budget}", f"trainer.opt_interval={interval}", QUIET, *SHAPES[shape])
    assert ended_by(run) == "max_env_steps"
    assert run.counts[1] == sum(actor["env_steps"] for actor in run.summary["actors"]) == budget
    assert run.counts[0] == opt_steps
    assert not (run.path / "best").exists()  # there were no evaluations
    assert (run.summary["best_score"], run.summary["last_score"]) == (None, None)


def test_max_time_ends_a_run() -> None:
    run = train("trainer.max_time=1", "trainer.save_interval=null", QUIET, *SHAPES["sync"])
    assert ended_by(run) == "max_time"
    opt_steps, env_steps = run.counts
    assert run.summary["seconds"] >= 1
    assert (
        env_steps < run.config.trainer.max_env_steps == 50_000
    )  # from the default: no other budget was given
    assert run.checkpoints == [f"step-{opt_steps:09d}"]


def test_without_saves_and_records_the_last_checkpoint_and_the_evaluations_remain() -> None:
    """The last model is evaluated once. stop_return is out of reach, so the budget ends the run."""
    intervals = ["trainer.eval_interval=10", "trainer.save_interval=null", "trainer.record_interval=null"]
    run = train("trainer=sync", "trainer.max_opts=20", "trainer.stop_return=501", *intervals)
    assert ended_by(run) == "max_opts"
    head = {"opt_steps", "env_steps", "time"}
    records = [(r["opt_steps"], {name.partition("/")[0] for name in r.keys() - head}) for r in run.records]
    assert records == [(10, {"eval", "time"}), (20, {"eval", "time"})]
    assert run.summary["counters"]["episodes"] > 0
    assert run.checkpoints == ["step-000000020"] and run.saves == [20]


# -- unusual ends -------------------------------------------------------


@pytest.mark.parametrize(
    "intervals",
    [
        ("trainer.record_interval=null", "trainer.save_interval=50"),
        pytest.param(("trainer.record_interval=500", "trainer.save_interval=null"), marks=full_tier),
    ],
)
def test_weights_that_are_not_finite_are_never_kept(
    intervals: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    learn = NetworkAgent.opt

    def spoil(self: NetworkAgent, *values: Any, **named: Any) -> Record | None:
        self.policy.params[0] = float("nan")
        return learn(self, *values, **named)

    monkeypatch.setattr(NetworkAgent, "opt", spoil)
    words = tiny("trainer=sync", "trainer.max_opts=60", QUIET, "trainer.max_nonfinite=1000", *intervals)
    assert main(words) == 4
    run = Run(Path("runs/latest").resolve())
    assert run.summary["error"].startswith("a weight or moment of the agent is not a finite number")
    assert (run.summary["status"], run.checkpoints) == ("failed", [])


def test_names_of_folders_need_not_be_text(workplace: Path) -> None:
    """Any bytes are a name on Linux, and under LC_ALL=C those of ü are no text."""
    folder = workplace / os.fsdecode(b"\xff\xc3")
    folder.mkdir()
    words = tiny("trainer=sync", "env=cartpole", "trainer.max_opts=20", "recorder.console=plain")
    for command in (
        ("border-train", *words, "hydra.run.dir=runs/first"),
        ("border-eval", str(folder / "runs" / "first"), "episodes=1"),
    ):
        assert finished(*command, folder=folder).returncode == 0, command
    assert Run(folder / "runs" / "first").summary["status"] == "done"
