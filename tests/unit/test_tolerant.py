"""Recorders on a disk that fails for some time."""

from __future__ import annotations

import fcntl
import itertools
import logging
import os
import resource
import signal
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from border_cli.core.errors import ResourceError
from border_cli.core.metrics import Record
from border_cli.recorders.files import (
    AppendedFile,
    FileRecorder,
    JsonlRecorder,
    TensorBoardRecorder,
    read_jsonl,
)
from border_cli.run.directory import log_to
from tests.faults.amounts import times
from tests.unit.test_recorders import scalars


def record(opt_steps: int) -> Record:
    return Record({"eval/return_mean": 1.0}, opt_steps, opt_steps)


@pytest.fixture
def limit() -> Iterator[None]:
    """Restore RLIMIT_FSIZE after the test."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


def lines_of(path: Path) -> list[int]:
    """Return the opt steps of a metrics.jsonl."""
    return [line["opt_steps"] for line in read_jsonl(path)]


def allow_bytes(n: int) -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (n, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))


def test_h3_a_failing_recorder_costs_records_and_one_warning(
    tmp_path: Path, limit: None, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "metrics.jsonl"
    recorder = JsonlRecorder(path)
    for opt_steps in range(1, 7):
        full = opt_steps in (2, 3, 5)
        allow_bytes(path.stat().st_size + 10 if full else resource.RLIM_INFINITY)
        recorder.write(record(opt_steps))
    recorder.close()
    assert lines_of(path) == [1, 4, 6]
    assert (recorder.dropped, recorder.positions()) == (3, {"jsonl": 3})
    assert caplog.messages == [
        f"{path} cannot be written: File too large; records may be lost, training continues",
        "metrics.jsonl lacks 3 records",
    ]


def test_records_of_an_earlier_launch_that_cannot_be_read_end_the_run_before_it_begins(
    tmp_path: Path,
) -> None:
    """They would be overwritten, or lost without a word."""
    (tmp_path / "metrics.jsonl").mkdir()
    with pytest.raises(
        ResourceError, match=r"metrics\.jsonl cannot be read: Is a directory\nallowed: .*jsonl=false"
    ):
        JsonlRecorder(tmp_path / "metrics.jsonl", keep=2)


@pytest.mark.parametrize("kind", ["jsonl", "tensorboard"])
def test_h3_a_partly_written_record_is_removed(
    tmp_path: Path, limit: None, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    events = kind == "tensorboard"
    folder = tmp_path / kind
    folder.mkdir()
    recorder: FileRecorder = (
        TensorBoardRecorder(folder) if events else JsonlRecorder(folder / "metrics.jsonl")
    )
    recorder.write(record(1))
    (path,) = folder.iterdir()
    size = path.stat().st_size
    allow_bytes(size + 10)
    recorder.write(record(2))
    assert recorder.dropped == 1
    assert f"{path} cannot be written: File too large" in caplog.text
    assert path.stat().st_size == size
    allow_bytes(resource.RLIM_INFINITY)
    recorder.write(record(3))
    recorder.close()
    assert ([step for step, _ in scalars(folder)] if events else lines_of(path)) == [1, 3]


def test_a_partial_record_that_cannot_be_removed_at_once_is_removed_by_the_next_write(
    tmp_path: Path,
) -> None:
    file = AppendedFile(tmp_path / "file")
    file.append(b"whole\n")
    with (tmp_path / "file").open("ab") as other:
        other.write(b"to")
    file.append(b"next\n")
    assert (tmp_path / "file").read_bytes() == b"whole\nnext\n"


def test_h3_a_log_on_a_full_disk_drops_lines_and_continues_later(
    tmp_path: Path, limit: None, capsys: pytest.CaptureFixture[str]
) -> None:
    path, log = tmp_path / "train.log", logging.getLogger("border_cli.test")
    with log_to(path, lambda note: None):
        log.info("first")
        allow_bytes(path.stat().st_size + 5)
        log.info("second")
        log.info("third")
        allow_bytes(resource.RLIM_INFINITY)
        log.info("fourth")
        allow_bytes(path.stat().st_size)
        log.info("fifth")
        allow_bytes(
            resource.RLIM_INFINITY
        )  # here, not at the teardown, because pytest may write to a file in between
    text = path.read_text()
    assert "first" in text and "fourth" in text
    assert all(text.count(word) <= 1 for word in ("second", "third", "fifth"))
    assert capsys.readouterr().err == ""


def write_for_ever(folder: Path, pipe: int) -> None:
    recorders = JsonlRecorder(folder / "metrics.jsonl"), TensorBoardRecorder(folder / "tensorboard")
    for step in itertools.count(1):
        for recorder in recorders:
            recorder.write(Record({"eval/return_mean": step / 2}, step, step))
        os.write(pipe, b".")


def forked() -> int:
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", DeprecationWarning
        )  # this process has threads, which the child does not need
        return os.fork()


@pytest.mark.skipif(sys.platform != "linux", reason="sets the size of a pipe")
def test_h1_records_written_before_a_kill_are_readable(tmp_path: Path) -> None:
    """Each writer is killed at another step. All records that it reported are in both files, in order and complete, because
    each record is passed to the system before the next one.
    """
    for i in range(times(3, 50)):
        folder, steps = tmp_path / str(i), 1 + 37 * i
        folder.mkdir()
        reader, writer = os.pipe()
        fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4096)  # so the writer cannot get far ahead
        pid = forked()
        if pid == 0:
            try:
                write_for_ever(folder, writer)
            finally:
                os._exit(1)
        os.close(writer)
        said = 0
        while said < steps:
            said += len(os.read(reader, steps - said))
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        while rest := os.read(reader, 4096):
            said += len(rest)
        os.close(reader)
        events = scalars(folder / "tensorboard")
        for written in (lines_of(folder / "metrics.jsonl"), [step for step, _ in events]):
            assert written == list(range(1, len(written) + 1))
            assert said <= len(written) <= said + 1
        assert all(values["eval/return_mean"] == step / 2 for step, values in events)


def test_h1_an_incomplete_last_line_is_ignored_by_readers(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    recorder = JsonlRecorder(path)
    recorder.write(record(1))
    recorder.write(record(2))
    recorder.close()
    whole = path.read_bytes()
    for end in range(whole.index(b"\n") + 1, len(whole)):
        path.write_bytes(whole[:end])
        assert lines_of(path) == [1]
