"""What tests of `ActorManager` share: a learner that knows every row, and actors that fail at a known env step."""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import subprocess
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from signal import SIGKILL
from typing import Any

import gymnasium
import numpy as np

from border_cli.actors.manager import ActorManager
from border_cli.actors.sampler import RowProcessor
from border_cli.actors.spec import ActorId, ActorSpec
from border_cli.config.schema import ActorManagerConfig, EnvConfig
from border_cli.core.errors import ActorLostError
from border_cli.core.spaces import EnvSpec
from border_cli.core.types import Chunk, Items
from border_cli.envs.group import GymEnv
from border_cli.runtime import transport as ring
from border_cli.training.ratio_limiter import RatioLimiter
from tests.fakes import COUNTING_COLUMNS, counting_actors, make_counting_env, make_processor, model
from tests.faults.processes import wait_until

LENGTHS = (7, 1, 2, 30, 3)
RING_ROWS = 256
"""Of an actor with one environment and the credit of `counting_actors`."""


@contextlib.contextmanager
def running(
    spec: ActorSpec,
    n_actors: int = 2,
    start: bool = True,
    on_exception: Callable[[ActorLostError], None] = lambda _: None,
    **config: Any,
) -> Iterator[ActorManager]:
    """Start actors. By default a lost actor is an error."""
    config = {"stop_timeout_s": 10.0, "restarts": 0, "min_actors": n_actors, **config}
    manager = ActorManager(
        spec, COUNTING_COLUMNS, n_actors, ActorManagerConfig(**config), lambda: False, on_exception
    )
    try:
        if start:
            manager.start(model())
        yield manager
    finally:
        manager.stop()


def pids(manager: ActorManager) -> list[int | None]:
    """Process id of each actor, None for one that has no process."""
    return [actor.pid for actor in manager.actors]


def pid_of(manager: ActorManager, actor: int) -> int:
    pid = pids(manager)[actor]
    assert pid is not None
    return pid


# -- a learner ----------------------------------------------------------


class Learner:
    """Collects chunks and grants credit like the training loop, and stores every chunk."""

    def __init__(self, manager: ActorManager, n_actors: int, tolerance: int = 512) -> None:
        self.manager = manager
        self.limiter = RatioLimiter(1.0, 0, tolerance, None, n_actors, 1)
        self.chunks: list[Chunk] = []

    def turn(self) -> None:
        limiter = self.limiter
        for chunk in self.manager.collect():
            self.chunks.append(chunk.copy())
            limiter.inserted(chunk.actor, chunk.env_steps)
        assert limiter.env_steps <= limiter.allowed_env_steps
        while limiter.may_opt():
            limiter.count_opt()
        limiter.set_present(self.manager.present())
        limiter.grant()
        self.manager.grant(limiter.credits, limiter.env_steps)

    def until(self, env_steps: int) -> None:
        wait_until(lambda: self.turn() or self.limiter.env_steps >= env_steps, f"{env_steps} env steps")

    def until_back(self, actor: int, incarnation: int) -> None:
        """Run until a chunk of this or a later incarnation arrives."""
        wait_until(
            lambda: (
                self.turn() or any(c.actor == actor and c.incarnation >= incarnation for c in self.chunks)
            ),
            f"incarnation {incarnation} of actor {actor}",
        )

    def stop(self) -> None:
        self.manager.stop()
        self.chunks += self.manager.collect()
        self._check()

    def arrived(self) -> dict[tuple[int, int], int]:
        """Return the env steps of each (actor, incarnation)."""
        counts: dict[tuple[int, int], int] = defaultdict(int)
        for chunk in self.chunks:
            counts[chunk.actor, chunk.incarnation] += chunk.env_steps
        return dict(counts)

    def _check(self) -> None:
        """Check that all chunks of each incarnation arrived in order with the expected rows, newest incarnation last."""
        order: dict[int, list[int]] = defaultdict(list)
        for chunk in self.chunks:
            order[chunk.actor].append(chunk.incarnation)
        assert all(incarnations == sorted(incarnations) for incarnations in order.values())
        for actor, incarnation in self.arrived():
            mine = [c for c in self.chunks if (c.actor, c.incarnation) == (actor, incarnation)]
            assert [chunk.sequence for chunk in mine] == list(range(len(mine)))
            obs = np.concatenate([chunk.items["obs"] for chunk in mine])
            assert (obs[:, 0] == actor).all()
            final = np.concatenate([chunk.items["final"] for chunk in mine])
            uncounted = np.count_nonzero(~final) - sum(chunk.env_steps for chunk in mine)
            # A chunk is split where the ring ends. One env step is counted with the last part, which a dead actor may not
            # have handed over.
            assert uncounted == 0 or (uncounted == 1 and len(final) % RING_ROWS == 0)
            for env in set(obs[:, 1].tolist()):
                rows = np.column_stack([obs[:, 2], obs[:, 3], final])[obs[:, 1] == env]
                expected = np.array(list(expected_rows(np.count_nonzero(rows[:, 2] == 0))), np.int64)
                np.testing.assert_array_equal(rows, expected)


def expected_rows(env_steps: int) -> Iterator[tuple[int, int, bool]]:
    """Yield (episode, time, final) of every row of an environment in `env_steps` env steps."""
    episode = 0
    while env_steps > 0:
        length = LENGTHS[episode % len(LENGTHS)]
        if env_steps < length:
            yield from ((episode, t, False) for t in range(env_steps))
            return
        yield from ((episode, t, t == length) for t in range(length + 1))
        env_steps -= length
        episode += 1


