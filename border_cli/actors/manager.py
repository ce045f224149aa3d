"""Actors in processes of their own: started, fed with credit and models, listened to, started again, stopped.

The manager is what a trainer sees of them (`core.protocols.ExperienceSource`). It holds one supervisor per actor;
nothing that one actor does, or has done to it, can block the learner or another actor.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from border_cli.actors.board import Board
from border_cli.actors.messages import Raised
from border_cli.actors.news import News
from border_cli.actors.place import ActorSpec
from border_cli.actors.slot import ActorSlot, Shared
from border_cli.actors.supervisor import Condition, Loss, Supervisor
from border_cli.config.schema import ActorManagerConfig
from border_cli.core.errors import ActorLostError
from border_cli.core.items import Chunk, Column
from border_cli.core.protocols import ActorStat, ModelInfo, StopCheck
from border_cli.core.stages import run_all
from border_cli.core.state import State, count, require
from border_cli.runtime.clock import Deadline
from border_cli.transport.model_channel import ModelChannel, model_layout

_START_POLL_S = 0.1
_STOP_POLL_S = 0.01
_NEWS_INTERVAL_S = 0.01
_logger = logging.getLogger(__name__)


class ActorManager:
    """Runs `n_actors` processes made of `spec`, whose items have these columns.

    An actor that is lost is started again, `config.restarts` times within `config.restart_window_s`, then it is given
    up; the run ends when fewer than `config.min_actors` are left.

    should_stop: polled while waiting for the actors to come up. on_exception: called with the first of all equal
    exceptions that were raised in actors, whether or not the run survives it.
    """

    def __init__(
        self,
        spec: ActorSpec,
        columns: tuple[Column, ...],
        n_actors: int,
        config: ActorManagerConfig,
        should_stop: StopCheck = lambda: False,
        on_exception: Callable[[ActorLostError], None] = lambda _: None,
    ) -> None:
        self._spec = spec
        self._columns = columns
        self._n_actors = n_actors
        self._config = config
        self._should_stop = should_stop
        self._on_exception = on_exception
        self._board = Board(n_actors)
        self._models: ModelChannel | None = None
        self._supervisors: list[Supervisor] = []
        self._slots: list[ActorSlot] = []
        self._news = News()
        self._news_due = Deadline(0.0)
        self._absent: set[int] = set()
        self._told_absent: set[int] = set()
        self._known_exceptions: set[int] = set()
        self._lost: ActorLostError | None = None
        self._first_cause: ActorLostError | None = None
        self._stopped = False
        self._left_over: list[Chunk] = []
        self._vacant: dict[str, Any] = {}  # counts of seats that only an earlier launch had, by actor

    def start(self, model: ModelInfo, state: State | None = None) -> None:
        """Publish the model and start every actor; returns when each holds it or has been lost, or when the run was
        asked to stop. Those that were lost are started again meanwhile and later.

        state: of a run that goes on: its seats go on counting, with new episodes from new seeds. Those that there are
        not any more are kept, for a launch that has them again.
        Raises ActorLostError if not one actor comes up, or too few are left, ResourceError if memory or descriptors
        are too few; no process is left then.
        """
        self._models = self._make_channel(model, state)
        self._models.publish(model)
        shared = self._shared(self._models)
        self._slots = [ActorSlot(actor, shared, *self._seat(actor, state)) for actor in range(self._n_actors)]
        self._supervisors = [Supervisor(slot, self._news, self._config) for slot in self._slots]
        self._vacant = {} if state is None else self._vacant_seats(state)
        try:
            for group in self._start_groups():
                self._start_group(group)
            self._require_one()
        except BaseException:
            self.stop()
            raise

    def collect(self) -> list[Chunk]:
        """What has arrived since the last time, without waiting; after `stop`, what was still left.

        Within 10 ms an actor's end is noticed. Raises ActorLostError when too few are left, once everything that was
        handed over until then was returned.
        """
        if self._stopped:
            return self._take_left_over()
        if self._lost is not None:
            raise self._lost
        if self._news_due.passed:  # asking the system costs more than looking into every ring
            self._listen(0.0)
            self._supervise()
            self._news_due = Deadline(_NEWS_INTERVAL_S)
        chunks = self._take_left_over() + self._drain()
        if self._lost is not None and not chunks:
            raise self._lost
        return chunks

    def state(self, whole: bool = True) -> State:
        """What each seat has counted. Actors that run free are not resumed in the middle of an episode."""
        del whole  # it makes no difference here
        counts = {
            str(stat.actor): {
                "incarnation": stat.incarnation,
                "env_steps": stat.env_steps,
                "episodes": stat.episodes,
            }
            for stat in self.stats()
        }
        return State({}, self._vacant | counts)

    def present(self) -> list[bool]:
        """Which actors can act. Each absence is told at least once, however short it was."""
        self._told_absent |= self._absent
        return [actor not in self._absent for actor in range(self._n_actors)]

    def grant(self, credits: Sequence[int]) -> None:
        """Env steps each actor may have taken in all."""
        self._board.grant(credits)

    def announce(self, env_steps: int) -> None:
        """Publish the global count that exploration follows."""
        self._board.announce(env_steps)

    def publish(self, model: ModelInfo) -> None:
        """Make this model the newest. Raises RuntimeError before `start`."""
        if self._models is None:
            raise RuntimeError("publish before start")
        self._models.publish(model)

    def stats(self) -> list[ActorStat]:
        """One entry per actor."""
        return [slot.stat() for slot in self._slots]

    def pids(self) -> list[int | None]:
        """Process id of each actor, None for one that has no process."""
        return [slot.pid for slot in self._slots]

    def stop(self) -> list[ActorStat]:
        """Ask every actor to leave, kill those that have not after stop_timeout_s, and release everything.

        The rings are emptied meanwhile, so that an actor that waits for room can leave; `collect` returns
        that.
        """
        if not self._stopped:
            self._stopped = True
            self._board.request_stop()
            ends = [partial(self._end, slot) for slot in self._slots]
            run_all([self._await_gone, self._kill_rest, *ends, self._release])
        return self.stats()

    def _make_channel(self, model: ModelInfo, state: State | None) -> ModelChannel:
        del state  # only rounds have to be numbered on
        return ModelChannel(model_layout(model))

    def _seat(self, actor: int, state: State | None) -> tuple[ActorStat, State | None]:
        """What a seat begins with: where it was occupied before, with the next incarnation."""
        before = None if state is None else state.values.get(str(actor))
        if before is None:
            return ActorStat(actor), None
        names = ("incarnation", "env_steps", "episodes")
        require(before, names, f"actor {actor}")
        incarnation, env_steps, episodes = (count(before[name], name) for name in names)
        return ActorStat(actor, incarnation + 1, env_steps, episodes, env_steps_before=env_steps), None

    def _vacant_seats(self, state: State) -> dict[str, Any]:
        """What was counted in seats that there are not any more, as it was saved."""
        return {
            name: before
            for name, before in state.values.items()
            if name.isdecimal() and int(name) >= self._n_actors  # lockstep has no such names
        }

    def _shared(self, models: ModelChannel) -> Shared:
        """What all actors have in common. Under on_env_error=stop no environment is made anew in place."""
        c = self._config
        env_restarts = c.restarts if c.on_env_error == "restart" else 0
        return Shared(
            spec=self._spec,
            columns=self._columns,
            ring_rows=c.ring_rows,
            n_actors=self._n_actors,
            board=self._board,
            models=models,
            env_restarts=env_restarts,
            restart_window_s=c.restart_window_s,
        )

    def _start_groups(self) -> Iterator[list[Supervisor]]:
        """Actors that are started together."""
        if self._config.serial_init:
            yield from ([supervisor] for supervisor in self._supervisors)
        else:
            yield self._supervisors

    def _start_group(self, group: list[Supervisor]) -> None:
        for supervisor in group:
            if self._should_stop():
                return
            supervisor.start()
        while not (all(supervisor.settled for supervisor in group) or self._should_stop()):
            self._listen(_START_POLL_S)
            self._supervise()
            if self._lost is not None:
                raise self._lost

    def _require_one(self) -> None:
        """Where no actor at all came up, none is tried again: a run that never began ends with its cause at once."""
        hopeless = all(s.settled and not s.was_ready for s in self._supervisors)
        if hopeless and self._first_cause is not None:
            self._first_cause.logged = True
            raise self._first_cause

    def _listen(self, timeout_s: float) -> None:
        """Take in what actors say, waiting for news no longer than timeout_s."""
        ending = self._news.listen(timeout_s)
        for slot in ending:
            self._supervisors[slot.actor].suspect = True

    def _supervise(self) -> None:
        for supervisor in self._supervisors:
            loss = supervisor.attend()
            slot = supervisor.slot
            for mended in slot.take_mended():
                self._tell_mended(slot.actor, mended.raised, mended.times)
            if loss is not None:
                self._take_loss(loss)
            elif slot.actor in self._told_absent and slot.ready:
                self._told_absent.discard(slot.actor)
                self._absent.discard(slot.actor)

    def _take_loss(self, loss: Loss) -> None:
        cause = loss.cause
        self._left_over += loss.chunks
        self._absent.add(loss.actor)
        self._told_absent.discard(loss.actor)
        self._first_cause = self._first_cause or cause
        left = sum(supervisor.condition != Condition.GIVEN_UP for supervisor in self._supervisors)
        if (cause.context and self._config.on_env_error == "stop") or left < self._config.min_actors:
            self._end_run(loss)
            return
        what, *_ = str(cause).splitlines()
        if loss.restart is None:
            text = f"{what}: given up after {_restarts(self._config.restarts)}, {left} of {self._n_actors} actors left"
        else:
            text = f"{what}: restart {loss.restart} of {self._config.restarts} in {loss.delay_s:g} s"
        self._tell(text, cause)

    def _end_run(self, loss: Loss) -> None:
        c, cause = self._config, loss.cause
        why = str(cause)
        if loss.restart is None and c.restarts:
            why += (
                f"\nit was restarted {c.restarts} times within {c.restart_window_s:g} s, and fewer than "
                f"actor_manager.min_actors={c.min_actors} are left"
            )
        self._lost = ActorLostError(why, cause.details, cause.context)
        self._lost.logged = not self._is_new(cause)

    def _tell_mended(self, actor: int, raised: Raised, times: int) -> None:
        where = raised.context  # counts what was there before
        when = "before the first step" if raised.phase == "reset" else f"in env step {where['step'] + 1}"
        what = f"actor {actor}: environment {where['env']} raised {when} of episode {where['episode'] + 1}"
        text = f"{what}: {raised.error}: made anew, {times} of {self._config.restarts}"
        self._tell(text, ActorLostError(f"{what}: {raised.error}", raised.traceback, where))

    def _tell(self, text: str, cause: ActorLostError) -> None:
        """A line on what befell an actor, and the traceback of an exception the first time that it comes."""
        _logger.warning("%s", text)
        if cause.details and self._is_new(cause):
            _logger.info("the actor's own traceback:\n%s", cause.details)

    def _is_new(self, cause: ActorLostError) -> bool:
        """Whether this is the first of its kind, in which case it is reported."""
        kind = hash(cause.details.rpartition('  File "')[2])  # where it was raised, and what
        if kind in self._known_exceptions:
            return False
        self._known_exceptions.add(kind)
        if cause.details:
            self._on_exception(cause)
        return True

    def _drain(self) -> list[Chunk]:
        return [chunk for slot in self._slots for chunk in slot.drain()]

    def _take_left_over(self) -> list[Chunk]:
        chunks, self._left_over = self._left_over, []
        return chunks

    def _await_gone(self) -> None:
        deadline = Deadline(self._config.stop_timeout_s)
        while not (deadline.passed or all(slot.gone() for slot in self._slots)):
            self._left_over += self._drain()
            self._news.listen(min(_STOP_POLL_S, deadline.remaining_s))

    def _kill_rest(self) -> None:
        for actor, slot in enumerate(self._slots):
            if not slot.gone():
                _logger.warning("actor %d did not leave (%s) and is killed", actor, slot.state.words)
                slot.kill()

    def _end(self, slot: ActorSlot) -> None:
        self._news.forget(slot)
        self._left_over += slot.end()

    def _release(self) -> None:
        self._lost = self._first_cause = None  # their tracebacks refer to this object, which keeps the memory
        self._news.close()
        self._board.close()
        if self._models is not None:
            self._models.close()


def _restarts(n: int) -> str:
    return "1 restart" if n == 1 else f"{n} restarts"
