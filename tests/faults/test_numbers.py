"""Numbers that are not finite in complete runs (rows E1 and E2)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from border_cli.core.spaces import Array
from border_cli.core.types import Batch
from border_cli.replay.buffer import RowReplayBuffer
from tests.faults.commands import resume_hint, run_here, verified_checkpoints
from tests.real_runs import Run

SAVES = ("trainer.save_interval=10", "checkpoint.keep=10")
BAD_ENV = ("env=gym", "env.entry_point=tests.envs:NotANumber", "trainer.max_opts=200")


@contextmanager
def poisoned(first: int, last: int) -> Iterator[None]:
    """Put NaN into these batches, counted from 1."""
    sample, taken = RowReplayBuffer.batch, 0

    def poison(buffer: RowReplayBuffer, size: int, into: Batch | None = None) -> Batch:
        nonlocal taken
        taken += 1
        batch = sample(buffer, size, into)
        if first <= taken <= last:
            batch.reward[0] = np.nan
        return batch

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RowReplayBuffer, "batch", poison)
        yield


def states(run: Run) -> dict[int, dict[str, Array]]:
    """Return the training arrays of each checkpoint by opt step. Checks that all verify and are finite."""
    saved = {}
    for checkpoint in verified_checkpoints(run):
        assert checkpoint.training is not None
        saved[checkpoint.opt_steps] = dict(checkpoint.training.arrays)
        assert all(np.isfinite(array).all() for array in saved[checkpoint.opt_steps].values())
    return saved


def test_e1_one_bad_batch_costs_one_opt_step(workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with poisoned(35, 35):
        run = run_here(0, "trainer=sync", *SAVES, "trainer.max_opts=60", "trainer.record_interval=30")
    assert capsys.readouterr().err == ""
    assert run.counts[0] == 60
    assert run.series("agent/skipped_steps") == [(30, 0.0), (60, 1.0)]
    assert [step for step, loss in run.series("agent/loss") if np.isfinite(loss)] == [30, 60]
    assert set(states(run)) == {10, 20, 30, 40, 50, 60}
    log = (run.path / "train.log").read_text()
    line = "opt step 35 was skipped: its loss or gradient is not finite; agent/skipped_steps counts others"
    assert log.count("was skipped") == log.count(line) == 1


def test_e1_too_many_bad_batches_in_a_row_end_the_run(
    workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with poisoned(34, 10**9):
        run = run_here(4, *SAVES)
    assert run.config.trainer.max_nonfinite == 10  # by default
    *_, first, _, last = (
        capsys.readouterr().err.splitlines()
    )  # a warning about a slow actor may come before it
    what = "the loss or gradient of 10 opt steps in a row is not a finite number at opt step 43"
    assert first.endswith(f"error: {what}")
    assert last == resume_hint(run, workplace)
    assert (run.summary["status"], run.summary["exit_code"]) == ("failed", 4)
    saved = states(run)
    assert set(saved) == {10, 20, 30, 40, 43}
    for name, array in saved[40].items():
        if not name.startswith("stats."):  # also those of the unrecorded interval and of skipped opt steps
            assert np.array_equal(array, saved[43][name]), name
    assert any(not np.array_equal(array, saved[40][name]) for name, array in saved[30].items())
    assert (run.path / "train.log").read_text().count("was skipped") == 1


@pytest.mark.parametrize(
    ("args", "what", "error"),
    [
        (
            (
                *("env.kwargs.place=actor-1", "env.kwargs.what=observation", "trainer.max_opts=100000"),
                *("actor_manager.restarts=0", "actor_manager.min_actors=2"),
            ),
            "actor 1 failed while stepping, after 77 env steps",
            r"environment 0, episode 8, env step 7 of it: observation obs\[1\] is nan.*",
        ),
        (
            ("env.kwargs.place=MainProcess", "env.kwargs.what=reward", "trainer=sync"),
            "actor 0 failed while stepping, after 77 env steps",
            "environment 0, episode 8, env step 7 of it: the reward is nan.*",
        ),
    ],
    ids=["actor", "sync"],
)
def test_e2_bad_numbers_end_the_run(workplace: Path, args: tuple[str, ...], what: str, error: str) -> None:
    run = run_here(5, *BAD_ENV, *args)
    assert re.fullmatch(f"{what}: EnvDataError: {error}", run.summary["error"])
    states(run)
