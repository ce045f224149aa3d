"""Nothing may be left behind by a test: no process below this one, no descriptor, nothing in the shared memory folder."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import forkserver as server
from multiprocessing import resource_tracker as tracker
from pathlib import Path
from typing import Any

from border_cli.runtime import forkserver
from border_cli.runtime.clock import Backoff, Deadline
from tests.faults.processes import GONE_S, processes

_SHARED = Path("/dev/shm")


@contextmanager
def nothing_left() -> Iterator[None]:
    """As long as this lasts, processes, descriptors and shared memory may come; none may stay.

    The forkserver and its tracker may: they serve all tests of this process.
    """
    before = _Left.now()
    yield
    deadline, backoff = Deadline(GONE_S), Backoff()
    while (left := _Left.now().beyond(before)) and not deadline.passed:
        gc.collect()  # an exception that was looked at holds on to the frames it went through
        backoff.sleep()
    assert not left, f"left behind: {left}"


@dataclass(frozen=True)
class _Left:
    processes: frozenset[int]
    shared: frozenset[str]
    descriptors: int

    @classmethod
    def now(cls) -> _Left:
        helpers = {forkserver.forkserver_pid(), _of(tracker, "_resource_tracker", "_pid")}
        children = {*processes(parent=os.getpid()), *processes(parent=forkserver.forkserver_pid())}
        own = (server, "_forkserver", "_forkserver_alive_fd"), (tracker, "_resource_tracker", "_fd")
        descriptors = len(list(Path("/proc/self/fd").iterdir())) - sum(_of(*path) is not None for path in own)
        return cls(frozenset(children - helpers), _shared(), descriptors)

    def beyond(self, before: _Left) -> str:
        """What there is now and was not before, empty if nothing."""
        found = [f"process {pid}" for pid in self.processes - before.processes]
        found += [f"{_SHARED}/{name}" for name in self.shared - before.shared]
        more = self.descriptors - before.descriptors
        return ", ".join(found + ([f"{more} descriptors"] if more > 0 else []))


def _of(module: Any, *names: str) -> Any:
    for name in names:
        module = getattr(module, name)
    return module


def _shared() -> frozenset[str]:
    """What of ours is in the folder. Nobody of ours puts anything there, so others' tests beside this one do not either."""
    if not _SHARED.is_dir():
        return frozenset()
    return frozenset(
        entry.name for entry in os.scandir(_SHARED) if entry.stat(follow_symlinks=False).st_uid == os.getuid()
    )
