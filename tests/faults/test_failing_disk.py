"""A disk that fails under a run: rows C6 and C7. The run goes on, nothing half-written stays, and what counts is said."""

from __future__ import annotations

import errno
import os
import resource
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from border_cli.checkpoints import store
from border_cli.cli.train import main
from border_cli.core.errors import CheckpointIOError, ExitCode
from border_cli.replay.limiter import RatioLimiter
from border_cli.runs.summary import Summary
from border_cli.runtime import forkserver
from tests.faults.commands import verified_checkpoints
from tests.faults.processes import processes
from tests.real_runs import Run, tiny

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")

INTERVAL = 10
LIMIT = 2**16
"""Bytes that a file may have while the disk is full: more than any record or log needs, less than the weights do."""
WORDS = (
    "trainer=sync",
    "env=cartpole",
    "agent.hidden=[200,200]",
    "agent.batch_size=4",
    "buffer.capacity=500",
    "trainer.warmup_period=10",
    f"trainer.save_interval={INTERVAL}",
    "trainer.eval_interval=null",
    "trainer.record_interval=5",
    "checkpoint.keep=20",
)


@contextmanager
def after_each_opt_step(happens: Callable[[int], None]) -> Iterator[None]:
    opted = RatioLimiter.opted

    def opted_and_more(limiter: RatioLimiter) -> None:
        opted(limiter)
        happens(limiter.opt_steps)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RatioLimiter, "opted", opted_and_more)
        yield


@contextmanager
def full_disk(since: int, until: int) -> Iterator[None]:
    """Between these opt steps no file of this process grows beyond LIMIT; what writes on gets an OSError."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)

    def limit(opt_steps: int) -> None:
        if opt_steps in (since, until):
            resource.setrlimit(resource.RLIMIT_FSIZE, (LIMIT if opt_steps == since else soft, hard))

    try:
        with after_each_opt_step(limit):
            yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def run_until(max_opts: int, *words: str) -> tuple[int, Run]:
    code = main(tiny(*WORDS, f"trainer.max_opts={max_opts}", *words))
    return code, Run(Path("runs/latest").resolve())


def assert_only_whole_ones(run: Run, saved: list[int]) -> None:
    """These checkpoints verify, and nothing else lies beside them, hidden or not."""
    assert [checkpoint.opt_steps for checkpoint in reversed(verified_checkpoints(run))] == saved
    folder = run.path / "checkpoints"
    assert sorted(path.name for path in folder.iterdir()) == [store.step_name(step) for step in saved]
    assert not [path for path in run.path.iterdir() if ".checkpoint" in path.name or "aside" in path.name]


def warnings(run: Run) -> list[str]:
    lines = (run.path / "train.log").read_text(encoding="utf-8").splitlines()
    return [line for line in lines if " WARNING " in line]


def test_c6_while_the_disk_is_full_training_goes_on(workplace: Path) -> None:
    """Full from the second save on; room again before the fourth."""
    with full_disk(since=INTERVAL + 1, until=3 * INTERVAL + 1):
        code, run = run_until(5 * INTERVAL + 5)
    assert code == 0
    assert_only_whole_ones(run, [INTERVAL, 4 * INTERVAL, 5 * INTERVAL, 5 * INTERVAL + 5])
    (warning,) = warnings(run)
    assert "File too large; training goes on, and the next save is left out" in warning
    assert run.steps("checkpoint/failed_saves") == list(range(2 * INTERVAL + 5, 5 * INTERVAL + 6, 5))
    assert {value for _, value in run.series("checkpoint/failed_saves")} == {1.0}
    assert run.summary["status"] == "done"


def test_c6_the_third_failed_save_in_a_row_ends_the_run(
    workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Those at the second, the fourth and the seventh interval; then the last one, of the opt step it ended at."""
    with full_disk(since=INTERVAL + 1, until=10**9):
        code, run = run_until(100 * INTERVAL)
    assert code == ExitCode.CHECKPOINT_IO
    assert run.summary["exit_code"] == 6
    assert run.counts[0] == 7 * INTERVAL
    assert_only_whole_ones(run, [INTERVAL])
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 3
    assert str(run.path) in lines[0] and "File too large" in lines[0]


def test_c6_a_last_save_that_fails_is_no_success(workplace: Path) -> None:
    with full_disk(since=INTERVAL + 1, until=10**9):
        code, run = run_until(INTERVAL + 5)
    assert code == ExitCode.CHECKPOINT_IO
    assert "it was the last save of the run" in run.summary["error"]
    assert_only_whole_ones(run, [INTERVAL])


