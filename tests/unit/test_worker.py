"""A child process of the learner. Nothing that the child does or omits blocks the learner."""

from __future__ import annotations

import logging
import os
import signal
import threading

import psutil
import pytest

from border_cli.runtime import forkserver
from border_cli.runtime.child import MESSAGE_BYTES, Reporter
from border_cli.runtime.supervised import ChildProcess, Failed, Main, SpawnArgs
from tests.fakes import LIGHT_PRELOAD
from tests.faults.processes import TIMEOUT_S, wait_until

SETUP = bytes(range(256)) * 20_000
"""Many times what fits into a pipe."""


@pytest.fixture(autouse=True)
def _light_forkserver() -> None:
    forkserver.start_early(LIGHT_PRELOAD)


def stop_before_reading(shared: None, setup: SpawnArgs, reporter: Reporter) -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def read(shared: None, setup: SpawnArgs, reporter: Reporter) -> None:
    reporter.send(setup.open() == SETUP)


def fail(shared: None, setup: SpawnArgs, reporter: Reporter) -> None:
    logging.getLogger("tests").warning("x" * 20_000)
    raise SystemExit("it is over")


def start(main: Main) -> ChildProcess:
    """Start a process with a large setup in a thread. A start that blocks fails the test."""
    started: list[ChildProcess] = []
    thread = threading.Thread(
        target=lambda: started.append(ChildProcess("worker", main, None, SETUP)), daemon=True
    )
    thread.start()
    thread.join(TIMEOUT_S)
    assert started, "the learner waits for the child"
    return started[0]


def test_a_setup_of_any_size_can_be_sent_to_a_child_that_never_reads_it() -> None:
    before = psutil.Process().num_fds()
    worker = start(stop_before_reading)
    pid = worker.pid
    assert pid is not None
    worker.end()
    assert forkserver.pid_gone(pid)
    assert (
        psutil.Process().num_fds() <= before + 2
    )  # the descriptors of multiprocessing itself, if this is the first child


def test_a_setup_of_any_size_arrives_completely() -> None:
    worker, heard = start(read), list[object]()
    wait_until(lambda: heard.extend(worker.receive()) or heard, "the answer")
    worker.end()
    assert heard == [True]


def test_long_exceptions_and_log_lines_arrive_clipped(caplog: pytest.LogCaptureFixture) -> None:
    worker, heard = start(fail), list[object]()
    wait_until(lambda: heard.extend(worker.receive()) or worker.exited(), "its end")
    heard.extend(worker.receive(last=True))
    (failed,) = heard
    assert isinstance(failed, Failed)
    assert failed.error == "worker failed: SystemExit: it is over"
    assert "test_worker.py" in failed.traceback
    assert worker.exit_reason == "exited with code 1"
    (record,) = caplog.records
    assert (record.name, record.levelname) == ("tests", "WARNING")
    assert 10_000 < len(record.getMessage()) <= MESSAGE_BYTES + 10
    worker.end()
