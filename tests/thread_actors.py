"""An example of a custom actor manager: actors are threads of the learner's process.

`plugins=[tests.thread_actors] actor_manager=thread` uses it. It does not restart actors that fail.
"""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from border_cli.actors.actor import run_actor
from border_cli.actors.spec import ActorSpec, StatusBlock
from border_cli.config.registry import register
from border_cli.config.schema import ActorManagerConfig, option
from border_cli.core.errors import ActorLostError
from border_cli.core.protocols import StopCheck
from border_cli.core.state import State
from border_cli.core.types import ActorStat, Chunk, Column, ModelInfo, count_episodes
from border_cli.runtime.transport import ModelChannel, Ring, model_layout, ring_rows


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
        self._spec = spec
        self._min_actors = config.min_actors
        self._should_stop = should_stop
        self._on_exception = on_exception
        rows = ring_rows(spec.credit, spec.n_envs, columns)
        self._rings = [Ring(columns, rows) for _ in range(n_actors)]
        self._models: list[ModelChannel] = []  # one for each actor
        self._status = StatusBlock(n_actors)
        self._counts = [ActorStat(actor) for actor in range(n_actors)]
        self._left: list[Chunk] = []  # collected while the actors were stopping
        self._lost: dict[int, ActorLostError] = {}
        self._ready = [threading.Event() for _ in range(n_actors)]  # also set when the thread ends
        self._threads: list[threading.Thread] = []

    def start(self, model: ModelInfo, state: State | None = None) -> None:
        self._models = [ModelChannel(model_layout(model)) for _ in self._counts]
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
        lost = list(self._lost.values())  # read before the rings: these actors send nothing more
        left, self._left = self._left, []
        chunks = left + self._fetch()
        too_few = len(self._counts) - len(lost) < self._min_actors
        if lost and not chunks and too_few and not self._status[0].stop_requested:
            raise lost[-1]
        return chunks

    def present(self) -> list[bool]:
        return [actor not in self._lost for actor in range(len(self._counts))]

    def grant(self, credits: Sequence[int]) -> None:
        self._status.grant(credits)

    def announce(self, env_steps: int) -> None:
        self._status.announce(env_steps)

    def publish(self, model: ModelInfo) -> None:
        for models in self._models:
            models.publish(model)

    def stats(self) -> list[ActorStat]:
        return [
            replace(
                count,
                state="failed" if count.actor in self._lost else status.state.label,
                seconds=(time.monotonic_ns() - status.first_step_ns) / 1e9 if status.first_step_ns else 0.0,
                blocked_seconds=status.blocked_ns / 1e9,
            )
            for count in self._counts
            for status in [self._status[count.actor]]
        ]

    def stop(self) -> list[ActorStat]:
        self._status.request_stop()
        for thread in self._threads:
            while thread.is_alive():
                self._left += [chunk.copy() for chunk in self._fetch()]
                thread.join(0.01)
        self._left += [chunk.copy() for chunk in self._fetch()]
        return self.stats()

    def _fetch(self) -> list[Chunk]:
        chunks = [chunk for ring in self._rings for chunk in ring.pop_all()]
        for chunk in chunks:
            self._counts[chunk.actor].env_steps += chunk.env_steps
            self._counts[chunk.actor].episodes += count_episodes(chunk.items)
        self._status.wake()  # there is room in the rings
        return chunks

    def _run(self, actor: int) -> None:
        count, status = self._counts[actor], self._status[actor]
        actor_id = self._spec.actor_id(actor, count.incarnation, len(self._counts), count.env_steps)
        models, ring, ready = self._models[actor], self._rings[actor], self._ready[actor]
        try:
            run_actor(self._spec, actor_id, models, ring, status, lambda message: ready.set())
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
