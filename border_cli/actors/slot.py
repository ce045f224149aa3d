"""One seat among the actors, as the learner sees it: the process that sits there, its ring and its pipe.

An incarnation begins with `start` and ends with `end`; what was counted stays with the slot, over all incarnations.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from multiprocessing import reduction
from multiprocessing.connection import Connection

from border_cli.actors.board import ActorState, Board
from border_cli.actors.messages import Failed, Finished, Mended, Ready, SendState, StatePiece
from border_cli.actors.place import ActorSpec
from border_cli.actors.process import ActorLinks, Order, actor_main
from border_cli.core.errors import ActorLostError, UnfitStateError
from border_cli.core.items import Chunk, Column, count_episodes
from border_cli.core.protocols import ActorStat
from border_cli.core.state import State
from border_cli.runtime.parcel import Parcel
from border_cli.runtime.worker import Worker
from border_cli.transport.model_channel import ModelChannel
from border_cli.transport.ring import Ring


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
        self._worker: Worker | None = None
        self._sequence = 0  # of the chunk that comes next
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
        # One that goes on from a state counts on by itself.
        self._earlier_episodes = self._counts.episodes if self._state is None else 0
        self._line.state = ActorState.STARTING
        # No more than it had used: what the last incarnation had left may belong to others now.
        shared.board.limit(self._actor, self._counts.env_steps)
        ring = Ring(shared.columns, shared.ring_rows)
        self._ring, self._sequence = ring, 0

        def links(pipe: Connection, order: Parcel) -> ActorLinks:
            return ActorLinks(ring, shared.models, shared.board, pipe, order)

        try:
            self._worker = Worker(f"actor-{self._actor}", actor_main, links, self._order())
        finally:
            ring.close()

    def _order(self) -> Order:
        shared, counts = self._shared, self._counts
        place = shared.spec.place(self._actor, counts.incarnation, shared.n_actors, counts.env_steps)
        level = logging.getLogger().getEffectiveLevel()
        return Order(shared.spec, place, level, shared.env_restarts, shared.restart_window_s, self._state)

    @property
    def actor(self) -> int:
        """Its number among the actors."""
        return self._actor

    @property
    def descriptors(self) -> list[int]:
        """What becomes readable when there is news of this actor: its pipe, and the end of its process."""
        return [] if self._worker is None else self._worker.descriptors

    @property
    def pid(self) -> int | None:
        """Process id, None while there is no process."""
        return None if self._worker is None else self._worker.pid

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
        return self._worker is None or self._worker.gone()

    def lost(self) -> ActorLostError | None:
        """Why this actor does not act any more though nobody asked it to leave; None while it does.

        Raises UnfitStateError where it was given a saved state that is none.
        """
        if self._worker is not None and self.gone():
            self._take(self._worker.heard(last=True))  # why it left may stand behind much that it logged
        if self._failed is not None:
            raised = self._failed.raised
            if self._failed.unfit:
                raise UnfitStateError(f"actor {self._actor}: {raised.error}")
            return ActorLostError(self._describe(self._failed), raised.traceback, raised.context)
        if self._worker is not None and self.gone():
            end = self._worker.end_words
            return ActorLostError(f"actor {self._actor} {end} (it was {self.state.words})")
        return None

    def drain(self) -> list[Chunk]:
        """What it has handed over since the last time. Raises RuntimeError where a chunk is missing or comes twice."""
        chunks = [] if self._ring is None else self._ring.pop_all()
        for chunk in chunks:
            if chunk.sequence != self._sequence:
                raise RuntimeError(f"actor {self._actor}: chunk {chunk.sequence} came, not {self._sequence}")
            self._sequence += 1
            self._counts.env_steps += chunk.env_steps
            self._counts.episodes += count_episodes(chunk.items)
        return chunks

    def listen(self) -> bool:
        """Take in what it has said, without waiting; False once it failed, fell silent or is gone."""
        if self._worker is None:
            return False
        self._take(self._worker.heard())
        return not self._worker.silent and self._failed is None and not self.gone()

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
        if self._worker is not None:
            self._worker.send(SendState())

    def kill(self) -> None:
        """End the process at once, whatever it is doing. Its end is awaited by `end`."""
        if self._worker is not None and not self.gone():
            self._killed = True
            self._worker.kill()

    def end(self) -> list[Chunk]:
        """Release the process, which has left or was killed; the chunks that it leaves behind."""
        try:
            if self._worker is not None:
                self._take(self._worker.heard(last=True))
            return self.drain()
        finally:
            self._final = self.stat()
            self.ready = False
            if self._worker is not None:
                self._worker.end()
                self._worker = None
            self._ring = None

    def _take(self, heard: Iterable[object]) -> None:
        for message in heard:
            match message:
                case Ready(exact):
                    self.ready = True
                    self._counts.exact = exact
                case Mended():
                    self._counts.restarts += 1
                    self._mended.append(message)
                case Failed():
                    self._failed = message
                case Finished(stat):
                    episodes = self._earlier_episodes + stat.episodes
                    self._final = replace(
                        stat,
                        restarts=self._counts.restarts,
                        episodes=episodes,
                        env_steps_before=self._counts.env_steps_before,
                    )
                case StatePiece():
                    self._take_piece(message)

    def _take_piece(self, piece: StatePiece) -> None:
        self._state_pieces.append(piece.data)
        if piece.last:
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
        return "lost" if self._worker is not None and self.gone() else self.state.words
