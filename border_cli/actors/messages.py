"""What an actor and the learner say to each other through the actor's own pipe (see `border_cli.runtime.pipe`)."""

from __future__ import annotations

from dataclasses import dataclass
from multiprocessing import reduction
from multiprocessing.connection import Connection
from typing import Any

from border_cli.core.protocols import ActorStat
from border_cli.core.state import State
from border_cli.runtime.pipe import MESSAGE_BYTES, Reporter


@dataclass(frozen=True)
class Ready:
    """The environments are made and reset, and the first model is held. exact: as of `ActorStat`."""

    exact: bool = True


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


Message = Ready | Mended | Failed | Finished | StatePiece


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
        for start in range(0, len(data), MESSAGE_BYTES):
            piece = data[start : start + MESSAGE_BYTES]
            self._reporter.send(StatePiece(piece, start + MESSAGE_BYTES >= len(data)))
