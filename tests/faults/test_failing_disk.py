"""A failing disk in complete runs (rows C6 and C7): training continues, and no half-written file remains."""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from border_cli.core.errors import ExitCode
from border_cli.runtime import forkserver
from tests.faults.commands import assert_saved, run_here
from tests.faults.processes import processes
from tests.interrupted import after_opt_steps
from tests.real_runs import Run

INTERVAL = 10
LIMIT = 2**16
"""Bytes that a file may have while the disk is full: more than any record or log needs, less than the weights do."""
ARGS = (
    "agent.hidden=[200,200]",
    "agent.batch_size=4",
    "buffer.capacity=500",
    "trainer.warmup_period=10",
    f"trainer.save_interval={INTERVAL}",
    "trainer.record_interval=5",
    "checkpoint.keep=20",
)


@contextmanager
def full_disk(since: int, until: int = -1) -> Iterator[None]:
    """Limit the size of files to LIMIT between these opt steps. A longer write raises OSError."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)

    def limit(opt_steps: int) -> None:
        if opt_steps in (since, until):
            resource.setrlimit(resource.RLIMIT_FSIZE, (LIMIT if opt_steps == since else soft, hard))

    try:
        with after_opt_steps(limit):
            yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def run_until(max_opts: int, code: int, *args: str) -> Run:
    run = run_here(code, *ARGS, *(args or ("trainer=sync",)), f"trainer.max_opts={max_opts}")
    assert run.summary["exit_code"] == code
    return run


def warnings(run: Run) -> list[str]:
    lines = (run.path / "train.log").read_text(encoding="utf-8").splitlines()
    return [line for line in lines if " WARNING " in line]


def test_c6_while_the_disk_is_full_training_continues(workplace: Path) -> None:
    """The disk is full from the second save until before the fourth."""
    with full_disk(INTERVAL + 1, 3 * INTERVAL + 1):
        run = run_until(5 * INTERVAL + 5, 0)
    assert_saved(run, [INTERVAL, 4 * INTERVAL, 5 * INTERVAL, 5 * INTERVAL + 5])
    assert len(warnings(run)) == 2 and "File too large; training continues" in warnings(run)[0]
    assert run.series("checkpoint/failed_saves")[::6] == [(2 * INTERVAL + 5, 1.0), (5 * INTERVAL + 5, 2.0)]
    assert run.summary["status"] == "done"


def test_c6_the_third_failed_save_in_a_row_ends_the_run(
    workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with full_disk(INTERVAL + 1):
        run = run_until(100 * INTERVAL, ExitCode.CHECKPOINT_IO)
    assert run.counts[0] == 4 * INTERVAL
    assert_saved(run, [INTERVAL])
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 3
    assert str(run.path) in lines[0] and "File too large" in lines[0]


def test_c6_a_failing_last_save_fails_the_run_and_leaves_no_actor(workplace: Path) -> None:
    with full_disk(INTERVAL + 1):
        run = run_until(INTERVAL + 5, ExitCode.CHECKPOINT_IO, "n_actors=1", "trainer.lockstep=true")
    assert (parent := forkserver.forkserver_pid()) is not None
    assert processes(parent) == []  # immediately, not some time later
    assert "it was the last save of the run" in run.summary["error"]
    assert_saved(run, [INTERVAL])
    assert [actor["state"] for actor in run.summary["actors"]] == ["done"]


def test_c7_a_save_is_repeated_after_one_error(workplace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failed, fsync = list[int](), os.fsync

    def fail_once(descriptor: int) -> None:
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        if path.parent.name == ".checkpoint.tmp" and not failed:
            failed.append(descriptor)
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", fail_once)
    run = run_until(2 * INTERVAL, 0)
    assert failed and warnings(run) == []
    assert_saved(run, [INTERVAL, 2 * INTERVAL])
