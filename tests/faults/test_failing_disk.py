"""A failing disk (rows C6 and C7): training continues, and no half-written file remains."""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from border_cli.checkpoints import store
from border_cli.core.errors import ExitCode
from border_cli.run.summary import Summary
from border_cli.runtime import forkserver
from tests.faults.amounts import sampled
from tests.faults.commands import assert_saved, run_here
from tests.faults.processes import processes
from tests.interrupted import after_opt_steps
from tests.real_runs import Run

INTERVAL = 10
LIMIT = 2**16
"""Bytes that a file may have while the disk is full: more than any record or log needs, less than the weights do."""
SYNC = ("trainer=sync",)
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


def run_until(max_opts: int, code: int, *args: str, trainer: tuple[str, ...] = SYNC) -> Run:
    typed = [arg.partition("=")[0] for arg in args]
    own = (arg for arg in ARGS if arg.partition("=")[0] not in typed)
    run = run_here(code, *own, *trainer, f"trainer.max_opts={max_opts}", *args)
    assert run.summary["exit_code"] == code
    return run


def warnings(run: Run) -> list[str]:
    lines = (run.path / "train.log").read_text(encoding="utf-8").splitlines()
    return [line for line in lines if " WARNING " in line]


def failing(method: Callable[..., Any], fails: Callable[..., bool], error: int) -> Callable[..., Any]:
    """Wrap a method so that the calls in `fails` raise OSError."""

    def call(*given: Any, **named: Any) -> Any:
        if fails(*given):
            raise OSError(error, os.strerror(error))
        return method(*given, **named)

    return call


def test_c6_while_the_disk_is_full_training_continues(workplace: Path) -> None:
    """The disk is full from the second save until before the fourth."""
    with full_disk(INTERVAL + 1, 3 * INTERVAL + 1):
        run = run_until(5 * INTERVAL + 5, 0)
    assert_saved(run, [INTERVAL, 4 * INTERVAL, 5 * INTERVAL, 5 * INTERVAL + 5])
    (warning,) = warnings(run)
    assert "File too large; training continues, and the next save is skipped" in warning
    assert run.steps("checkpoint/failed_saves") == list(range(2 * INTERVAL + 5, 5 * INTERVAL + 6, 5))
    assert {value for _, value in run.series("checkpoint/failed_saves")} == {1.0}
    assert run.summary["status"] == "done"


def test_c6_the_third_failed_save_in_a_row_ends_the_run(
    workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The saves at intervals 2, 4 and 7 fail, and so does the final one of the opt step at which the run ends."""
    with full_disk(INTERVAL + 1):
        run = run_until(100 * INTERVAL, ExitCode.CHECKPOINT_IO)
    assert run.counts[0] == 7 * INTERVAL
    assert_saved(run, [INTERVAL])
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 3
    assert str(run.path) in lines[0] and "File too large" in lines[0]


def test_c6_a_failing_last_save_fails_the_run_and_leaves_no_actor(workplace: Path) -> None:
    with full_disk(INTERVAL + 1):
        run = run_until(INTERVAL + 5, ExitCode.CHECKPOINT_IO, trainer=("n_actors=1", "trainer.lockstep=true"))
    assert (parent := forkserver.forkserver_pid()) is not None
    assert processes(parent=parent) == []  # immediately, not some time later
    assert "it was the last save of the run" in run.summary["error"]
    assert_saved(run, [INTERVAL])
    assert [actor["state"] for actor in run.summary["actors"]] == ["done"]


@pytest.mark.parametrize("error", sampled([errno.EIO, errno.EROFS, errno.EACCES], 3), ids=errno.errorcode.get)
def test_c7_a_save_is_repeated_after_one_error(
    workplace: Path, monkeypatch: pytest.MonkeyPatch, error: int
) -> None:
    failed = list[int]()

    def fails_once(descriptor: int) -> bool:
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        if path.parent.name != ".checkpoint.tmp" or failed:
            return False
        failed.append(descriptor)
        return True

    monkeypatch.setattr(os, "fsync", failing(os.fsync, fails_once, error))
    run = run_until(2 * INTERVAL, 0)
    assert failed
    assert warnings(run) == []
    assert_saved(run, [INTERVAL, 2 * INTERVAL])


def test_c7_a_read_only_folder_ends_the_run_like_a_full_disk(
    workplace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mkdir = failing(Path.mkdir, lambda path, *_: path.name == ".checkpoint.tmp", errno.EROFS)
    monkeypatch.setattr(Path, "mkdir", mkdir)
    run = run_until(100 * INTERVAL, ExitCode.CHECKPOINT_IO)
    assert run.counts[0] == 6 * INTERVAL
    assert_saved(run, [])


def test_c7_an_old_checkpoint_that_cannot_be_removed_is_a_warning(
    workplace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "_discard", failing(store._discard, Path.exists, errno.EIO))
    run = run_until(4 * INTERVAL, 0, "checkpoint.keep=2")
    assert_saved(run, [n * INTERVAL for n in (1, 2, 3, 4)])
    assert len(warnings(run)) == 2


def test_c7_a_summary_that_cannot_be_written_is_a_warning(
    workplace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Summary, "saved", failing(Summary.saved, lambda *_: True, errno.ENOSPC))
    run = run_until(2 * INTERVAL, 0)
    assert len(warnings(run)) == 2 and "summary.json" in warnings(run)[0]
    assert run.summary["status"] == "done"