def test_c6_a_last_save_that_fails_leaves_no_actor(workplace: Path) -> None:
    with full_disk(since=INTERVAL + 1, until=10**9):
        code, run = run_until(INTERVAL + 5, "trainer=async", "trainer.lockstep=true")
    assert (parent := forkserver.forkserver_pid()) is not None
    assert processes(parent=parent) == []  # by now, and not some time later
    assert code == ExitCode.CHECKPOINT_IO
    assert_only_whole_ones(run, [INTERVAL])
    assert [actor["state"] for actor in run.summary["actors"]] == ["done"]


def test_c6_a_best_model_is_held_until_there_is_room(workplace: Path) -> None:
    """Evaluated at opt step 15, where the disk is full; written with the checkpoint at 20."""
    with full_disk(since=INTERVAL + 1, until=2 * INTERVAL - 1):
        code, run = run_until(2 * INTERVAL, f"trainer.eval_interval={INTERVAL + 5}", "evaluator.episodes=1")
    assert code == 0
    assert store.verify(run.path / "best").opt_steps in (INTERVAL + 5, 2 * INTERVAL)
    (warning,) = warnings(run)
    assert "best cannot be written" in warning and "held, to be written with the next checkpoint" in warning
    assert_only_whole_ones(run, [INTERVAL, 2 * INTERVAL])


@pytest.mark.parametrize("error", [errno.EIO, errno.EROFS, errno.EACCES], ids=errno.errorcode.get)
def test_c7_an_error_once_is_nothing(workplace: Path, monkeypatch: pytest.MonkeyPatch, error: int) -> None:
    fsync, failed = os.fsync, list[int]()

    def failing_once(descriptor: int) -> None:
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        if path.parent.name == ".checkpoint.tmp" and not failed:
            failed.append(descriptor)
            raise OSError(error, os.strerror(error))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", failing_once)
    code, run = run_until(2 * INTERVAL)
    assert code == 0
    assert failed
    assert warnings(run) == []
    assert_only_whole_ones(run, [INTERVAL, 2 * INTERVAL])


def test_c7_a_folder_that_stays_read_only_ends_the_run_as_a_full_disk_does(
    workplace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mkdir = Path.mkdir

    def refusing(path: Path, *args: int, **kwargs: bool) -> None:
        if path.name == ".checkpoint.tmp":
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        mkdir(path, *args, **kwargs)

    monkeypatch.setattr(Path, "mkdir", refusing)
    code, run = run_until(100 * INTERVAL)
    assert code == ExitCode.CHECKPOINT_IO
    assert run.counts[0] == 6 * INTERVAL
    assert_only_whole_ones(run, [])


def test_c7_an_old_checkpoint_that_cannot_be_removed_is_a_warning(
    workplace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    discard = store._discard

    def refusing(path: Path) -> None:
        if path.exists():
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        discard(path)

    monkeypatch.setattr(store, "_discard", refusing)
    code, run = run_until(4 * INTERVAL, "checkpoint.keep=2")
    assert code == 0
    assert_only_whole_ones(run, [n * INTERVAL for n in (1, 2, 3, 4)])
    assert len(warnings(run)) == 2


def test_c7_a_summary_that_cannot_be_written_is_a_warning(
    workplace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refusing(summary: Summary, *_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Summary, "saved", refusing)
    code, run = run_until(2 * INTERVAL)
    assert code == 0
    assert len(warnings(run)) == 2 and "summary.json" in warnings(run)[0]
    assert run.summary["status"] == "done"


@pytest.mark.parametrize("times", [2, 100])
def test_c6_a_best_model_of_the_very_end_is_not_forgotten(
    workplace: Path, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    """Judged after the last checkpoint: there is one more save for it alone, and that has to succeed."""
    write, refused = store.write, list[str]()

    def refusing(parent: Path, name: str, *rest: Any) -> Path:
        if name == "best" and len(refused) < times:
            refused.append(name)
            raise CheckpointIOError("best cannot be written")
        return write(parent, name, *rest)

    monkeypatch.setattr(store, "write", refusing)
    code, run = run_until(INTERVAL, "trainer.eval_interval=1000", "evaluator.episodes=1")
    assert code == (0 if times == 2 else ExitCode.CHECKPOINT_IO)
    assert (run.path / "best").exists() == (code == 0)
    assert_only_whole_ones(run, [INTERVAL])
