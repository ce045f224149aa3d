"""A stream for whoever reads a pipe: who stops reading misses lines, and the run goes on."""

from __future__ import annotations

import io
import os
import select
import stat
import sys
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import closing, contextmanager, redirect_stdout
from functools import partial
from typing import IO

from border_cli.recorders.outlet import Outlet

_QUEUE_BYTES = 256 * 1024
_LAST_WAIT_S = 2.0
"""At the end, wait so long for a reader that takes nothing."""


def may_block(stream: IO[str]) -> bool:
    """Whether writing may wait for a reader: a pipe or a socket does, a file or a stream in memory does not."""
    try:
        mode = os.fstat(stream.fileno()).st_mode
    except (OSError, ValueError):
        return False  # closed, or no file behind it
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)


@contextmanager
def queued_stdout() -> Iterator[None]:
    """For as long as this lasts, a queue takes the place of `sys.stdout`, if writing to that may block."""
    stdout = sys.stdout
    if isinstance(stdout, QueuedStream) or not may_block(stdout):
        yield
        return
    Outlet(lambda: stdout).attempt(stdout.flush)
    with closing(QueuedStream(stdout)) as stream, redirect_stdout(stream):
        yield


class QueuedStream(io.TextIOBase):
    """Text on its way to `target`, whose descriptor a thread of its own writes to.

    What is flushed while more than _QUEUE_BYTES wait is dropped; once there is room again, a line says how many lines
    are missing. An error of the target, such as a broken pipe, is raised by the next `write`.
    """

    def __init__(self, target: IO[str]) -> None:
        self._target = target
        # Of our own, and past Python's buffer: a thread that hangs in that would keep the process from ending.
        self._descriptor = os.dup(target.fileno())
        self._pending: list[str] = []
        self._queue: deque[bytes] = deque()
        self._queued = 0  # bytes, the piece that is being written included
        self._missing = 0  # lines
        self._error: OSError | None = None
        self._ending = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._write_all, name="stdout", daemon=True)
        self._thread.start()

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """Of the target."""
        return getattr(self._target, "encoding", None) or "utf-8"

    def fileno(self) -> int:
        """Of the target."""
        return self._target.fileno()

    def writable(self) -> bool:
        """It is."""
        return True

    def write(self, text: str) -> int:
        """Keep the text for the next `flush`. Raises what became of earlier text."""
        if self.closed:
            raise ValueError("I/O operation on closed file")
        if self._error is not None:
            raise self._error
        self._pending.append(text)
        return len(text)

    def flush(self) -> None:
        """Queue what was written, or drop it. Never waits for the reader."""
        text = "".join(self._pending)
        self._pending.clear()
        if text:
            with self._changed:
                self._enqueue(text)
                self._changed.notify_all()

    def close(self) -> None:
        """Wait for the reader as long as it reads, then let go."""
        if self.closed:
            return
        self.flush()
        super().close()
        with self._changed:
            self._ending = True
            self._changed.notify_all()
            drained = self._drained()
        if drained:
            self._thread.join()
            os.close(self._descriptor)  # else the thread still has it, and it goes with the process

    def _drained(self) -> bool:
        """Wait while the reader takes what is queued; whether it took all of it."""
        while left := self._queued:
            if not self._changed.wait_for(partial(self._fewer_than, left), _LAST_WAIT_S):
                return False
        return True

    def _fewer_than(self, left: int) -> bool:
        return self._queued < left

    def _enqueue(self, text: str) -> None:
        if self._error is not None:
            return
        if self._queued > _QUEUE_BYTES:
            self._missing += text.count("\n")
            return
        if self._missing:
            text = f"... {self._missing} lines are missing here: nobody read them in time\n{text}"
            self._missing = 0
        piece = text.encode(self.encoding, "replace")
        self._queue.append(piece)
        self._queued += len(piece)

    def _write_all(self) -> None:
        while piece := self._next():
            try:
                self._write(piece)
            except OSError as e:
                with self._changed:
                    self._error = e
                    self._queue.clear()
                    self._queued = 0
                    self._changed.notify_all()
                return

    def _next(self) -> bytes:
        """The next piece; empty at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._queue or self._ending)
            return self._queue.popleft() if self._queue else b""

    def _write(self, piece: bytes) -> None:
        while piece:
            try:
                written = os.write(self._descriptor, piece)
            except BlockingIOError:  # another process has set its end to that
                select.select([], [self._descriptor], [])
                continue
            piece = piece[written:]
            with self._changed:
                self._queued -= written
                self._changed.notify_all()
