"""What an actor says to the learner through its own pipe.

A message is kept so small that a socket takes it as a whole: a learner that sees the beginning of one never
has to wait for the rest, even if the actor was stopped or killed meanwhile.
"""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass
from multiprocessing import reduction
from multiprocessing.connection import Connection
from typing import Any

from border_cli.core.protocols import ActorStat
from border_cli.core.state import State


@dataclass(frozen=True)
class Ready:
    """The environments are made and reset, and the first model is held."""


@dataclass(frozen=True)
class LogLine:
    """One log record, formatted."""

    logger: str
    level: int
    text: str


@dataclass(frozen=True)
class Raised:
    """What raised in an actor. phase: what it was doing · error: class and message · traceback: its own ·
    context: where that was, as JSON values.
    """

    phase: str
    error: str
    traceback: str
    context: dict[str, Any]


@dataclass(frozen=True)
class Mended:
    """An environment raised and was made anew in place. times: how often that has happened lately, this one included."""

    raised: Raised
    times: int


@dataclass(frozen=True)
class Failed:
    """The actor is about to leave because something raised.

    env_steps: those it had completed · unfit: it was given a saved state that is none.
    """

    raised: Raised
    env_steps: int
    unfit: bool = False


@dataclass(frozen=True)
class Finished:
    """The actor has handed over everything and leaves as asked."""

    stat: ActorStat


@dataclass(frozen=True)
class SendState:
    """The learner asks for the actor's state."""


@dataclass(frozen=True)
class StatePiece:
    """A piece of the answer. last: after it the state is whole."""

    data: bytes
    last: bool


Message = Ready | LogLine | Mended | Failed | Finished | StatePiece
PIECE_BYTES = 12_000


class Reporter:
    """The actor's end of its pipe, for all threads of its process."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe
        self._lock = threading.Lock()

    def send(self, message: Message) -> None:
        """Send one message. Waits while the pipe is full; nothing happens when the learner is gone."""
        try:
            with self._lock:
                self._pipe.send(message)
        except (BrokenPipeError, ConnectionResetError):
            return  # the learner died; the watchdog ends this process


class PipedRequests:
    """The actor's side of `SendState`, over its pipe."""

    def __init__(self, pipe: Connection, reporter: Reporter) -> None:
        self._pipe = pipe
        self._reporter = reporter

    def wanted(self) -> bool:
        """Whether the learner asks now."""
        try:
            return self._pipe.poll() and isinstance(self._pipe.recv(), SendState)
        except (EOFError, ConnectionResetError):
            return False  # the learner died; the watchdog ends this process

    def answer(self, state: State) -> None:
        """Send the state, in pieces of which each is taken as a whole."""
        data = bytes(reduction.ForkingPickler.dumps(state))
        for start in range(0, len(data), PIECE_BYTES):
            piece = data[start : start + PIECE_BYTES]
            self._reporter.send(StatePiece(piece, start + PIECE_BYTES >= len(data)))


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


def clipped(text: str, nbytes: int = 12_000) -> str:
    """The text, or its end, where the cause stands, if it has more than nbytes in UTF-8."""
    encoded = text.encode("utf-8", "replace")
    if len(encoded) <= nbytes:
        return text
    return "[…] " + encoded[-nbytes:].decode("utf-8", "ignore")
