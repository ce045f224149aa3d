"""A recorder in its own process: whatever it does costs its own records alone, and `write` never waits."""

from __future__ import annotations

import logging
import os
import time
from functools import partial
from pathlib import Path

import pytest

from border_cli.core.errors import ExitCode, Interrupted
from border_cli.core.metrics import Record
from border_cli.recorders import recorder_process as remote
from border_cli.recorders.recorder_process import RemoteRecorder
from tests.faults.processes import nothing_left, wait_until

pytestmark = pytest.mark.usefixtures("light_forkserver")


class Lines:
    """Appends the opt step of each record to a file. fault: what else it does, at this opt step."""

    def __init__(self, path: Path, fault: str = "", at: int = 2) -> None:
        if fault == "make":
            raise RuntimeError("no network")
        self._path, self._fault, self._at = path, fault, at

    def write(self, record: Record) -> None:
        if record.opt_steps == self._at:
            if self._fault == "raise":
                raise ConnectionError("no network")
            if self._fault == "exit":
                os._exit(3)
            if self._fault == "block":
                time.sleep(600)
        with self._path.open("a") as file:
            file.write(f"{record.opt_steps}\n")

    def mark_failed(self) -> None:
        with self._path.open("a") as file:
            file.write("failed\n")

    def close(self) -> None:
        if self._fault == "close":
            raise RuntimeError("no network")


def write(recorder: RemoteRecorder, opt_steps: range) -> None:
    """Write a record at each of these opt steps."""
    for i in opt_steps:
        recorder.write(Record({"eval/return_mean": 1.0}, opt_steps=i))


def written(path: Path, fault: str = "", n: int = 4) -> RemoteRecorder:
    """Write the records 0 to n - 1 and close."""
    path.touch()
    with nothing_left():
        recorder = RemoteRecorder("mine", partial(Lines, path, fault), 30.0)
        write(recorder, range(n))
        recorder.close()
        recorder.close()
    return recorder


@pytest.mark.parametrize(
    ("fault", "lines", "message"),
    [
        ("raise", [0, 1, 3], "recorder mine: ConnectionError: no network; records may be lost"),
        ("exit", [0, 1], "recorder mine exited with code 3"),
        ("make", [], "recorder mine failed: RuntimeError: no network"),
        ("close", [0, 1, 2, 3], "recorder mine failed: RuntimeError: no network"),
    ],
)
def test_a_fault_costs_the_records_that_it_meets(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, fault: str, lines: list[int], message: str
) -> None:
    recorder = written(tmp_path / "lines", fault)
    assert [int(line) for line in (tmp_path / "lines").read_text().split()] == lines
    assert recorder.dropped == 4 - len(lines)
    assert message in caplog.text
    assert caplog.text.count("training continues") <= (fault != "close")
    assert (f"mine lacks {recorder.dropped} records" in caplog.text) == bool(recorder.dropped)


def test_a_recorder_that_blocks_is_not_waited_for_and_is_killed_at_the_end(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The queue of the learner holds the newest records; those in the pipe and in the queue are lost."""
    monkeypatch.setattr(remote, "MAX_QUEUE", 100)
    path = tmp_path / "lines"
    path.touch()
    with caplog.at_level(logging.WARNING), nothing_left():
        recorder = RemoteRecorder("mine", partial(Lines, path, "block"), finish_s=0.5)
        write(recorder, range(2))
        wait_until(lambda: path.read_text() == "0\n1\n", "the first records")  # the process may start slowly
        write(recorder, range(2, 20_000))
        recorder.close()
    assert path.read_text() == "0\n1\n"
    assert recorder.dropped == 19_998
    assert "mine has not ended after 0.5 s and is killed" in caplog.text


def test_the_end_of_a_run_that_was_stopped_waits_less(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "STOPPED_S", 0.5)
    recorder = RemoteRecorder("mine", partial(Lines, tmp_path / "lines", "block"), 1000.0, lambda: True)
    write(recorder, range(10))
    with caplog.at_level(logging.WARNING):
        recorder.close()
    assert "mine has not ended after 0.5 s and is killed" in caplog.text


def test_a_recorder_learns_whether_the_run_has_failed(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    for error in (ValueError(), Interrupted(ExitCode.SIGTERM)):
        with pytest.raises(type(error)):
            try:
                raise error
            finally:
                written(path, n=1)
    assert path.read_text() == "0\nfailed\n0\n"
