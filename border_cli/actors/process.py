"""An actor in its own process: what runs in that process, and the learner's handle for it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from selectors import EVENT_READ, DefaultSelector

from border_cli.actors.actor import run_actor
from border_cli.actors.spec import LOCKSTEP_SLOTS, ActorId, ActorSpec, ActorState, ActorStatus, StatusBlock
from border_cli.core.state import State
from border_cli.core.types import ActorStat, Chunk, Column, ModelInfo, count_episodes
from border_cli.runtime.child import Child
from border_cli.runtime.supervision import Condition, Limits, SupervisedProcess
from border_cli.runtime.transport import ModelChannel, Ring, model_layout, ring_rows
from border_cli.runtime.worker import Ready, Reporter


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
        with contextlib.suppress(EOFError, ConnectionResetError):
            return reporter.pipe.poll() and bool(reporter.pipe.recv())
        return False  # the learner died, and this process ends with it

    run_actor(spec, actor_id, models, ring, status, reporter.send, state_wanted, state)


class ActorHandle(SupervisedProcess):
    """The learner's handle of one actor, over all of its incarnations.

    Args:
        link: has what all actors of the run have in common.
        counts: what earlier launches of a resumed run have counted.
        state: in lockstep, the saved state that the first incarnation continues from.

    `sent_state` is the answer to `request_state`, None until it has arrived.
    """

    start_hint = "allowed: a higher actor_manager.start_timeout_s, or fewer actors"

    def __init__(
        self,
        actor: int,
        link: Link,
        limits: Limits,
        counts: ActorStat | None = None,
        state: State | None = None,
    ) -> None:
        super().__init__(f"actor {actor}", limits)
        self.actor = actor
        self.sent_state: State | None = None
        self._link = link
        self._status = link.status[actor]
        self._counts = counts or ActorStat(actor)
        self._state = state
        self._pop_all: Callable[[], list[Chunk]] = list  # chunks that have arrived since the last call
        self._last_chunks: list[Chunk] = []  # of a process that has ended, not collected yet
        self._holds_rows = False  # whether the last `collect` returned some, which the next one gives back
        self._sequence = 0  # of the next chunk
        self._final: ActorStat | None = None  # once there is no process

    def spawn(self) -> Child:
        counts, status = self._counts, self._status
        if self.losses:
            counts.incarnation += 1
            counts.restarts += 1
        self._context = {"actor": self.actor, "incarnation": counts.incarnation}
        self._final = None
        status.state, status.dropped = ActorState.STARTING, 0
        # No credit beyond what was used: the rest of the last incarnation's may have been given to others.
        status.credit = counts.env_steps
        self._sequence = 0
        link = self._link
        child = self.make_child(
            link.spec.actor_id(self.actor, counts.incarnation, link.n_actors, counts.env_steps)
        )
        for descriptor in child.descriptors:
            link.selector.register(descriptor, EVENT_READ, self)
        return child

    def make_child(self, actor_id: ActorId) -> Child:
        """Start what runs this incarnation. Raises ResourceError."""
        link = self._link
        ring = Ring(link.columns, link.ring_rows)
        self._pop_all = ring.pop_all
        try:
            args = (ring, link.models, self._status, link.spec, actor_id, self._state)
            return Child(self.name, actor_main, args)
        finally:
            ring.close()

    @property
    def heartbeat(self) -> int:
        return self._status.heartbeat

    @property
    def state(self) -> ActorState:
        return self._status.state

    @property
    def doing(self) -> str:
        return self.state.name.lower().replace("_", " ")

    def present(self) -> bool:
        """Whether it can act or soon can for the first time, or may not have handed over all that it has taken."""
        if self.condition in (Condition.READY, Condition.EXITING):
            return True
        return not (self.losses or self._link.may_join)

    def collect(self) -> list[Chunk]:
        """Chunks that have arrived since the last call, whose arrays are valid until the next one.

        Raises RuntimeError if a chunk is missing or comes twice.
        """
        chunks, self._last_chunks = self._last_chunks, []
        arrived = self._pop_all()
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
        """The counts of what has arrived from the actor, and its state."""
        if self._final is not None:
            return replace(self._final)
        status, state = self._status, self.doing
        if status.state is ActorState.DONE:
            pass  # its environments may have failed to close since
        elif self._failed is not None:
            state = "failed"
        elif self._killed:
            state = "killed"
        elif self._child is not None and self._child.exited():
            state = "lost"
        first = status.first_step_ns
        return replace(
            self._counts,
            seconds=(time.monotonic_ns() - first) / 1e9 if first else 0.0,
            blocked_seconds=status.blocked_ns / 1e9,
            dropped=status.dropped,
            state=state,
        )

    def request_state(self) -> None:
        """Ask for the actor's state, which it sends between two rounds."""
        self.sent_state = None
        self.send("state")  # the only message that there is
        self._status.changed.set()

    def release(self) -> None:
        for descriptor in self.descriptors:
            self._link.selector.unregister(descriptor)
        try:
            self._last_chunks = self.collect()  # their arrays keep the ring's memory
        finally:
            self._final = self.stat()
            self._pop_all = list

    def handle(self, message: object) -> None:
        match message:
            case Ready(exact):
                self._counts.exact = exact
            case State():
                self.sent_state = message


class Link:
    """How a manager reaches its actors. With this one they are processes of this machine.

    handle_class: class of the learner's handles · poll_interval_s, poll_share: `collect` also supervises the actors, at
    most once per interval and for at most this share of the learner's time · may_join: whether a run begins with
    `min_actors`, and the others join when there is room.
    """

    handle_class = ActorHandle
    poll_interval_s, poll_share = 0.01, 0.02  # supervising takes 2 µs per actor
    may_join = False

    def __init__(self) -> None:
        self._opened = contextlib.ExitStack()
        self.selector = DefaultSelector()  # of what the learner listens to, with the handle of its actor
        self._opened.callback(self.selector.close)

    def open(
        self,
        spec: ActorSpec,
        columns: tuple[Column, ...],
        status: StatusBlock,
        n_actors: int,
        model: ModelInfo,
        published: int,
    ) -> None:
        """Store what all actors have in common, and publish the first model.

        published: how many earlier launches have published. Raises ResourceError.
        """
        self.spec, self.columns, self.status, self.n_actors = spec, columns, status, n_actors
        self.ring_rows = ring_rows(spec.credit, spec.n_envs, columns)
        slots = 2 if spec.rounds is None else LOCKSTEP_SLOTS
        self.models = ModelChannel(model_layout(model), slots, published)
        self._opened.callback(self.models.close)
        self.models.publish(model)

    def listen(self, actors: Sequence[ActorHandle], timeout_s: float, needed: bool) -> None:
        """Receive the messages of actors. Waits at most timeout_s for the first one.

        needed: whether the run waits for actors that have no place yet.
        """
        for actor in {key.data for key, _ in self.selector.select(timeout_s)}:
            actor.receive()

    def close(self) -> None:
        self._opened.close()
