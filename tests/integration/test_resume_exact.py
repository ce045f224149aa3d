"""Under sync and lockstep a resumed run equals the one that was never interrupted."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from border_cli.cli.train import main
from border_cli.run.summary import RunFiles
from tests.faults.amounts import FULL, sampled
from tests.interrupted import assert_same_bits, resume, run_killed, run_whole, signal_at
from tests.real_runs import Run, tiny

BUDGET = "trainer.max_opts=60"
COMMON = (
    "trainer.eval_interval=16",
    "trainer.save_interval=14",
    "trainer.record_interval=10",
    "agent.target_interval=16",
    "agent.reset_interval=20",
    "agent.epsilon_env_steps=120",
    "buffer.capacity=90",
    "seed=7",
)
LOCKSTEP = ("trainer.lockstep=true", "trainer.lockstep_steps=4")
MODES = {
    "three actors": (
        *LOCKSTEP,
        "n_actors=3",
        "actor_manager.envs_per_actor=2",
        "trainer.opt_interval=2",
        "buffer.n_step=3",
    ),
    "sync": ("trainer=sync", "actor_manager.envs_per_actor=2", "agent.normalize_obs=true"),
}
if FULL:  # `make test` has a similar case in test_same_bits.py
    MODES["one actor"] = (*LOCKSTEP, "n_actors=1", "trainer.opt_interval=0.5")
STOPPED_AT = (1, 16, 30, 59) if FULL else (1, 16)
"""The first opt step, one whose evaluation the resumed run does, one with a record, and the last but one."""
Uninterrupted = Callable[[str], Run]


@pytest.fixture(scope="module")
def uninterrupted(folder: Path) -> Uninterrupted:
    """Return a function that trains the uninterrupted run of a mode once."""
    return functools.cache(
        lambda mode: run_whole(folder / f"{mode}, uninterrupted", *COMMON, *MODES[mode], BUDGET)
    )


@pytest.mark.parametrize("mode", MODES)
def test_g1_g2_g3_a_run_resumed_several_times_equals_the_uninterrupted_one(
    folder: Path, mode: str, uninterrupted: Uninterrupted
) -> None:
    path = folder / f"{mode}, resumed"
    args = [*tiny(*COMMON, *MODES[mode], BUDGET), f"hydra.run.dir='{path}'"]
    for at in STOPPED_AT:
        with signal_at(at):
            assert main(args) == 143
        args = [f"resume={path}", "trust=true"]
    resume(path)
    resumed = Run(path)
    assert_same_bits(resumed, uninterrupted(mode))
    assert all(actor["exact"] for actor in resumed.summary["actors"])
    assert counted(resumed) == counted(uninterrupted(mode))


def counted(run: Run) -> list[tuple[int, int]]:
    """Return the env steps and episodes of each actor from the summary."""
    return [(actor["env_steps"], actor["episodes"]) for actor in run.summary["actors"]]


@pytest.mark.parametrize("mode", sampled(list(MODES), 2))
def test_g2_a_run_that_was_killed_is_resumed_to_the_same_bits(
    folder: Path, mode: str, uninterrupted: Uninterrupted
) -> None:
    """It continues from the last checkpoint and repeats the opt steps and records after it."""
    killed = run_killed(folder / f"{mode}, killed", *COMMON, *MODES[mode], BUDGET, at=39)
    assert killed.summary["status"] == "running"
    assert killed.checkpoints[-1] == "step-000000028"
    resume(killed.path)
    assert_same_bits(Run(killed.path), uninterrupted(mode))


@pytest.mark.parametrize("mode", MODES if FULL else ["sync"])
def test_a_run_resumed_with_a_larger_budget_equals_one_with_that_budget_from_the_start(
    folder: Path, mode: str, uninterrupted: Uninterrupted
) -> None:
    run = run_whole(folder / f"{mode}, short", *COMMON, *MODES[mode], "trainer.max_opts=40")
    resume(run.path, BUDGET)
    assert_same_bits(Run(run.path), uninterrupted(mode))


def test_a_schedule_that_ends_with_the_old_budget_is_said(folder: Path) -> None:
    args = (*COMMON, *MODES["sync"], "agent.lr_schedule=linear")
    run = run_whole(folder / "schedule", *args, "trainer.max_opts=40")
    resume(run.path, BUDGET)
    assert Run(run.path).summary["exact"] is False
    log = " ".join((run.path / "train.log").read_text().split())
    assert "the learning rate is 0 from opt step 40 on: agent.lr_opt_steps=<number> changes that" in log


BESIDE = ("trainer=sync", "evaluator=process", "trainer.eval_interval=20", "trainer.save_interval=null")
"""With evaluator=process a result takes effect when the next model is submitted."""


def test_g1_a_score_that_had_no_effect_yet_when_the_run_was_saved_has_it_again(workplace: Path) -> None:
    """The checkpoint of opt step 30 has a pending evaluation of opt step 20."""
    whole = run_whole(workplace / "whole", *BESIDE, "trainer.max_opts=60")
    parts = run_whole(workplace / "parts", *BESIDE, "trainer.max_opts=30")
    assert parts.summary["best_score"]["opt_steps"] in (20, 30)
    resume(parts.path, "trainer.max_opts=60")
    assert_same_bits(Run(parts.path), whole)


def test_g1_a_run_that_is_not_exact_stays_so_when_it_is_killed(
    workplace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    args = ("n_actors=1", "trainer.lockstep=true", "trainer.max_opts=50", "trainer.save_interval=10")
    with signal_at(15):
        assert main([*tiny(*args), f"hydra.run.dir='{workplace / 'run'}'"]) == 143
    run = Run(workplace / "run")
    assert run.summary["exact"] is True
    with monkeypatch.context() as patch, signal_at(35):
        write = RunFiles._write
        # as if the process was killed before
        patch.setattr(RunFiles, "_write", lambda files, result=None: result or write(files))
        assert main([f"resume={run.path}", "evaluator.episodes=3"]) == 143
    assert json.loads((run.path / "summary.json").read_text())["status"] == "running"
    resume(run.path)
    assert Run(run.path).summary["exact"] is False
