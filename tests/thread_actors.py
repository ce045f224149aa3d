"""An example of a custom actor manager: actors are threads of the learner's process and use a plain queue.

`plugins=[tests.thread_actors] actor_manager=thread` uses it. It does not restart actors that fail.
"""

from __future__ import annotations

import queue
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from border_cli.actors.actor import run_actor
from border_cli.actors.spec import ActorSpec, ActorState
from border_cli.config.registry import register
from border_cli.config.schema import ActorManagerConfig, option
from border_cli.core.errors import ActorLostError
from border_cli.core.protocols import StopCheck
from border_cli.core.state import State
from border_cli.core.types import ActorStat, Chunk, Column, Items, ModelInfo, count_episodes, empty_items

QUEUED_CHUNKS = 16


@dataclass
class ThreadStatus:
    """In the place of `ActorStatus`: plain attributes, because threads share all memory."""

    credit: int = 0
    stop_requested: bool = False
    global_env_steps: int = 0
    state: ActorState = ActorState.STARTING
    first_step_ns: int = 0
    blocked_ns: int = 0
    heartbeat: int = 0
    changed: threading.Event = field(default_factory=threading.Event)

    def wait(self, seconds: float) -> None:
        self.changed.wait(seconds)
        self.changed.clear()


class QueueSink:
    """In the place of a `Ring`. The rows of each chunk have arrays of their own."""

    def __init__(self, chunks: queue.Queue[Chunk], columns: tuple[Column, ...]) -> None:
        self._chunks = chunks
        self._columns = columns

    def reserve(self, rows: int) -> Items | None:
        return None if self._chunks.full() else empty_items(self._columns, rows)

    def push(self, chunk: Chunk) -> None:
        self._chunks.put(chunk)


class NewestModel:
    """In the place of a `ModelChannel`, for one actor."""

    def __init__(self, manager: ThreadManager) -> None:
        self._manager = manager
        self._seen: ModelInfo | None = None

    def poll(self) -> ModelInfo | None:
        newest = self._manager.model
        if newest is self._seen:
            return None
        self._seen = newest
        return newest


class ThreadManager:
    """Implements `ExperienceSource`."""

    def __init__(
        self,
        spec: ActorSpec,
        columns: tuple[Column, ...],
        n_actors: int,
        config: ActorManagerConfig,
        should_stop: StopCheck,
        on_exception: Callable[[ActorLostError], None],
    ) -> None:
        self.model: ModelInfo | None = None
        self._spec = spec
        self._columns = columns
        self._min_actors = config.min_actors
        self._should_stop = should_stop
        self._on_exception = on_exception
        self._chunks: queue.Queue[Chunk] = queue.Queue(QUEUED_CHUNKS)
        self._arrived: list[Chunk] = []
        self._status = [ThreadStatus() for _ in range(n_actors)]
        self._counts = [ActorStat(actor) for actor in range(n_actors)]
        self._lost: dict[int, ActorLostError] = {}
        self._ready = [threading.Event() for _ in range(n_actors)]  # also set when the thread ends
        self._threads: list[threading.Thread] = []

    def start(self, model: ModelInfo, state: State | None = None) -> None:
        self.publish(model)
        for actor, saved in ({} if state is None else state.values).items():
            count = self._counts[int(actor)]
            count.incarnation, count.env_steps = saved["incarnation"] + 1, saved["env_steps"]
            count.episodes, count.env_steps_before = saved["episodes"], saved["env_steps"]
        actors = range(len(self._counts))
        self._threads = [threading.Thread(target=self._run, args=(actor,), daemon=True) for actor in actors]
        for thread in self._threads:
            thread.start()
        for ready in self._ready:
            while not (ready.wait(0.05) or self._should_stop()):
                pass
        if len(self._lost) == len(self._counts):
            self.stop()
            raise next(iter(self._lost.values()))

    def state(self, whole: bool = True) -> State:
        names = ("incarnation", "env_steps", "episodes")
        return State({}, {str(c.actor): {name: getattr(c, name) for name in names} for c in self._counts})

    def collect(self) -> list[Chunk]:
        lost = list(self._lost.values())  # read before the queue: these actors send nothing more
        self._fetch()
        chunks, self._arrived = self._arrived, []
        if lost and not chunks and len(self._counts) - len(lost) < self._min_actors and not self._stopped:
            raise lost[-1]
        return chunks

    def present(self) -> list[bool]:
        return [actor not in self._lost for actor in range(len(self._counts))]

    def grant(self, credits: Sequence[int]) -> None:
        for status, credit in zip(self._status, credits, strict=True):
            status.credit = credit
            status.changed.set()

    def announce(self, env_steps: int) -> None:
        for status in self._status:
            status.global_env_steps = env_steps

    def publish(self, model: ModelInfo) -> None:
        self.model = ModelInfo(model.version, {name: array.copy() for name, array in model.arrays.items()})

    def stats(self) -> list[ActorStat]:
        return [
            replace(
                count,
                state="failed" if count.actor in self._lost else status.state.label,
                seconds=(time.monotonic_ns() - status.first_step_ns) / 1e9 if status.first_step_ns else 0.0,
                blocked_seconds=status.blocked_ns / 1e9,
            )
            for count, status in zip(self._counts, self._status, strict=True)
        ]

    def stop(self) -> list[ActorStat]:
        for status in self._status:
            status.stop_requested = True
            status.changed.set()
        for thread in self._threads:
            while thread.is_alive():
                self._fetch()
                thread.join(0.01)
        self._fetch()
        return self.stats()

    def _fetch(self) -> None:
        for _ in range(self._chunks.qsize()):
            chunk = self._chunks.get_nowait()
            self._counts[chunk.actor].env_steps += chunk.env_steps
            self._counts[chunk.actor].episodes += count_episodes(chunk.items)
            self._arrived.append(chunk)
        for status in self._status:
            status.changed.set()  # there is room in the queue

    @property
    def _stopped(self) -> bool:
        return self._status[0].stop_requested

    def _run(self, actor: int) -> None:
        count, status = self._counts[actor], self._status[actor]
        actor_id = self._spec.actor_id(actor, count.incarnation, len(self._counts), count.env_steps)
        models, sink, ready = NewestModel(self), QueueSink(self._chunks, self._columns), self._ready[actor]
        try:
            run_actor(self._spec, actor_id, models, sink, status, lambda message: ready.set())
        except Exception as error:
            where = getattr(error, "context", {})
            lost = ActorLostError(
                str(error),
                traceback.format_exc(),
                {"actor": actor, "incarnation": count.incarnation, **where},
            )
            self._on_exception(lost)
            self._lost[actor] = lost
        finally:
            ready.set()


@dataclass
class ThreadConfig(ActorManagerConfig):
    """`actor_manager=thread`."""

    type: str = option("thread", "where actors run")


register("actor_manager", "thread", ThreadConfig, "tests.thread_actors:ThreadManager")
