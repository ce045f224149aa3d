"""One seat among the actors, as the learner sees it: the process that sits there, its ring and its pipe.

An incarnation begins with `start` and ends with `end`; what was counted stays with the slot, over all incarnations.
"""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import time
from dataclasses import dataclass, replace
from multiprocessing import reduction
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess

import numpy as np

from border_cli.actors.board import ActorState, Board
from border_cli.actors.messages import (
    Failed,
    Finished,
    LogLine,
    Mended,
    Message,
    Ready,
    SendState,
    StatePiece,
)
from border_cli.actors.model_channel import ModelChannel
from border_cli.actors.place import ActorSpec
from border_cli.actors.process import ActorLinks, Order, actor_main
from border_cli.actors.ring import Ring
from border_cli.core.errors import ActorLostError, UnfitStateError
from border_cli.core.items import Chunk, Column
from border_cli.core.protocols import ActorStat
from border_cli.core.state import State
from border_cli.runtime import forkserver
from border_cli.runtime.memory import resource_error

_LAST_WORDS = 10_000
"""More messages than fit into the pipe of a process that is gone."""
_MESSAGES_AT_ONCE = 64  # one that never stops logging must not keep the learner from the others


@dataclass(frozen=True)
class Shared:
    """What all actors of a run have in common."""

    spec: ActorSpec
    columns: tuple[Column, ...]
    ring_rows: int
    n_actors: int
    board: Board
    models: ModelChannel
    env_restarts: int
    restart_window_s: float


