"""What a child process and the learner say to each other through the child's own pipe.

A message is kept so small that a socket takes it as a whole: a learner that sees the beginning of one never
has to wait for the rest, even if the child was stopped or killed meanwhile.
"""

from __future__ import annotations

import logging
import multiprocessing
import threading
from dataclasses import dataclass
from multiprocessing.connection import Connection

from border_cli.runtime.memory import resource_error

MESSAGE_BYTES = 12_000
"""More text than this is not sent at once."""


@dataclass(frozen=True)
class LogLine:
    """One log record, formatted."""

    logger: str
    level: int
    text: str

    def log(self) -> None:
        """Log it in this process, as if it had happened here."""
        logger = logging.getLogger(self.logger)
        if logger.isEnabledFor(self.level):
            logger.log(self.level, "%s", self.text)


class Reporter:
    """The child's end of its pipe, for all threads of its process."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe
        self._lock = threading.Lock()

    def send(self, message: object) -> None:
        """Send one message. Waits while the pipe is full; nothing happens when the learner is gone."""
        try:
            with self._lock:
                self._pipe.send(message)
        except (BrokenPipeError, ConnectionResetError):
            return  # the learner died; the watchdog ends this process


class PipeLogHandler(logging.Handler):
    """Sends log records to the learner, whose handlers write them."""

    def __init__(self, reporter: Reporter) -> None:
        super().__init__()
        self._reporter = reporter

    def emit(self, record: logging.LogRecord) -> None:
        """Format the record here, where its arguments are."""
        try:
            line = LogLine(record.name, record.levelno, clipped(self.format(record)))
        except (TypeError, ValueError):  # the arguments do not fit the format: logging reports it on stderr
            self.handleError(record)
            return
        self._reporter.send(line)


def log_through(reporter: Reporter, who: str, level: int) -> None:
    """Let every logger of this process, and every warning, speak through the learner's handlers, as `who`."""
    handler = PipeLogHandler(reporter)
    handler.setFormatter(logging.Formatter(f"{who}: %(message)s"))
    logging.basicConfig(level=level, handlers=[handler], force=True)
    logging.captureWarnings(True)


def new_pipe(whose: str) -> tuple[Connection, Connection]:
    """Two ends that both send and receive. Raises ResourceError when there is no descriptor left."""
    try:
        return multiprocessing.Pipe(duplex=True)
    except OSError as error:
        raise resource_error(error, f"the pipe of {whose}") from error


def clipped(text: str, nbytes: int = MESSAGE_BYTES) -> str:
    """The text, or its end, where the cause stands, if it has more than nbytes in UTF-8."""
    encoded = text.encode("utf-8", "replace")
    if len(encoded) <= nbytes:
        return text
    return "[…] " + encoded[-nbytes:].decode("utf-8", "ignore")
