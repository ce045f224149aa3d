"""A child process as the learner holds it: nothing that the child does or leaves undone keeps the learner waiting."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection

import pytest

from border_cli.runtime import forkserver
from border_cli.runtime.parcel import Parcel
from border_cli.runtime.resources import open_descriptors
from border_cli.runtime.worker import Worker
from tests.fakes import LIGHT_PRELOAD
from tests.faults.processes import TIMEOUT_S, wait_until

ORDER = bytes(range(256)) * 20_000
"""Many times what fits into a pipe."""


@dataclass(frozen=True)
class Links:
    pipe: Connection
    order: Parcel


@pytest.fixture(autouse=True)
def _light_forkserver() -> None:
    forkserver.start_early(LIGHT_PRELOAD)


def stop_before_reading(links: Links) -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def read(links: Links) -> None:
    links.pipe.send(links.order.open() == ORDER)


def start(entry: Callable[[Links], None]) -> Worker:
    """A worker with a large order, started in a thread: one that blocks fails the test."""
    started: list[Worker] = []
    thread = threading.Thread(
        target=lambda: started.append(Worker("worker", entry, Links, ORDER)), daemon=True
    )
    thread.start()
    thread.join(TIMEOUT_S)
    assert started, "the learner waits for the child"
    return started[0]


def test_an_order_of_any_size_is_given_to_a_child_that_never_reads_it() -> None:
    before = open_descriptors()
    worker = start(stop_before_reading)
    pid = worker.pid
    assert pid is not None
    worker.end()
    assert forkserver.pid_gone(pid)
    assert open_descriptors() <= before + 2  # those of the forkserver, where this was the first child


def test_an_order_of_any_size_arrives_whole() -> None:
    worker, heard = start(read), list[object]()

    def answered() -> bool:
        heard.extend(worker.heard())
        return bool(heard)

    wait_until(answered, "the answer")
    worker.end()
    assert heard == [True]
