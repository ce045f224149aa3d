"""The actors of a run as the learner sees them: a manager that gives them credit and models, restarts and stops them.

It is a trainer's source of experience (`core.protocols.ExperienceSource`). Nothing that happens to one actor can block the
learner or another actor.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from selectors import EVENT_READ, DefaultSelector
from time import monotonic, monotonic_ns
from typing import Any

from border_cli.actors.actor import actor_main
from border_cli.actors.spec import LOCKSTEP_SLOTS, ActorId, ActorSpec, ActorState, StatusBlock
from border_cli.config.schema import ActorManagerConfig
from border_cli.core.errors import ActorLostError, first_line
from border_cli.core.protocols import StopCheck
from border_cli.core.state import State, check_like
from border_cli.core.types import ActorStat, Chunk, Column, ModelInfo, count_episodes
from border_cli.runtime.child import Child
from border_cli.runtime.stopping import Deadline, run_all
from border_cli.runtime.supervision import Condition, Limits, Loss, SupervisedProcess
from border_cli.runtime.transport import ModelChannel, Ring, model_layout, ring_rows
from border_cli.runtime.worker import Ready

_START_POLL_S = 0.1
_STOP_POLL_S = 0.01
_logger = logging.getLogger(__name__)


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
        status.state = ActorState.STARTING
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
            seconds=(monotonic_ns() - first) / 1e9 if first else 0.0,
            blocked_seconds=status.blocked_ns / 1e9,
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

    def listen(self, actors: Sequence[ActorHandle], timeout_s: float) -> None:
        """Receive the messages of actors. Waits at most timeout_s for the first one."""
        for actor in {key.data for key, _ in self.selector.select(timeout_s)}:
            actor.receive()

    def close(self) -> None:
        self._opened.close()


@dataclass(eq=False)
class ActorManager:
    """Runs actors.

    A lost actor is restarted up to `config.restarts` times within `config.restart_window_s`; then it is given up. The run
    ends when fewer than `config.min_actors` are left.

    Args:
        should_stop: polled while waiting for the actors to start.
        on_exception: called with each exception that was raised in an actor; equal ones are reported once.
        link: how the actors are reached.
    """

    spec: ActorSpec
    columns: tuple[Column, ...]
    n_actors: int
    config: ActorManagerConfig
    should_stop: StopCheck = lambda: False
    on_exception: Callable[[ActorLostError], None] = lambda _: None
    link: Link = field(default_factory=Link)

    def __post_init__(self) -> None:
        self.status = StatusBlock(self.n_actors)
        self.grant = self.status.grant
        self.actors: list[ActorHandle] = []
        self._poll_due = Deadline(0.0)
        self._known_exceptions: set[int] = set()
        self._lost: ActorLostError | None = None
        self._first_cause: ActorLostError | None = None
        self.stopped = False
        self._left: list[Chunk] = []  # collected while the actors were stopping
        self._saved: dict[str, Any] = {}  # counts by actor; those of actors that this launch lacks are kept

    def start(self, model: ModelInfo, state: State | None = None) -> None:
        """Start every actor as `begin` does. From a saved state their counts continue, with new episodes and seeds."""
        self._saved = {} if state is None else dict(state.values)
        stats = [ActorStat(actor) for actor in range(self.n_actors)]
        for actor in range(self.n_actors):
            if (counts := self._saved.get(str(actor))) is not None:
                check_like(State({}, counts), State({}, dict.fromkeys(_COUNTS, 0)), f"actor {actor}")
                stats[actor] = ActorStat(actor, **counts, env_steps_before=counts["env_steps"])
                stats[actor].incarnation += 1
        self.begin(model, [(stat, None) for stat in stats])

    def begin(
        self, model: ModelInfo, actors: Sequence[tuple[ActorStat, State | None]], published: int = 0
    ) -> None:
        """Publish the model, and start each actor with its counts, in lockstep also from its saved state, if any.

        published: in lockstep, publications before this one.
        Returns when each actor holds the model or has been lost once, or when the run was asked to stop. Raises
        ActorLostError if none starts or too few are left, ResourceError; no process is left then.
        """
        self.link.open(self.spec, self.columns, self.status, self.n_actors, model, published)
        limits = Limits(**{field.name: getattr(self.config, field.name) for field in fields(Limits)})
        self.actors = [
            self.link.handle_class(actor, self.link, limits, counts, state)
            for actor, (counts, state) in enumerate(actors)
        ]
        try:
            for group in [[actor] for actor in self.actors] if self.config.serial_init else [self.actors]:
                for actor in group:
                    if not self.should_stop():
                        actor.start()
                while not (self._enough_started(group) or self.should_stop()):
                    self._poll(_START_POLL_S)
                    if self._lost is not None:
                        raise self._lost
            if self._first_cause is not None and not any(actor.was_ready for actor in self.actors):
                self._first_cause.logged = True
                raise self._first_cause  # no actor has ever started: waiting for restarts would only delay the error
        except BaseException:
            self.stop()
            raise

    def collect(self) -> list[Chunk]:
        """See `ExperienceSource`. The arrays lie in shared memory, which the next call gives back to the actors.

        When too few actors are left, one call returns what was handed over until then, and the next raises ActorLostError.
        """
        if self._lost is not None and not self.stopped:
            raise self._lost
        if not self.stopped and self._poll_due.passed:
            began = monotonic()
            self._poll(0.0)
            seconds = monotonic() - began
            self._poll_due = Deadline(max(self.link.poll_interval_s, seconds / self.link.poll_share))
        chunks, self._left = self._left, []
        chunks += [chunk for actor in self.actors for chunk in actor.collect()]
        return chunks

    def state(self, whole: bool = True) -> State:
        """What each actor has counted. Actors on credit are not resumed in the middle of an episode."""
        counts = {str(s.actor): {name: getattr(s, name) for name in _COUNTS} for s in self.stats()}
        return State({}, self._saved | counts)

    def present(self) -> list[bool]:
        return [actor.present() for actor in self.actors]

    def publish(self, model: ModelInfo) -> None:
        self.link.models.publish(model)

    def stats(self) -> list[ActorStat]:
        return [actor.stat() for actor in self.actors]

    @property
    def publications(self) -> int:
        """Number of the newest model, 0 before `begin`."""
        return self.link.models.publications if self.actors else 0

    def stop(self) -> list[ActorStat]:
        """Ask every actor to stop, kill those that still run after stop_timeout_s, and release everything.

        The rings are emptied meanwhile, so that an actor that waits for room can exit. `collect` returns these chunks.
        """
        if not self.stopped:
            self.stopped = True
            self.status.request_stop()
            ends = [actor.end for actor in self.actors]
            # Their tracebacks refer to this object, which holds the memory.
            self._lost = self._first_cause = None
            run_all([self._wait_for_exits, *ends, self.status.close, self.link.close])
        return self.stats()

    def _enough_started(self, group: Sequence[ActorHandle]) -> bool:
        """Whether `begin` need not wait longer for these actors."""
        n_ready = sum(actor.was_ready for actor in self.actors)
        if self.link.may_join and n_ready >= min(self.config.min_actors, self.n_actors):
            return True
        return all(actor.was_ready or actor.losses for actor in group)

    def _poll(self, timeout_s: float) -> None:
        self.link.listen(self.actors, timeout_s)
        for actor in self.actors:
            loss = actor.supervise()
            if loss is not None:
                self._handle_loss(loss)

    def _handle_loss(self, loss: Loss) -> None:
        c, cause = self.config, loss.cause
        self._first_cause = self._first_cause or cause
        left = sum(actor.condition is not Condition.GIVEN_UP for actor in self.actors)
        restarts = "1 restart" if c.restarts == 1 else f"{c.restarts} restarts"
        if left < c.min_actors or loss.repeated:
            why = str(cause)
            if loss.repeated:
                why += "\nit raised this at the same step of the same episode before: another restart would not help"
            elif c.restarts:
                why += (
                    f"\nafter {restarts} within {c.restart_window_s:g} s, fewer than "
                    f"actor_manager.min_actors={c.min_actors} are left"
                )
            self._lost = ActorLostError(why, cause.details, cause.context)
            self._lost.logged = not self._is_new(cause)
            return
        what = first_line(cause)
        if loss.restart is None:
            what += f": given up after {restarts}, {left} of {self.n_actors} actors left"
        else:
            what += f": restart {loss.restart} of {c.restarts} in {loss.delay_s:g} s"
        _logger.warning("%s", what)
        if cause.details and self._is_new(cause):
            _logger.info("the actor's own traceback:\n%s", cause.details)

    def _is_new(self, cause: ActorLostError) -> bool:
        """Whether this is the first exception of its kind, in which case it is reported."""
        kind = hash(cause.details.rpartition('  File "')[2])  # where it was raised, and what
        if kind in self._known_exceptions:
            return False
        self._known_exceptions.add(kind)
        if cause.details:
            self.on_exception(cause)
        return True

    def _wait_for_exits(self) -> None:
        """Collect what the actors hand over until all have exited, and kill those that are too late."""
        deadline = Deadline(self.config.stop_timeout_s)
        while not deadline.passed and not all(actor.exited() for actor in self.actors):
            for actor in self.actors:
                self._left += [chunk.copy() for chunk in actor.collect()]
                if actor.exited():
                    actor.end()  # its descriptors stay readable, so the next line would not wait
            self.link.listen(self.actors, min(_STOP_POLL_S, deadline.remaining_s))

        for actor in self.actors:
            if not actor.exited():
                _logger.warning("%s did not exit (%s) and is killed", actor.name, actor.doing)
                actor.kill()


_COUNTS = ("incarnation", "env_steps", "episodes")
"""What is saved of each actor."""
