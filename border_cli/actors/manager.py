"""The manager of actors starts them, gives them credit and models, restarts and stops them.

It is a trainer's source of experience (`core.protocols.ExperienceSource`). Nothing that happens to one actor can block the
learner or another actor.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from time import monotonic
from typing import Any

from border_cli.actors.process import ActorHandle, Link
from border_cli.actors.spec import ActorSpec, StatusBlock
from border_cli.config.schema import ActorManagerConfig
from border_cli.core.errors import ActorLostError, first_line
from border_cli.core.protocols import StopCheck
from border_cli.core.state import State, check_like
from border_cli.core.types import ActorStat, Chunk, Column, ModelInfo
from border_cli.runtime.stopping import Deadline, run_all
from border_cli.runtime.supervision import Condition, Limits, Loss

_START_POLL_S = 0.1
_STOP_POLL_S = 0.01
_logger = logging.getLogger(__name__)


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

    def _listen(self, timeout_s: float) -> None:
        n_ready = sum(actor.condition is Condition.READY for actor in self.actors)
        self.link.listen(self.actors, timeout_s, n_ready < self.config.min_actors)

    def _poll(self, timeout_s: float) -> None:
        self._listen(timeout_s)
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
            self._listen(min(_STOP_POLL_S, deadline.remaining_s))

        for actor in self.actors:
            if not actor.exited():
                _logger.warning("%s did not exit (%s) and is killed", actor.name, actor.doing)
                actor.kill()


_COUNTS = ("incarnation", "env_steps", "episodes")
"""What is saved of each actor."""
