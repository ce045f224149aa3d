"""Actors in processes of their own: started, fed with credit and models, listened to, stopped.

The manager is what a trainer sees of them (`core.protocols.ExperienceSource`). It holds one slot per actor;
nothing that one actor does, or has done to it, can block the learner or another actor.
"""

from __future__ import annotations

import logging
import selectors
from collections.abc import Iterator, Sequence

from border_cli.actors.board import Board
from border_cli.actors.model_channel import ModelChannel, model_layout
from border_cli.actors.place import ActorSpec
from border_cli.actors.slot import ActorSlot, Shared
from border_cli.config.schema import ActorManagerConfig
from border_cli.core.errors import ActorLostError
from border_cli.core.items import Chunk, Column
from border_cli.core.protocols import ActorStat, ModelInfo, StopCheck
from border_cli.core.state import State, count, require
from border_cli.runtime.clock import Deadline

_START_POLL_S = 0.1
_STOP_POLL_S = 0.01
_NEWS_INTERVAL_S = 0.01
_logger = logging.getLogger(__name__)


class ActorManager:
    """Runs `n_actors` processes made of `spec`, whose items have these columns.

    should_stop: polled while waiting for the actors to come up.
    """

    def __init__(
        self,
        spec: ActorSpec,
        columns: tuple[Column, ...],
        n_actors: int,
        config: ActorManagerConfig,
        should_stop: StopCheck = lambda: False,
    ) -> None:
        self._spec = spec
        self._columns = columns
        self._n_actors = n_actors
        self._config = config
        self._should_stop = should_stop
        self._board = Board(n_actors)
        self._models: ModelChannel | None = None
        self._slots: list[ActorSlot] = []
        self._news = selectors.DefaultSelector()
        self._news_due = Deadline(0.0)
        self._suspects: set[int] = set()
        self._lost: ActorLostError | None = None
        self._stopped = False
        self._left_over: list[Chunk] = []
        self._before: State | None = None

    def start(self, model: ModelInfo, state: State | None = None) -> None:
        """Publish the model and start every actor; returns when all hold it, or the run was asked to stop.

        state: of a run that goes on: its seats go on counting, with new episodes from new seeds.

        Raises ActorLostError if one fails, dies or is not ready in time, ResourceError if memory or
        descriptors are too few; no process is left then.
        """
        self._models = self._make_channel(model, state)
        self._models.publish(model)
        shared = Shared(
            self._spec, self._columns, self._config.ring_rows, self._n_actors, self._board, self._models
        )
        self._slots = [ActorSlot(actor, shared) for actor in range(self._n_actors)]
        self._before = state
        try:
            for group in self._start_groups():
                self._start_group(group)
        except BaseException:
            self.stop()
            raise

    def collect(self) -> list[Chunk]:
        """What has arrived since the last time, without waiting; after `stop`, what was still left.

        Raises ActorLostError within 10 ms of an actor's end, once what that actor had handed over was returned.
        """
        if self._stopped:
            chunks, self._left_over = self._left_over, []
            return chunks
        if self._news_due.passed:  # asking the system costs more than looking into every ring
            self._listen(0.0)
            self._news_due = Deadline(_NEWS_INTERVAL_S)
        if self._lost is None:
            self._lost = self._find_lost()  # before draining: what it handed over is then there as a whole
            chunks = self._drain()
            if chunks or self._lost is None:
                return chunks
        raise self._lost

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
        return State({}, counts)

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
            self._await_gone()
            self._end_slots()
            self._lost = None  # its traceback refers to this object, which would keep the memory
            self._news.close()
            self._board.close()
            if self._models is not None:
                self._models.close()
        return self.stats()

    def _start_groups(self) -> Iterator[list[int]]:
        """Actors that are started together."""
        actors = list(range(self._n_actors))
        if self._config.serial_init:
            yield from ([actor] for actor in actors)
        else:
            yield actors

    def _start_group(self, actors: list[int]) -> None:
        for actor in actors:
            if self._should_stop():
                return
            self._start_slot(actor)
            for descriptor in self._slots[actor].descriptors:
                self._news.register(descriptor, selectors.EVENT_READ, actor)
        self._await_ready(actors)

    def _make_channel(self, model: ModelInfo, state: State | None) -> ModelChannel:
        del state  # only rounds have to be numbered on
        return ModelChannel(model_layout(model))

    def _start_slot(self, actor: int) -> None:
        """Occupy a seat: where it was occupied before, by the next incarnation."""
        before = None if self._before is None else self._before.values.get(str(actor))
        if before is None:
            self._slots[actor].start()
            return
        names = ("incarnation", "env_steps", "episodes")
        require(before, names, f"actor {actor}")
        incarnation, env_steps, episodes = (count(before[name], name) for name in names)
        self._slots[actor].start(incarnation + 1, env_steps, episodes)

    def _await_ready(self, actors: list[int]) -> None:
        deadline = Deadline(self._config.start_timeout_s)
        while waiting := [actor for actor in actors if not self._slots[actor].ready]:
            if self._should_stop():
                return
            if deadline.passed:
                raise ActorLostError(self._late(waiting))
            self._listen(min(_START_POLL_S, deadline.remaining_s))
            lost = self._find_lost()
            if lost is not None:
                raise lost

    def _late(self, actors: list[int]) -> str:
        who = ", ".join(f"{actor} ({self._slots[actor].state.words})" for actor in actors)
        return (
            f"not ready after {self._config.start_timeout_s:g} s: actor {who}\n"
            "allowed: a higher actor_manager.start_timeout_s, or fewer actors"
        )

    def _listen(self, timeout_s: float) -> None:
        """Take in what actors say, waiting for news no longer than timeout_s."""
        for key, _ in self._news.select(timeout_s):
            if not self._slots[key.data].listen():
                self._suspects.add(key.data)
                self._news.unregister(key.fd)

    def _find_lost(self) -> ActorLostError | None:
        """An actor that left unasked, among those of which something was heard that may mean so."""
        for actor in sorted(self._suspects):
            lost = self._slots[actor].lost()
            if lost is not None:
                return lost
        return None

    def _drain(self) -> list[Chunk]:
        return [chunk for slot in self._slots for chunk in slot.drain()]

    def _await_gone(self) -> None:
        deadline = Deadline(self._config.stop_timeout_s)
        while not (deadline.passed or all(slot.gone() for slot in self._slots)):
            self._left_over += self._drain()
            self._listen(min(_STOP_POLL_S, deadline.remaining_s))

    def _end_slots(self) -> None:
        for actor, slot in enumerate(self._slots):
            if not slot.gone():
                _logger.warning("actor %d did not leave (%s) and is killed", actor, slot.state.words)
                slot.kill()
        for slot in self._slots:
            self._left_over += slot.end()
