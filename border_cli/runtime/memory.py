"""Anonymous memory that the learner shares with the children it starts.

A block has no name: it is reached through a descriptor that is handed over while a child is started, and it
is gone with the last process that holds it, however that process ends. All of it is allocated at once, so
that too little memory is an error at the start and never a bus error in the middle of a run.
"""

from __future__ import annotations

import errno
import math
import mmap
import os
import platform
import tempfile
import threading
from collections.abc import Callable
from multiprocessing import context, reduction
from typing import Any

import numpy as np

from border_cli.core.errors import ResourceError
from border_cli.core.spaces import Array

CACHE_LINE = 64
WORD = 8
_ZEROS = bytes(1 << 20)


class Layout:
    """Hands out places in a block that is still to be made, each on a cache line of its own."""

    def __init__(self) -> None:
        self.size = 0

    def reserve(self, nbytes: int) -> int:
        """Offset of the next `nbytes` bytes."""
        offset = self.size
        self.size += -(-nbytes // CACHE_LINE) * CACHE_LINE
        return offset


class Block:
    """`size` bytes of zeros, shared with every child they are passed to as an argument of its process.

    Raises ResourceError when the memory or a descriptor cannot be had.
    """

    def __init__(self, size: int, purpose: str) -> None:
        self.size = max(size, CACHE_LINE)
        self._purpose = purpose
        self._fd = -1
        try:
            self._fd = _allocate(self.size)
            self._map = mmap.mmap(self._fd, self.size)
        except OSError as error:
            raise resource_error(error, purpose, self.size) from error

    def words(self, offset: int, n: int) -> memoryview:
        """View of n aligned 8-byte signed words; one of them is read or written as a whole."""
        return memoryview(self._map)[offset : offset + n * WORD].cast("q")

    def array(self, offset: int, shape: tuple[int, ...], dtype: str) -> Array:
        """A view of the block as an array."""
        return np.frombuffer(self._map, dtype, math.prod(shape), offset).reshape(shape)

    def close(self) -> None:
        """Give the descriptor back. The memory goes with the last view of it."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __del__(self) -> None:
        self.close()

    def __reduce__(self) -> tuple[Callable[..., Block], tuple[Any, ...]]:
        context.assert_spawning(self)
        return _attach, (reduction.DupFd(self._fd), self.size, self._purpose)


def _attach(handle: Any, size: int, purpose: str) -> Block:
    """The block of the parent, in the child."""
    block = Block.__new__(Block)
    block.size, block._purpose = size, purpose
    block._fd = handle.detach()
    block._map = mmap.mmap(block._fd, size)
    block.close()
    return block


def _allocate(size: int) -> int:
    """Descriptor of `size` bytes that have no name and are really there."""
    fd = _nameless_file()
    try:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(fd, 0, size)
        else:
            _fill(fd, size)
    except OSError:
        os.close(fd)
        raise
    return fd


def _nameless_file() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("border-cli")
    fd, path = tempfile.mkstemp(prefix="border-cli-")
    os.unlink(path)  # noqa: PTH108 - the path comes as a string and lives for one line
    return fd


def _fill(fd: int, size: int) -> None:
    """Make a file `size` long by writing, where nothing allocates ahead of writing."""
    written = 0
    while written < size:
        written += os.write(fd, _ZEROS[: size - written])


def resource_error(error: OSError, purpose: str, nbytes: int = 0) -> ResourceError:
    """What to tell a person when the system refused memory or a descriptor."""
    if error.errno in (errno.EMFILE, errno.ENFILE):
        return ResourceError(
            f"{purpose}: no file descriptor left, this process may hold {_descriptor_limit()}\n"
            "allowed: a higher limit (`ulimit -n`), or a smaller n_actors"
        )
    if not nbytes and error.errno not in (errno.ENOMEM, errno.ENOSPC):
        return ResourceError(
            f"{purpose}: {error.strerror or type(error).__name__}\n"
            "allowed: a smaller n_actors, or a higher limit of processes (`ulimit -u`, a container's pids.max)"
        )
    return ResourceError(
        f"{purpose} needs {_mib(nbytes)}, {_mib(_free_bytes())} are free: {error.strerror}\n"
        "allowed: a smaller actor_manager.ring_rows or n_actors"
    )


def _descriptor_limit() -> int:
    return os.sysconf("SC_OPEN_MAX")


def _mib(nbytes: int) -> str:
    return f"{nbytes / 2**20:.1f} MiB"


def _free_bytes() -> int:
    if "SC_AVPHYS_PAGES" not in os.sysconf_names:
        return 0
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _no_fence() -> None:
    """Processors of the x86 family keep stores, and loads, in order for others to see."""


def _lock_fence() -> None:
    """Elsewhere, what comes before two uses of a lock is seen before what comes after them."""
    for _ in range(2):
        with _FENCE_LOCK:
            pass


_FENCE_LOCK = threading.Lock()  # of this process alone: only the instructions behind it matter
fence = _no_fence if platform.machine().lower() in ("x86_64", "amd64", "i686") else _lock_fence
"""Put between the data and the word that announces it, on both sides."""