class ActorSlot:
    """The seat of one actor.

    counts: what it has counted before, in a run that is resumed · state: what its first incarnation goes on from, in
    lockstep · ready: its present incarnation holds the first model and has not ended · sent_state: its answer to
    `request_state`, None until then.
    """

    def __init__(
        self, actor: int, shared: Shared, counts: ActorStat | None = None, state: State | None = None
    ) -> None:
        self._actor = actor
        self._shared = shared
        self._line = shared.board.line(actor)
        self._counts = counts or ActorStat(actor)
        self._state = state
        self._ring: Ring | None = None
        self._pipe: Connection | None = None
        self._process: BaseProcess | None = None
        self._earlier_episodes = 0
        self._mended: list[Mended] = []
        self._failed: Failed | None = None
        self._final: ActorStat | None = None
        self._killed = False
        self._state_pieces: list[bytes] = []
        self.sent_state: State | None = None
        self.ready = False

    def start(self) -> None:
        """Start the first or the next incarnation. Raises ResourceError when memory or descriptors are too few."""
        shared = self._shared
        if self._final is not None:
            self._counts.incarnation += 1
            self._counts.restarts += 1
        self._failed, self._final, self._killed = None, None, False
        self._earlier_episodes = self._counts.episodes
        self._line.state = ActorState.STARTING
        # No more than it had used: what the last incarnation had left may belong to others now.
        shared.board.limit(self._actor, self._counts.env_steps)
        self._ring = Ring(shared.columns, shared.ring_rows)
        self._pipe, theirs = _pipe()
        try:
            links = ActorLinks(self._ring, shared.models, shared.board, theirs)
            name = f"actor-{self._actor}"
            self._process = forkserver.start_process(actor_main, (links,), name)
        finally:
            theirs.close()
            self._ring.close()
        counts = self._counts
        place = shared.spec.place(self._actor, counts.incarnation, shared.n_actors, counts.env_steps)
        level = logging.getLogger().getEffectiveLevel()
        try:
            self._pipe.send(
                Order(shared.spec, place, level, shared.env_restarts, shared.restart_window_s, self._state)
            )
        except (BrokenPipeError, ConnectionResetError):
            return  # it died at once, which `gone` will tell

    @property
    def actor(self) -> int:
        """Its number among the actors."""
        return self._actor

    @property
    def descriptors(self) -> list[int]:
        """What becomes readable when there is news of this actor: its pipe, and the end of its process."""
        pipe = [] if self._pipe is None else [self._pipe.fileno()]
        return pipe if self._process is None else [*pipe, self._process.sentinel]

    @property
    def pid(self) -> int | None:
        """Process id, None while there is no process."""
        return None if self._process is None else self._process.pid

    @property
    def state(self) -> ActorState:
        """What it says that it is doing."""
        return self._line.state

    @property
    def heartbeat(self) -> int:
        """A count that grows while it lives."""
        return self._line.heartbeat

    def gone(self) -> bool:
        """Whether there is no process: its end was reported and its id is free."""
        if self._process is None:
            return True
        pid = self._process.pid
        # An end that is reported because the forkserver went away says nothing yet about the actor itself.
        return self._process.exitcode is not None and (pid is None or forkserver.pid_gone(pid))

    def lost(self) -> ActorLostError | None:
        """Why this actor does not act any more though nobody asked it to leave; None while it does.

        Raises UnfitStateError where it was given a saved state that is none.
        """
        if self.gone():
            self._hear(_LAST_WORDS)  # why it left may stand behind much that it logged
        if self._failed is not None:
            raised = self._failed.raised
            if self._failed.unfit:
                raise UnfitStateError(f"actor {self._actor}: {raised.error}")
            return ActorLostError(self._describe(self._failed), raised.traceback, raised.context)
        if self._process is not None and self.gone():
            end = forkserver.describe_exit(self._process.exitcode)
            return ActorLostError(f"actor {self._actor} {end} (it was {self.state.words})")
        return None

    def drain(self) -> list[Chunk]:
        """What it has handed over since the last time."""
        chunks = [] if self._ring is None else self._ring.pop_all()
        for chunk in chunks:
            self._counts.env_steps += chunk.env_steps
            self._counts.episodes += int(np.count_nonzero(chunk.items["episode_length"]))
        return chunks

    def listen(self) -> bool:
        """Take in what it has said, without waiting; False once it failed, fell silent or is gone."""
        return self._hear(_MESSAGES_AT_ONCE) and self._failed is None and not self.gone()

    def take_mended(self) -> list[Mended]:
        """Environments that were made anew in place, of which was heard since the last time."""
        mended, self._mended = self._mended, []
        return mended

    def stat(self) -> ActorStat:
        """What it did: by its own account once it has left as asked, before that by what has arrived."""
        if self._final is not None:
            return replace(self._final)
        first = self._line.first_step_ns
        return replace(
            self._counts,
            seconds=(time.monotonic_ns() - first) / 1e9 if first else 0.0,
            blocked_seconds=self._line.blocked_ns / 1e9,
            state=self._state_words(),
        )

    def request_state(self) -> None:
        """Ask for the actor's state; it answers between two rounds."""
        self._state_pieces, self.sent_state = [], None
        if self._pipe is not None:
            # It may have died, which `gone` will tell.
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                self._pipe.send(SendState())

    def kill(self) -> None:
        """End the process at once, whatever it is doing. Its end is awaited by `end`."""
        if self._process is not None and not self.gone():
            self._killed = True
            self._process.kill()

    def end(self) -> list[Chunk]:
        """Release the process, which has left or was killed; the chunks that it leaves behind."""
        self._hear(_LAST_WORDS)
        chunks = self.drain()
        self._final = self.stat()
        self.ready = False
        if self._process is not None:
            pid = self._process.pid
            forkserver.end_process(self._process)
            if pid is not None:
                forkserver.end_group(pid)
            self._process = None
        if self._pipe is not None:
            self._pipe.close()
            self._pipe = None
        self._ring = None
        return chunks

    def _hear(self, at_most: int) -> bool:
        """Take in so many messages, as far as they are there; False at the end of the pipe."""
        try:
            for _ in range(at_most):
                if self._pipe is None or not self._pipe.poll():
                    break
                self._take(self._pipe.recv())
        except (EOFError, ConnectionResetError, BrokenPipeError):
            return False
        return True

    def _take(self, message: Message) -> None:
        match message:
            case Ready():
                self.ready = True
            case LogLine(logger, level, text):
                _forward(logger, level, text)
            case Mended():
                self._counts.restarts += 1
                self._mended.append(message)
            case Failed():
                self._failed = message
            case Finished(stat):
                episodes = self._earlier_episodes + stat.episodes
                self._final = replace(stat, restarts=self._counts.restarts, episodes=episodes)
            case StatePiece(data, last):
                self._state_pieces.append(data)
                if last:
                    self.sent_state = reduction.ForkingPickler.loads(b"".join(self._state_pieces))
                    self._state_pieces = []

    def _describe(self, failed: Failed) -> str:
        doing = {"step": f"stepping, after {failed.env_steps} env steps", "reset": "resetting"}
        phase = failed.raised.phase
        return f"actor {self._actor} failed while {doing.get(phase, phase)}: {failed.raised.error}"

    def _state_words(self) -> str:
        if self._failed is not None:
            return "failed"
        if self._killed:
            return "killed"
        return "lost" if self._process is not None and self.gone() else self.state.words


def _pipe() -> tuple[Connection, Connection]:
    try:
        return multiprocessing.Pipe(duplex=True)
    except OSError as error:
        raise resource_error(error, "an actor's pipe") from error


def _forward(name: str, level: int, text: str) -> None:
    """Log what an actor logged, as if it had happened here."""
    logger = logging.getLogger(name)
    if logger.isEnabledFor(level):
        logger.log(level, "%s", text)
