"""Reads processes from /proc, waits for conditions, and audits what processes leave behind. Linux only."""

from __future__ import annotations

import contextlib
import gc
import os
import select
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from multiprocessing import resource_tracker as tracker
from pathlib import Path
from typing import Any

from border_cli.runtime import forkserver
from border_cli.runtime.child import Child, call
from border_cli.runtime.stopping import Backoff, Deadline
from tests import warm

ROOT = Path(__file__).parents[2]
TIMEOUT_S = 120.0
START_S = 200.0
"""Enough for two processes to import torch on a busy machine."""
GONE_S = 5.0
"""How long after a run's end some process of it may still be leaving."""
PAUSE_S = 0.03
"""Between two looks at files or processes of a command."""


def processes(*parents: int | None, session: int | None = None) -> list[int]:
    """Return the living processes with one of these parents, or of this session."""
    results = []
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            with contextlib.suppress(OSError), Path(f"/proc/{entry.name}/stat").open("rb") as file:
                fields = file.read().rpartition(b")")[2].split()
                alive = fields[0] not in (b"Z", b"X")
                if alive and (int(fields[1]) in parents or int(fields[3]) == session):
                    results.append(int(entry.name))
    return results


def handles(pid: int, number: int, masks: tuple[str, ...] = ("SigCgt",)) -> bool | None:
    """Whether a process has its own handler for this signal; None if it has ended. masks: the fields of /proc status."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return any(int(line.split()[1], 16) >> (number - 1) & 1 for line in lines if line.startswith(masks))


def wait_until(
    done: Callable[[], bool], what: str, timeout_s: float = TIMEOUT_S, longest_pause_s: float = 5e-3
) -> None:
    backoff, deadline = Backoff(last_s=longest_pause_s), Deadline(timeout_s)
    while not done():
        assert not deadline.passed, f"waited in vain for {what}"
        backoff.sleep()


def run_in_child(
    function: Callable[..., Any],
    args: tuple[Any, ...],
    timeout_s: float,
    waiting: Callable[[], None] = lambda: None,
) -> Any:
    """The result of `function(*args)` in a child process, which has ended when this returns. Raises as `Child.answer`."""
    return Child(function.__name__, call, (function, args)).answer(timeout_s, waiting)


def wait_gone(pid: int) -> None:
    """Wait until the process has ended."""
    with contextlib.suppress(ProcessLookupError):
        descriptor = os.pidfd_open(pid)
        readable, _, _ = select.select([descriptor], [], [], TIMEOUT_S)
        os.close(descriptor)
        assert readable, f"process {pid} is still there"


def assert_session_ends(session: int) -> None:
    """Check that no process of this session lives GONE_S from now."""
    wait_until(lambda: not processes(session=session), "the end of its processes", GONE_S, PAUSE_S)


# -- the audit ----------------------------------------------------------


@contextmanager
def nothing_left() -> Iterator[None]:
    """Check that the block leaves no process, descriptor or shared memory behind.

    The forkserver and its resource tracker may stay: they serve all tests of this process.
    """
    before, descriptors = _held()
    yield
    left = ""

    def gone() -> bool:
        nonlocal left
        held, now = _held()
        left = f"{sorted(map(str, held - before))}, {now - descriptors} descriptors"
        return held <= before and now <= descriptors

    deadline, backoff = Deadline(GONE_S), Backoff(last_s=PAUSE_S)
    while not gone():
        assert not deadline.passed, f"left behind: {left}"
        gc.collect()  # a caught exception keeps its frames alive
        backoff.sleep()


def _held() -> tuple[set[int | str], int]:
    """Return child processes, named memory and the number of descriptors, without those of the forkserver."""
    tracking: Any = tracker._resource_tracker
    helpers = {forkserver.forkserver_pid(), warm.warm_pid(), tracking._pid}
    children = set(processes(os.getpid(), forkserver.forkserver_pid()))
    ours = {os.getpid(), *children, *helpers} - {None}
    descriptors = len(list(Path("/proc/self/fd").iterdir()))
    descriptors -= sum(pid is not None for pid in (forkserver.forkserver_pid(), tracking._fd))
    descriptors -= warm.n_descriptors()
    return {*(children - helpers), *named_memory(ours)}, descriptors


def named_memory(pids: Iterable[int | None]) -> set[str]:
    """Return the files in the shared memory folder that one of these processes has mapped or opened.

    Other programs use that folder too.
    """
    results = set[str]()
    for pid in pids:
        with contextlib.suppress(OSError):  # the process has just ended
            maps = Path(f"/proc/{pid}/maps").read_text().splitlines()
            results |= {path for line in maps for path in line.split(maxsplit=5)[5:]}
            for link in Path(f"/proc/{pid}/fd").iterdir():
                with contextlib.suppress(FileNotFoundError):  # the descriptor of the listing itself
                    results.add(str(link.readlink()))
    return {path for path in results if path.startswith("/dev/shm/")}
