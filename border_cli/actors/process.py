"""An actor in a process of its own: what runs in that process, and the learner's handle of it."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from selectors import EVENT_READ, DefaultSelector
from typing import Protocol

from border_cli.actors.actor import Finished, SentState, run_actor
from border_cli.actors.spec import LOCKSTEP_SLOTS, ActorId, ActorSpec, ActorState, ActorStatus, StatusBlock
from border_cli.core.errors import ActorLostError
from border_cli.core.state import State
from border_cli.core.types import ActorStat, Chunk, Column, ModelInfo, count_episodes
from border_cli.runtime.child import Child
from border_cli.runtime.supervised import Condition, Limits, Loss, SupervisedProcess
from border_cli.runtime.transport import ModelChannel, Ring, model_layout
from border_cli.runtime.worker import Ready, Reporter


@dataclass(frozen=True)
class SendState:
    """Message to the actor: the learner asks for its state."""


def actor_main(
    reporter: Reporter,
    ring: Ring,
    models: ModelChannel,
    status: ActorStatus,
    spec: ActorSpec,
    actor_id: ActorId,
    state: State | None,
) -> None:
    """What the process runs (see `border_cli.runtime.child.Child`)."""

    def state_wanted() -> bool:
        try:
            return reporter.pipe.poll() and isinstance(reporter.pipe.recv(), SendState)
        except (EOFError, ConnectionResetError):
            return False  # the learner died, and this process ends with it

    run_actor(spec, actor_id, models, ring, status, reporter.send, state_wanted, state)


class ChunkSource(Protocol):
    """The learner's end of one actor's chunks."""

    def pop_all(self) -> list[Chunk]:
        """All new chunks, oldest first. Their arrays are valid until the next call."""


@dataclass(frozen=True)
class Shared:
    """What all actors of a run have in common."""

    spec: ActorSpec
    columns: tuple[Column, ...]
    ring_rows: int
    n_actors: int
    status: StatusBlock
    models: ModelChannel
    link: Link


class ActorHandle(SupervisedProcess):
    """The learner's handle of one actor, over all of its incarnations.

    Args:
        counts: what earlier launches of a resumed run have counted.
        state: in lockstep, the saved state that the first incarnation continues from.

    `sent_state` is the answer to `request_state`, None until it has arrived.
    """

    start_hint = "allowed: a higher actor_manager.start_timeout_s, or fewer actors"
    _absent = False

    def __init__(
        self,
        actor: int,
        shared: Shared,
        limits: Limits,
        counts: ActorStat | None = None,
        state: State | None = None,
    ) -> None:
        super().__init__(f"actor {actor}", limits)
        self.actor = actor
        self.sent_state: State | None = None
        self._shared = shared
        self._status = shared.status[actor]
        self._counts = counts or ActorStat(actor)
        self._state = state
        self._earlier_episodes = 0
        self._arriving: ChunkSource | None = None
        self._last_chunks: list[Chunk] = []  # of a process that has ended, not collected yet
        self._holds_rows = False  # whether the last `collect` returned some, which the next one gives back
        self._sequence = 0  # of the next chunk
        self._final: ActorStat | None = None
        self._absence_reported = False

    def _spawn(self) -> Child:
        shared, counts = self._shared, self._counts
        if self.losses:
            counts.incarnation += 1
            counts.restarts += 1
        self._final = None
        # An actor that continues from a state includes these in its own count.
        self._earlier_episodes = counts.episodes if self._state is None else 0
        self._status.state = ActorState.STARTING
        # No credit beyond what was used: the rest of the last incarnation's may have been given to others.
        self._status.credit = counts.env_steps
        self._sequence = 0
        child = self._make(
            shared.spec.actor_id(self.actor, counts.incarnation, shared.n_actors, counts.env_steps)
        )
        for descriptor in child.descriptors:
            shared.link.selector.register(descriptor, EVENT_READ, self)
        return child

    def _make(self, actor_id: ActorId) -> Child:
        """Start what runs this incarnation. Raises ResourceError."""
        shared = self._shared
        self._arriving = ring = Ring(shared.columns, shared.ring_rows)
        try:
            args = (ring, shared.models, self._status, shared.spec, actor_id, self._state)
            return Child(self.name, actor_main, args)
        finally:
            ring.close()

    @property
    def _heartbeat(self) -> int:
        return self._status.heartbeat

    @property
    def state(self) -> ActorState:
        """What the actor says that it is doing."""
        return self._status.state

    @property
    def doing(self) -> str:
        return self.state.label

    def supervise(self) -> Loss | None:
        """As `SupervisedProcess.supervise`; a loss also makes the actor absent."""
        loss = super().supervise()
        if loss is not None:
            self._absent, self._absence_reported = True, False
        return loss

    @property
    def late_failure(self) -> ActorLostError | None:
        """Why it failed, if that was after the last `supervise`, and not because of the state that it was given."""
        late = self.condition is Condition.EXITING and self.stat().state in ("failed", "lost")
        unfit = self._failed is not None and self._failed.incompatible
        return self._cause if late and not unfit else None

    def present(self) -> bool:
        """Whether it can act. Each absence is reported at least once, however short it was."""
        if self._absence_reported and self.condition is Condition.READY:
            self._absent = False
        self._absence_reported = self._absent
        return not self._absent

    def collect(self) -> list[Chunk]:
        """Chunks that have arrived since the last call, whose arrays are valid until the next one.

        Raises RuntimeError if a chunk is missing or comes twice.
        """
        chunks, self._last_chunks = self._last_chunks, []
        arrived = [] if self._arriving is None else self._arriving.pop_all()
        if self._holds_rows:
            self._status.changed.set()  # there is room in the ring again
        for chunk in arrived:
            if chunk.sequence != self._sequence:
                raise RuntimeError(f"actor {self.actor}: chunk {chunk.sequence} came, not {self._sequence}")
            self._sequence += 1
            self._counts.env_steps += chunk.env_steps
            self._counts.episodes += count_episodes(chunk.items)
            chunks.append(chunk)
        self._holds_rows = bool(arrived)
        return chunks

    def stat(self) -> ActorStat:
        """What it did: as it reported when it stopped as asked, until then by what has arrived."""
        if self._final is not None:
            return replace(self._final)
        first, state = self._status.first_step_ns, self.doing
        if self._failed is not None:
            state = "failed"
        elif self._killed:
            state = "killed"
        elif self._child is not None and self._child.exited():
            state = "lost"
        return replace(
            self._counts,
            seconds=(time.monotonic_ns() - first) / 1e9 if first else 0.0,
            blocked_seconds=self._status.blocked_ns / 1e9,
            state=state,
        )

    def request_state(self) -> None:
        """Ask for the actor's state, which it sends between two rounds."""
        self.sent_state = None
        self.send(SendState())
        self._status.changed.set()

    def _release(self) -> None:
        for descriptor in self.descriptors:
            self._shared.link.selector.unregister(descriptor)
        try:
            self._last_chunks = self.collect()  # their arrays keep the ring's memory
        finally:
            self._final = self.stat()
            self._arriving = None

    def _handle(self, message: object) -> None:
        match message:
            case Ready(exact):
                self._counts.exact = exact
            case Finished(stat):
                counts = self._counts
                self._final = replace(
                    stat,
                    restarts=counts.restarts,
                    episodes=self._earlier_episodes + stat.episodes,
                    env_steps_before=counts.env_steps_before,
                )
            case SentState(state):
                self.sent_state = state

    def _exit_cause(self, process: Child) -> ActorLostError:
        cause = super()._exit_cause(process)
        if cause.details:  # an exception, and not a process that just ended
            cause.context = {"actor": self.actor, "incarnation": self._counts.incarnation, **cause.context}
        return cause


