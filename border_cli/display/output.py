"""Standard output and error of a run, written by one thread, so that a slow or missing reader never stops the run."""

from __future__ import annotations

import io
import logging
import os
import re
import select
import shutil
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from itertools import groupby
from typing import IO

_logger = logging.getLogger(__name__)

REDRAW_S = 0.25
"""Time between two frames [s]. Lines above a frame wait as long."""
_ROOM = 256 * 1024
"""Characters that may wait for a reader."""
_LAST_S = 2.0
"""How long the end of a run waits for a reader [s]."""
_ERASE = "\x1b[1A\x1b[2K"
"""Go to the line above, and clear it."""


def printable(text: str, encoding: str = "utf-8") -> str:
    """Text that this encoding can hold; control characters, which a terminal would obey, become spaces."""
    visible = "".join(c if c.isprintable() or c == "\n" else " " for c in text)
    return visible.encode(encoding, "replace").decode(encoding)


def wrapped(line: str, width: int, indent: str = "") -> str:
    """The line with breaks between words, indented behind them; a command, which may be copied, stays in one piece."""
    if re.search("border-(?!cli)", line):
        return line
    return textwrap.fill(
        line, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )


def write_line(stream: IO[str] | QueuedStream, text: str) -> None:
    """Write printable text and a newline, and flush them. On a terminal, lines break between words."""
    text = printable(text, getattr(stream, "encoding", None) or "utf-8")
    if stream.isatty():
        width = shutil.get_terminal_size().columns
        text = "\n".join(wrapped(line, width) for line in text.split("\n"))
    stream.write(f"{text}\n")
    stream.flush()


@contextmanager
def output() -> Iterator[Output]:
    """Replace `sys.stdout` and `sys.stderr` by streams that never block or raise, unless that is done already."""
    if isinstance(sys.stdout, QueuedStream):
        yield sys.stdout.output
        return
    writer = Output(sys.stdout, sys.stderr)
    try:
        with redirect_stdout(writer.stdout), redirect_stderr(writer.stderr):
            yield writer
    finally:
        writer.close()


class Output:
    """A thread that writes lines to two streams and, if there is one, a frame below them.

    Lines wait for it in a queue. Those for which there is no room are dropped, and the next one says how many. The frame is
    drawn again every REDRAW_S seconds, from the state of that moment.
    """

    def __init__(self, stdout: IO[str], stderr: IO[str]) -> None:
        self.stdout, self.stderr = QueuedStream(self, stdout), QueuedStream(self, stderr)
        self._queue: list[tuple[QueuedStream, str]] = []
        self._waiting = 0  # characters, those included that are being written
        self._missing = 0  # lines
        self._frame: Callable[[], str] | None = None
        self._height = 0  # lines of the frame that is on the screen
        self._pid: int | None = os.getpid()
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._write_all, name="output", daemon=True)
        self._thread.start()

    def draw(self, frame: Callable[[], str] | None) -> None:
        """Keep a frame below the lines on stdout, or remove it. frame: returns its lines; called in the thread."""
        began = self._frame is None
        self._frame = frame
        if began and frame is not None:
            with self._changed:
                self._changed.notify_all()

    def put(self, stream: QueuedStream, text: str) -> bool:
        """Queue the complete lines, or drop them if there is no room. Returns False after the end, or after a fork."""
        if self._pid != os.getpid():
            return False
        with self._changed:
            head, newline, stream.rest = (stream.rest + text).rpartition("\n")
            lines = head + newline
            if not lines:
                return True
            if self._waiting > _ROOM:
                self._missing += lines.count("\n")
                return True
            if self._missing:
                lines = f"... {self._missing} lines are missing here: the reader was too slow\n{lines}"
                self._missing = 0
            self._queue.append((stream, lines))
            self._waiting += len(lines)
            self._changed.notify_all()
        return True

    def close(self) -> None:
        """Wait at most _LAST_S seconds until all is written. After that, the streams write without the thread."""
        with self._changed:
            self._pid = None
            self._changed.notify_all()
        self._thread.join(_LAST_S)  # a reader that takes nothing keeps it until the process ends

    def _write_all(self) -> None:
        while self._pid is not None:
            with self._changed:
                if self._frame is None:
                    self._changed.wait_for(lambda: self._queue or self._frame or self._pid is None)
                else:
                    self._changed.wait_for(lambda: self._pid is None, REDRAW_S)
            self._write()
        self._write()
        for stream in (self.stdout, self.stderr):
            stream.release()

    def _write(self) -> None:
        """Erase the frame, write what was queued, draw the frame again."""
        with self._changed:
            pieces, self._queue = self._queue, []
        drawing = self._frame
        try:
            frame = drawing() if drawing is not None else ""
        except Exception:
            self._frame, frame = None, ""
            _logger.exception("nothing is drawn any more, training continues")
        whole = [(self.stdout, _ERASE * self._height), *pieces, (self.stdout, frame)]
        self._height = frame.count("\n")
        for stream, group in groupby(whole, lambda piece: piece[0]):
            stream.write_now("".join(text for _, text in group))
        with self._changed:
            self._waiting -= sum(len(text) for _, text in pieces)


class QueuedStream(io.TextIOBase):
    """A text stream whose lines an Output writes; the rest of a line waits until it is complete.

    Lines go straight to the descriptor, because a thread that blocks in Python's own buffer would keep the process from
    ending. A stream without a descriptor, such as a notebook's, is written to as usual.
    """

    def __init__(self, output: Output, stream: IO[str]) -> None:
        self.output = output
        self._stream = stream
        self.rest = ""
        self._broken = False
        self._descriptor: int | None = None
        if isinstance(stream, io.TextIOWrapper):
            with suppress(OSError, ValueError):  # closed, or no file behind it
                stream.flush()
                self._descriptor = os.dup(stream.fileno())

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return getattr(self._stream, "encoding", None) or "utf-8"

    def fileno(self) -> int:
        return self._stream.fileno()

    def isatty(self) -> bool:
        return not self._stream.closed and self._stream.isatty()

    def write(self, text: str) -> int:
        """Queue the text, or where there is no thread for it, write it."""
        if not self.output.put(self, text):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        """Complete lines are on their way already. The finalizer calls this too, when the stream may be closed."""
        if not self.output.put(self, "") and not self._stream.closed:
            self._stream.flush()

    def write_now(self, text: str) -> None:
        """Write, and wait for the reader. If the stream fails, this and all later text is dropped, with one warning."""
        if not text or self._broken:
            return
        try:
            if self._descriptor is None:
                self._stream.write(text)
                self._stream.flush()
                return
            data = text.encode(self.encoding, "replace")
            while data:
                try:
                    data = data[os.write(self._descriptor, data) :]
                except BlockingIOError:  # another process has made the pipe non-blocking
                    pipe = select.poll()
                    pipe.register(self._descriptor, select.POLLOUT)
                    pipe.poll()
        except (OSError, ValueError) as e:
            self._broken = True
            _logger.warning("output stopped, training continues: %s", getattr(e, "strerror", None) or e)

    def release(self) -> None:
        """Write the rest of the last line, and close the descriptor."""
        self.write_now(self.rest)
        self.rest = ""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
