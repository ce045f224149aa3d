"""Watching processes through /proc, and waiting for what they do. Linux only."""

from __future__ import annotations

import contextlib
import os
import select
from collections.abc import Callable
from pathlib import Path

from border_cli.runtime.clock import Backoff, Deadline

ROOT = Path(__file__).parents[2]
TIMEOUT_S = 30.0
GONE_S = 5.0
"""How long after a run's end some process of it may still be leaving."""


def processes(parent: int | None = None, session: int | None = None) -> list[int]:
    """Living processes with this parent, or of this session."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                alive = fields[0] not in ("Z", "X")
                if alive and (int(fields[1]) == parent or int(fields[3]) == session):
                    found.append(int(entry.name))
    return found


def handles(pid: int, number: int) -> bool:
    """Whether a process has a handler of its own for this signal."""
    status = Path(f"/proc/{pid}/status").read_text()
    caught = next(line.split()[1] for line in status.splitlines() if line.startswith("SigCgt:"))
    return bool(int(caught, 16) >> (number - 1) & 1)


def wait_until(done: Callable[[], bool], what: str, timeout_s: float = TIMEOUT_S) -> None:
    backoff, deadline = Backoff(), Deadline(timeout_s)
    while not done():
        assert not deadline.passed, f"waited in vain for {what}"
        backoff.sleep()


def wait_gone(pid: int) -> None:
    """Return when the process has ended."""
    with contextlib.suppress(ProcessLookupError):
        descriptor = os.pidfd_open(pid)
        readable, _, _ = select.select([descriptor], [], [], TIMEOUT_S)
        os.close(descriptor)
        assert readable, f"process {pid} is still there"


def assert_session_ends(session: int) -> None:
    """No process of this session lives GONE_S from now."""
    deadline, backoff = Deadline(GONE_S), Backoff()
    while processes(session=session) and not deadline.passed:
        backoff.sleep()
    left = processes(session=session)
    assert not left, f"still there after {GONE_S:g} s: {left}"