def resumed_stat(actor: int, counts: Mapping[str, int]) -> ActorStat:
    """What an actor of a resumed run has counted so far."""
    steps = counts["env_steps"]
    return ActorStat(actor, counts["incarnation"], steps, counts["episodes"], env_steps_before=steps)


class Link:
    """How a manager reaches its actors. With this one they are processes of this machine.

    handle_class: of the learner's handles · poll_interval_s, poll_share: `collect` also supervises the actors, if this
    long ago and for at most this share of the learner's time · may_join: whether a run begins with `min_actors`, and the
    others join when there is room.
    """

    handle_class = ActorHandle
    poll_interval_s, poll_share = 0.01, 0.02  # supervising takes 2 µs per actor
    may_join = False

    def __init__(self) -> None:
        self.selector = DefaultSelector()  # of what the learner listens to, with the handle of its actor

    def open_models(self, model: ModelInfo, in_rounds: bool, published: int) -> ModelChannel:
        """Make what models like this one are published in. published: how many earlier launches have published."""
        self.models = ModelChannel(model_layout(model), LOCKSTEP_SLOTS if in_rounds else 2, published)
        return self.models

    def listen(self, actors: Sequence[ActorHandle], timeout_s: float, needed: bool) -> None:
        """Receive what actors have sent, waiting no longer than timeout_s for the first of it.

        needed: whether the run waits for actors that have no place yet.
        """
        del actors, needed
        for actor in {key.data for key, _ in self.selector.select(timeout_s)}:
            actor.receive()

    def close(self) -> None:
        """Release the connection to the actors."""
        self.selector.close()
