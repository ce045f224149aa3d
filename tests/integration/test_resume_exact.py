"""Under sync and lockstep a resumed run equals the one that was never interrupted (contract C8, row G2)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from border_cli.cli.train import main
from border_cli.runtime.seeding import episode_seed
from tests.faults.amounts import FULL
from tests.interrupted import assert_same_bits, resume, run_interrupted, run_killed, run_whole
from tests.real_runs import Run, in_folder

COMMON = (
    "trainer.max_opts=150",
    "trainer.eval_interval=40",
    "trainer.save_interval=35",
    "trainer.record_interval=25",
    "agent.target_interval=40",
    "agent.epsilon_env_steps=300",
    "buffer.capacity=180",
    "seed=7",
)
LOCKSTEP = ("trainer.lockstep=true", "trainer.lockstep_steps=4")
MODES = {
    "sync": ("trainer=sync", "actor_manager.envs_per_actor=2"),
    "three actors": (
        *LOCKSTEP,
        "n_actors=3",
        "actor_manager.envs_per_actor=2",
        "trainer.opt_interval=2",
        "buffer.n_step=3",
    ),
}
if FULL:  # test_lockstep_everywhere.py has one like it every day
    MODES["one actor"] = (*LOCKSTEP, "n_actors=1", "trainer.opt_interval=0.5")
STOPPED_AT = (1, 40, 75, 149)
"""The first opt step; one whose evaluation is due, which is left for the resumed run; a record and the last but one."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, full_forkserver: None) -> Iterator[Path]:
    with in_folder(tmp_path_factory.mktemp("exact")) as path:
        yield path


@pytest.fixture(scope="module", params=MODES)
def mode(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def whole(folder: Path, mode: str) -> Run:
    return run_whole(folder / f"{mode}, whole", *COMMON, *MODES[mode])


@pytest.mark.parametrize("at", STOPPED_AT)
def test_g2_a_resumed_run_equals_the_uninterrupted_one(folder: Path, mode: str, whole: Run, at: int) -> None:
    resumed = run_interrupted(folder / f"{mode}, {at}", *COMMON, *MODES[mode], at=at)
    assert_same_bits(resumed, whole)
    assert all(actor["exact"] for actor in resumed.summary["actors"])
    assert counted(resumed) == counted(whole)


def counted(run: Run) -> list[tuple[int, int]]:
    """Env steps and episodes of each actor, by the summary."""
    return [(actor["env_steps"], actor["episodes"]) for actor in run.summary["actors"]]


def test_g1_the_same_seed_is_the_same_run(folder: Path, mode: str, whole: Run) -> None:
    assert_same_bits(run_whole(folder / f"{mode}, again", *COMMON, *MODES[mode]), whole)


def test_g2_a_run_that_was_killed_is_resumed_to_the_same_bits(folder: Path, mode: str, whole: Run) -> None:
    """From the checkpoint before: what was recorded and trained after that is done once more."""
    killed = run_killed(folder / f"{mode}, killed", *COMMON, *MODES[mode], at=99)
    assert killed.summary["status"] == "running"
    assert killed.checkpoints[-1] == "step-000000070"
    resume(killed.path)
    assert_same_bits(Run(killed.path), whole)


LEAVING = (
    "trainer.max_opts=30",
    "trainer.opt_interval=4",
    "trainer.eval_interval=null",
    "env=gym",
    "env.entry_point=tests.outside:Outside",
    "env.kwargs.length=110",
    "seed=7",
)
"""One environment is inside its space in its first episode, of 110 env steps, and outside in all others."""


@pytest.mark.parametrize("words", [("trainer=sync",), (*LOCKSTEP, "n_actors=1")], ids=["sync", "lockstep"])
def test_g2_an_environment_that_leaves_its_space_late_is_judged_as_without_a_pause(
    folder: Path, words: tuple[str, ...]
) -> None:
    """Not as new, where that is an error: neither what it has done before the pause, nor what comes."""
    inside = f"env.kwargs.inside=[0,{episode_seed(7, 0, 0, 0, 0)}]"  # 0: of the trial before the run
    place = folder / f"leaving, {words[0]}"
    whole = run_whole(place / "whole", *LEAVING, inside, *words)
    assert_same_bits(run_interrupted(place / "paused", *LEAVING, inside, *words, at=22), whole)


def test_a_larger_budget_makes_the_run_that_had_it_from_the_start(
    folder: Path, mode: str, whole: Run
) -> None:
    run = run_whole(folder / f"{mode}, short", *COMMON[1:], *MODES[mode], "trainer.max_opts=110")
    resume(run.path, "trainer.max_opts=150")
    assert_same_bits(Run(run.path), whole)
    assert Run(run.path).summary["exact"] is True


def test_lockstep_goes_on_behind_a_budget_of_env_steps_that_was_used_up(folder: Path) -> None:
    """The last rounds were cut short, so that it is no longer the run that had the larger budget from the start."""
    words = (*COMMON[1:], *MODES["three actors"], "trainer.max_env_steps=171")
    run = run_whole(folder / "used up", *words)
    assert run.counts[1] == 171
    assert main([f"resume={run.path}", "trainer.max_env_steps=400"]) == 0
    again = Run(run.path)
    assert again.counts[1] == 400
    assert again.counts[0] == (400 - again.config.trainer.warmup_period) // 2
    assert again.summary["exact"] is False
    assert sum(actor["env_steps"] for actor in again.summary["actors"]) == 400
