"""Actors in processes: the manager starts them, gives them credit and models, restarts and stops them.

It is a trainer's source of experience (`core.protocols.ExperienceSource`). Nothing that happens to one actor can block the
learner or another actor.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from selectors import DefaultSelector
from time import monotonic
from typing import Any

from border_cli.actors.process import ActorHandle, ModelSink, Shared
from border_cli.actors.spec import ActorSpec, StatusBlock
from border_cli.config.schema import ActorManagerConfig
from border_cli.core.errors import ActorLostError, first_line
from border_cli.core.protocols import StopCheck
from border_cli.core.state import State, check_like
from border_cli.core.types import ActorStat, Chunk, Column, ModelInfo
from border_cli.runtime.clock import Deadline
from border_cli.runtime.files import run_all
from border_cli.runtime.supervised import Condition, Limits, Loss
from border_cli.transport import ModelChannel, model_layout, ring_rows

_START_POLL_S = 0.1
_STOP_POLL_S = 0.01
_logger = logging.getLogger(__name__)


def make_manager(
    spec: ActorSpec,
    columns: tuple[Column, ...],
    n_actors: int,
    config: ActorManagerConfig,
    should_stop: StopCheck,
    on_exception: Callable[[ActorLostError], None],
) -> ActorManager:
    """The manager for `actor_manager.type=process`, in lockstep if the actors have rounds."""
    from border_cli.actors.lockstep import LockstepManager

    kind = ActorManager if spec.rounds is None else LockstepManager
    return kind(spec, columns, n_actors, config, should_stop, on_exception)


@dataclass(eq=False)
class ActorManager:
    """Runs actors in processes.

    A lost actor is restarted up to `config.restarts` times within `config.restart_window_s`; then it is given up. The run
    ends when fewer than `config.min_actors` are left.

    Args:
        should_stop: polled while waiting for the actors to start.
        on_exception: called with each exception that was raised in an actor; equal ones are reported once.
    """

    spec: ActorSpec
    columns: tuple[Column, ...]
    n_actors: int
    config: ActorManagerConfig
    should_stop: StopCheck = lambda: False
    on_exception: Callable[[ActorLostError], None] = lambda _: None

    # `collect` also supervises the actors, 2 µs each, if this long ago and for at most this share of the learner's time.
    _poll_interval_s, _poll_share = 0.01, 0.02

    def __post_init__(self) -> None:
        self._status = StatusBlock(self.n_actors)
        self._selector = DefaultSelector()
        self._models: ModelSink | None = None
        self._actors: list[ActorHandle] = []
        self._poll_due = Deadline(0.0)
        self._known_exceptions: set[int] = set()
        self._lost: ActorLostError | None = None
        self._first_cause: ActorLostError | None = None
        self._stopped = False
        self._left: list[Chunk] = []  # collected while the actors were stopping
        self._former: dict[str, Any] = {}  # counts of actors that only an earlier launch had

    def start(self, model: ModelInfo, state: State | None = None) -> None:
        """Publish the model and start every actor. From a saved state they count on, with new episodes from new seeds.

        Returns when each actor holds the model or has been lost once, or when the run was asked to stop. Raises
        ActorLostError if none starts or too few are left, ResourceError; no process is left then.
        """
        self._models = self._make_model_sink(model, state)
        self._models.publish(model)
        c, n = self.config, self.n_actors
        if state is not None:  # actor numbers; other keys are those of lockstep
            numbers = [key for key in state.values if key.isdecimal()]
            self._former = {key: state.values[key] for key in numbers if int(key) >= n}
        limits = Limits(**{field.name: getattr(c, field.name) for field in fields(Limits)})
        rows = ring_rows(self.spec.credit, self.spec.n_envs, self.columns)
        shared = Shared(self.spec, self.columns, rows, n, self._status, self._models, self._selector)
        self._actors = [self._make_handle(i, shared, limits, *self._resumed(i, state)) for i in range(n)]
        try:
            for group in [[actor] for actor in self._actors] if c.serial_init else [self._actors]:
                for actor in group:
                    if not self.should_stop():
                        actor.start()
                while not (self._enough_started(group) or self.should_stop()):
                    self._poll(_START_POLL_S)
                    if self._lost is not None:
                        raise self._lost
            if self._first_cause is not None and not any(actor.was_ready for actor in self._actors):
                self._first_cause.logged = True
                raise self._first_cause  # no actor has ever started: waiting for restarts would only delay the error
        except BaseException:
            self.stop()
            raise

    def collect(self) -> list[Chunk]:
        """See `ExperienceSource`. The arrays lie in shared memory, which the next call gives back to the actors.

        When too few actors are left, one call returns what was handed over until then, and the next raises ActorLostError.
        """
        if self._lost is not None and not self._stopped:
            raise self._lost
        if not self._stopped and self._poll_due.passed:
            began = monotonic()
            self._poll(0.0)
            self._poll_due = Deadline(max(self._poll_interval_s, (monotonic() - began) / self._poll_share))
        chunks, self._left = self._left, []
        chunks += [chunk for actor in self._actors for chunk in actor.collect()]
        return chunks

    def state(self, whole: bool = True) -> State:
        """What each actor has counted. Actors on credit are not resumed in the middle of an episode."""
        counts = {str(s.actor): _counts(s.incarnation, s.env_steps, s.episodes) for s in self.stats()}
        return State({}, self._former | counts)

    def present(self) -> list[bool]:
        """Which actors can act. Each absence is reported at least once, however short it was."""
        return [actor.present() for actor in self._actors]

    def grant(self, credits: Sequence[int]) -> None:
        self._status.grant(credits)

    def announce(self, env_steps: int) -> None:
        self._status.announce(env_steps)

    def publish(self, model: ModelInfo) -> None:
        """Make this model the newest. Raises RuntimeError before `start`."""
        if self._models is None:
            raise RuntimeError("publish before start")
        self._models.publish(model)

    def stats(self) -> list[ActorStat]:
        return [actor.stat() for actor in self._actors]

    def pids(self) -> list[int | None]:
        """Process id of each actor, None for one that has no process."""
        return [actor.pid for actor in self._actors]

    def stop(self) -> list[ActorStat]:
        """Ask every actor to stop, kill those that have not after stop_timeout_s, and release everything.

        The rings are emptied meanwhile, so that an actor that waits for room can exit. `collect` returns these chunks.
        """
        if not self._stopped:
            self._stopped = True
            self._status.request_stop()
            ends = [actor.end for actor in self._actors]
            run_all([self._wait_for_exits, *ends, self._report_late_failures, self._release])
        return self.stats()

    def _make_handle(
        self, actor: int, shared: Shared, limits: Limits, counts: ActorStat, state: State | None
    ) -> ActorHandle:
        return ActorHandle(actor, shared, limits, counts, state)

    def _enough_started(self, group: Sequence[ActorHandle]) -> bool:
        """Whether `start` need not wait longer for these actors."""
        return all(actor.was_ready or actor.losses for actor in group)

    def _make_model_sink(self, model: ModelInfo, state: State | None) -> ModelSink:
        return ModelChannel(model_layout(model))

    def _resumed(self, actor: int, state: State | None) -> tuple[ActorStat, State | None]:
        """Counts to begin with, and the actor's own saved state where there is one."""
        if state is None or str(actor) not in state.values:
            return ActorStat(actor), None
        saved = state.values[str(actor)]
        check_like(State({}, saved), State({}, _counts(0, 0, 0)), f"actor {actor}")
        return resumed_stat(actor, saved | {"incarnation": saved["incarnation"] + 1}), None

    def _listen(self, timeout_s: float) -> None:
        """Receive what actors have sent, waiting no longer than timeout_s for the first of it."""
        for actor in {key.data for key, _ in self._selector.select(timeout_s)}:
            actor.receive()

    def _poll(self, timeout_s: float) -> None:
        self._listen(timeout_s)
        for actor in self._actors:
            loss = actor.supervise()
            if loss is not None:
                self._handle_loss(loss)

    def _handle_loss(self, loss: Loss) -> None:
        c, cause = self.config, loss.cause
        self._first_cause = self._first_cause or cause
        left = sum(actor.condition is not Condition.GIVEN_UP for actor in self._actors)
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
        self._report(cause, what)

    def _report_late_failures(self) -> None:
        """Report the actors that failed while the run was stopping, which no loss reports."""
        for actor in self._actors:
            if (cause := actor.late_failure) is not None:
                self._report(cause, f"{first_line(cause)}, while the run was stopping")

    def _report(self, cause: ActorLostError, what: str) -> None:
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
        """Collect what the actors hand over until all have exited, and kill those that have not in time."""
        deadline = Deadline(self.config.stop_timeout_s)
        while not deadline.passed and not all(actor.exited() for actor in self._actors):
            for actor in self._actors:
                self._left += [chunk.copy() for chunk in actor.collect()]
                if actor.exited():
                    actor.end()  # its descriptors stay readable, so the next line would not wait
            self._listen(min(_STOP_POLL_S, deadline.remaining_s))

        for actor in self._actors:
            if not actor.exited():
                _logger.warning("%s did not exit (%s) and is killed", actor.name, actor.doing)
                actor.kill()

    def _release(self) -> None:
        self._lost = self._first_cause = None  # their tracebacks refer to this object, which holds the memory
        self._status.close()
        self._selector.close()
        if self._models is not None:
            self._models.close()


def resumed_stat(actor: int, counts: Mapping[str, int]) -> ActorStat:
    """What an actor of a resumed run has counted so far."""
    steps = counts["env_steps"]
    return ActorStat(actor, counts["incarnation"], steps, counts["episodes"], env_steps_before=steps)


def _counts(incarnation: int, env_steps: int, episodes: int) -> dict[str, int]:
    return {"incarnation": incarnation, "env_steps": env_steps, "episodes": episodes}
