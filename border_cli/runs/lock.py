"""One process per run directory."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from border_cli.core.errors import UsageError

LOCK_FILE = ".lock"


@contextlib.contextmanager
def locked(run_dir: Path) -> Iterator[None]:
    """Hold the run for as long as this lasts. Raises UsageError, at once, while another process holds it.

    The system lets go of the lock when its process ends, however that happens: none is ever left over.
    """
    path = run_dir / LOCK_FILE
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as e:
        raise UsageError(
            f"{path} cannot be written: {e.strerror}\nallowed: a run that you may write to"
        ) from e
    try:
        _take(descriptor, run_dir)
        yield
    finally:
        os.close(descriptor)


def is_held(run_dir: Path) -> bool:
    """Whether a living process holds the run."""
    try:
        with locked(run_dir):
            return False
    except UsageError:
        return True


def _take(descriptor: int, run_dir: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as e:
        holder = os.pread(descriptor, 100, 0).decode("ascii", "replace").strip()
        raise UsageError(
            f"{run_dir} is being trained by another process{f' ({holder})' if holder else ''}\n"
            "allowed: wait for it, or stop it"
        ) from e
    except OSError:
        return  # a file system without locks: nobody can be told apart there
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, f"pid {os.getpid()}\n".encode("ascii"), 0)
