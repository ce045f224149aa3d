"""Standard output that never blocks or ends a run: a slow reader of a pipe misses lines, a closed one is ignored."""

from __future__ import annotations

import io
import logging
import os
import select
import stat
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, redirect_stdout
from typing import IO

_logger = logging.getLogger(__name__)


class SafeStream:
    """Writes until the stream fails; then `open` is false. stream: called each time, as a console follows `sys.stdout`."""

    def __init__(self, stream: Callable[[], IO[str]]) -> None:
        self._stream = stream
        self.open = True

    def attempt(self, write: Callable[[], object]) -> None:
        """Write, unless the stream is closed. Other errors of `write` are raised."""
        if not self.open:
            return
        try:
            write()
        except OSError as e:
            self._close(str(e))
        except ValueError as e:
            if not self._stream().closed:  # then it is no "I/O operation on closed file" but a defect
                raise
            self._close(str(e))
        except SystemExit:  # rich raises it for a broken pipe
            self._close("broken pipe")

    def write_line(self, text: str) -> None:
        """Write printable text and a newline, and flush them."""

        def write() -> None:
            stream = self._stream()
            stream.write(f"{printable(text, getattr(stream, 'encoding', None) or 'utf-8')}\n")
            stream.flush()

        self.attempt(write)

    def _close(self, reason: str) -> None:
        self.open = False  # before logging: the message may be on its way back to this stream
        discard(self._stream())
        _logger.warning("output stopped, training continues: %s", reason)


def printable(text: str, encoding: str) -> str:
    """Text that this encoding can hold; control characters, which a terminal would obey, become spaces."""
    visible = "".join(c if c.isprintable() or c == "\n" else " " for c in text)
    return visible.encode(encoding, "replace").decode(encoding)


def discard(stream: IO[str]) -> None:
    """Send buffered text to /dev/null: otherwise the flush at exit fails and changes the exit code."""
    try:
        descriptor = stream.fileno()
    except (OSError, ValueError):
        return  # closed, or no file behind it: nothing is left to be flushed
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, descriptor)
    os.close(nowhere)


_QUEUE_BYTES = 256 * 1024
_LAST_WAIT_S = 2.0
"""At the end, the longest wait for a reader that takes nothing [s]."""


def may_block(stream: IO[str]) -> bool:
    """Whether writing may wait for a reader: a pipe or a socket does, a file or a stream in memory does not."""
    try:
        mode = os.fstat(stream.fileno()).st_mode
    except (OSError, ValueError):
        return False  # closed, or no file behind it
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)


@contextmanager
def nonblocking_stdout() -> Iterator[None]:
    """Replace `sys.stdout` by a NonblockingStream inside the block, if writing to it may block."""
    stdout = sys.stdout
    # The stdout of a notebook shows lines in its cell; its descriptor leads elsewhere.
    if not isinstance(stdout, io.TextIOWrapper) or not may_block(stdout):
        yield
        return
    SafeStream(lambda: stdout).attempt(stdout.flush)
    with closing(NonblockingStream(stdout)) as stream, redirect_stdout(stream):
        yield


class NonblockingStream(io.TextIOBase):
    """A text stream that queues what is written; a thread writes the queue to `target`.

    What is flushed while more than _QUEUE_BYTES wait is dropped; once there is room again, a line says how many lines
    are missing. An error of the target, such as a broken pipe, is raised by the next `write`.
    """

    def __init__(self, target: IO[str]) -> None:
        self._target = target
        # A copy, which bypasses Python's buffer: a thread that blocks in the buffer would keep the process from ending.
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
        """The encoding of the wrapped stream."""
        return getattr(self._target, "encoding", None) or "utf-8"

    def fileno(self) -> int:
        """The descriptor of the wrapped stream."""
        return self._target.fileno()

    def write(self, text: str) -> int:
        """Keep the text for the next `flush`. Raises the error that earlier text met."""
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
        with self._changed:
            if not text or self._error is not None:
                return
            if self._queued > _QUEUE_BYTES:
                self._missing += text.count("\n")
                return
            if self._missing:
                text = f"... {self._missing} lines are missing here: the reader was too slow\n{text}"
                self._missing = 0
            piece = text.encode(self.encoding, "replace")
            self._queue.append(piece)
            self._queued += len(piece)
            self._changed.notify_all()

    def close(self) -> None:
        """Wait as long as the reader takes what is queued, at most _LAST_WAIT_S for the next byte."""
        if self.closed:
            return
        self.flush()
        super().close()
        with self._changed:
            self._ending = True
            self._changed.notify_all()
            left = self._queued + 1
            while 0 < self._queued < left:  # the reader took something since the last round
                left = self._queued
                self._changed.wait(_LAST_WAIT_S)
        if self._queued == 0:
            self._thread.join()
            os.close(self._descriptor)  # else the thread still uses it, and it is closed with the process

    def _write_all(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._queue or self._ending)
                if not self._queue:
                    return
                piece = self._queue.popleft()
            try:
                while piece:
                    piece = self._write_some(piece)
            except OSError as e:
                with self._changed:
                    self._error = e
                    self._queue.clear()
                    self._queued = 0
                    self._changed.notify_all()
                return

    def _write_some(self, piece: bytes) -> bytes:
        """Write as much as the reader takes; the rest."""
        try:
            written = os.write(self._descriptor, piece)
        except BlockingIOError:  # another process has made the pipe non-blocking
            pipe = select.poll()
            pipe.register(self._descriptor, select.POLLOUT)
            pipe.poll()
            return piece
        with self._changed:
            self._queued -= written
            self._changed.notify_all()
        return piece[written:]