class Outage:
    """Kills one actor after `env_steps` more env steps, and waits until its next incarnation acts.

    victim: actor and incarnation · others: env steps of the other actors that arrived in the meantime.
    """

    def __init__(self, learner: Learner, actor: int, env_steps: int) -> None:
        learner.until(learner.limiter.env_steps + env_steps)
        self.victim = actor, learner.manager.stats()[actor].incarnation
        pid = pid_of(learner.manager, actor)
        before = len(learner.chunks)
        os.kill(pid, SIGKILL)
        wait_until(lambda: learner.turn() or pids(learner.manager)[actor] != pid, "its end")
        learner.until_back(actor, self.victim[1] + 1)
        self.others = sum(chunk.env_steps for chunk in learner.chunks[before:] if chunk.actor != actor)


# -- actors that fail ---------------------------------------------------


def failing_actors(*failures: tuple[int, int, int], fault: str, **kwargs: Any) -> ActorSpec:
    """Counting actors (see `tests.fakes.counting_actors`), some of which fail (see `tests.counting.FAULTS`).

    failures: (actor, incarnation, env step of each of its environments, counted from 1).
    """
    return counting_actors(make_env=partial(make_failing, failures=failures, fault=fault), **kwargs)


def make_failing(
    place: ActorId, config: EnvConfig, failures: tuple[tuple[int, int, int], ...], fault: str
) -> GymEnv:
    for actor, incarnation, at in failures:
        if (actor, incarnation) == (place.actor, place.incarnation):
            config = replace(config, kwargs={**config.kwargs, "fault": fault, "fault_step": at})
    return make_counting_env(place, config)


def actors_that_die_in_a_push(moment: float, **kwargs: Any) -> ActorSpec:
    """Counting actors. The first incarnation of actor 0 dies in its second push.

    moment: 2.5 means after half of the rows of column 2 were written. The number of columns means after all rows were
    written, before they are announced.
    """
    spec = counting_actors(**kwargs)
    return replace(spec, processor=partial(make_dying_in_a_push, moment=moment))


def make_dying_in_a_push(place: ActorId, spec: EnvSpec, moment: float) -> RowProcessor:
    if (place.actor, place.incarnation) != (0, 0):
        return make_processor(place, spec)
    if moment == len(COUNTING_COLUMNS):
        fences = itertools.count(5, -1)  # two fences for the first model and two in each push
        ring.fence = lambda: None if next(fences) else _die()
    return _DyingProcessor(spec, moment)


def _die() -> None:
    os.kill(os.getpid(), SIGKILL)


class _DyingProcessor(RowProcessor):
    """Ends the process in its second write of rows, after `moment` columns."""

    def __init__(self, spec: EnvSpec, moment: float) -> None:
        super().__init__(spec, 1)
        self._moment = moment
        self._takes = 0

    def take(self, into: Items | None = None) -> Items:
        self._takes += 1
        if self._takes != 2 or into is None:
            return super().take(into)
        whole = super().take({name: column.copy() for name, column in into.items()})
        for number, (name, column) in enumerate(into.items()):
            rows = int(min(self._moment - number, 1.0) * len(column))
            column[:rows] = whole[name][:rows]
            if number == int(self._moment):
                _die()
        return into


# -- actors that count their env steps in a file ------------------------------------------------


class Diary(gymnasium.Wrapper[Any, Any, Any, Any]):  # type: ignore[misc] # gymnasium is not checked
    """Stores its first seed and its number of env steps in a memory-mapped file, which outlives the process."""

    def __init__(self, env: gymnasium.Env[Any, Any], path: Path) -> None:
        super().__init__(env)
        self._words = np.memmap(path, np.int64, "w+", shape=(2,))

    def reset(self, *, seed: int | None = None, **options: Any) -> Any:
        if seed is not None:
            self._words[0] = seed
        return super().reset(seed=seed, **options)

    def step(self, action: Any) -> Any:
        result = super().step(action)
        self._words[1] += 1
        return result


def actors_with_diaries(folder: Path, **kwargs: Any) -> ActorSpec:
    """Counting actors (see `tests.fakes.counting_actors`) that write diaries, see `read_diary`."""
    return counting_actors(make_env=partial(make_with_diary, folder=str(folder)), **kwargs)


def make_with_diary(place: ActorId, config: EnvConfig, folder: str) -> GymEnv:
    group = make_counting_env(place, config)
    group.envs[0] = Diary(group.envs[0], Path(folder) / f"{place.actor}-{place.incarnation}")
    return group


def read_diary(folder: Path, actor: int, incarnation: int) -> tuple[int, int]:
    """Return seed and env steps of the only environment of this incarnation."""
    seed, env_steps = np.fromfile(folder / f"{actor}-{incarnation}", np.int64).tolist()
    return seed, env_steps


def make_with_helpers(place: ActorId, config: EnvConfig) -> GymEnv:
    """Make an environment that starts a program and a thread and never stops them."""
    helper = subprocess.Popen(["sleep", "1000"])
    threading.Thread(target=threading.Event().wait, daemon=True).start()
    logging.getLogger("tests.env").warning("helper %d", helper.pid)
    return make_counting_env(place, config)
