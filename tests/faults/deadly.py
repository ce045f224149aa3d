"""Actors that die of something at a moment that is known to the env step, in some of their incarnations only."""

from __future__ import annotations

import ctypes
import itertools
import logging
import multiprocessing
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from border_cli.actors.place import ActorSpec, Place
from border_cli.config.schema import EnvConfig
from border_cli.core.spaces import Array
from border_cli.envs.counting import CountingEnv
from border_cli.envs.gym_env import GymEnv
from border_cli.runtime.clock import SYSTEM_CLOCK
from border_cli.runtime.factory import Factory
from border_cli.transport import ring
from tests.fakes import COUNTING_COLUMNS, counting_actors, make_counting_env

Deaths = tuple[tuple[int, int, int], ...]
"""(actor, incarnation, number of the env step of its first environment in which it dies, from 1)."""


def _fall_silent() -> None:
    threading.Event().wait()


WAYS: dict[str, Callable[[], Any]] = {
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "stop": lambda: os.kill(os.getpid(), signal.SIGSTOP),
    "segfault": lambda: ctypes.string_at(0),
    "exit": lambda: os._exit(3),
    "hang": _fall_silent,
}


class Deadly(gymnasium.Wrapper[Any, Any, Any, Any]):  # type: ignore[misc] # gymnasium is not checked
    """Dies in step number `at`, counted from 1 over all episodes."""

    def __init__(self, env: gymnasium.Env[Any, Any], at: int, way: str) -> None:
        super().__init__(env)
        self._left, self._way = at, way

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        self._left -= 1
        if self._left == 0:
            WAYS[self._way]()
        result: tuple[Any, Any, bool, bool, dict[str, Any]] = super().step(action)
        return result


def deadly_actors(deaths: Deaths, way: str = "kill", **words: Any) -> ActorSpec:
    """Counting actors (see `tests.fakes.counting_actors`) that die so."""
    spec = counting_actors(**words)
    return replace(spec, env=Factory("tests.faults.deadly:make_deadly", (*spec.env.args, deaths, way)))


def make_deadly(place: Place, config: EnvConfig, deaths: Deaths, way: str) -> GymEnv:
    group = make_counting_env(place, config)
    for actor, incarnation, at in deaths:
        if (actor, incarnation) == (place.actor, place.incarnation):
            group._envs[0] = Deadly(group._envs[0], at, way)
    return group


def actors_that_die_in_a_push(moment: float, **words: Any) -> ActorSpec:
    """The first incarnation of actor 0 dies in its second push. moment: 2.5 is in the copying of column number 2,
    counted from 0, after half of its rows; the number after the last column, between the rows and the word that
    announces them.
    """
    spec = counting_actors(**words)
    return replace(spec, env=Factory("tests.faults.deadly:make_dying_in_a_push", (*spec.env.args, moment)))


def make_dying_in_a_push(place: Place, config: EnvConfig, moment: float) -> GymEnv:
    group = make_counting_env(place, config)
    if (place.actor, place.incarnation) == (0, 0):
        column = int(moment)
        countdown = itertools.count(
            len(COUNTING_COLUMNS) + column, -1
        )  # the first push copies every column once
        ring.np = _DyingNumpy(countdown, moment - column)  # type: ignore[assignment]
        if moment == len(COUNTING_COLUMNS):
            fences = itertools.count(
                3, -1
            )  # two in each push: before its look for room, and before the last word
            ring.fence = lambda: WAYS["kill"]() if next(fences) == 0 else None
    return group


class _DyingNumpy:
    """numpy, but for one `copyto` that copies this share of what it should and ends the process."""

    concatenate = np.concatenate

    def __init__(self, countdown: Iterator[int], share: float) -> None:
        self._countdown = countdown
        self._share = share

    def copyto(self, target: Array, source: Array, casting: Any) -> None:
        if next(self._countdown) == 0:
            rows = int(self._share * len(target))
            np.copyto(target[:rows], source[:rows], casting=casting)
            WAYS["kill"]()
        np.copyto(target, source, casting=casting)


class Diary(gymnasium.Wrapper[Any, Any, Any, Any]):  # type: ignore[misc] # gymnasium is not checked
    """Keeps two words in a file, which outlive the process however it ends: its first seed, and how often it was
    stepped.
    """

    def __init__(self, env: gymnasium.Env[Any, Any], path: Path) -> None:
        super().__init__(env)
        self._words = np.memmap(path, np.int64, "w+", shape=(2,))

    def reset(self, *, seed: int | None = None, **options: Any) -> tuple[Any, dict[str, Any]]:
        if seed is not None:
            self._words[0] = seed
        first: tuple[Any, dict[str, Any]] = super().reset(seed=seed, **options)
        return first

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        result: tuple[Any, Any, bool, bool, dict[str, Any]] = super().step(action)
        self._words[1] += 1
        return result


def actors_with_diaries(folder: Path, **words: Any) -> ActorSpec:
    """Counting actors (see `tests.fakes.counting_actors`) that keep a diary each, see `read_diary`."""
    spec = counting_actors(**words)
    env = Factory("tests.faults.deadly:make_with_diary", (*spec.env.args, str(folder)))
    return replace(spec, env=env)


def make_with_diary(place: Place, config: EnvConfig, folder: str) -> GymEnv:
    group = make_counting_env(place, config)
    group._envs[0] = Diary(group._envs[0], Path(folder) / f"{place.actor}-{place.incarnation}")
    return group


def read_diary(folder: Path, actor: int, incarnation: int) -> tuple[int, int]:
    """Seed and env steps of the one environment that this incarnation had."""
    seed, env_steps = np.fromfile(folder / f"{actor}-{incarnation}", np.int64).tolist()
    return seed, env_steps


class SlowToStep(CountingEnv):
    """An environment whose env step takes this long [s]."""

    def __init__(self, step_s: float, **words: Any) -> None:
        super().__init__(**words)
        self._step_s = step_s

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        SYSTEM_CLOCK.sleep(self._step_s)
        return super().step(action)


def slow_actors(step_s: float, **words: Any) -> ActorSpec:
    """Counting actors (see `tests.fakes.counting_actors`) whose env step takes this long [s]."""
    spec = counting_actors(**words, step_s=step_s)
    (config,) = spec.env.args
    config = replace(config, entry_point="tests.faults.deadly:SlowToStep")
    return replace(spec, env=replace(spec.env, args=(config,)))


class SlowToMake(CountingEnv):
    """Takes more than a second to make, and raises in its tenth env step."""

    def __init__(self) -> None:
        SYSTEM_CLOCK.sleep(1.2)
        super().__init__(fault="raise", fault_step=10)


def slow_to_make_actors() -> ActorSpec:
    config = EnvConfig(entry_point="tests.faults.deadly:SlowToMake")
    return replace(counting_actors(), env=Factory("tests.faults.deadly:make_env", (config,)))


def make_env(place: Place, config: EnvConfig) -> GymEnv:
    return GymEnv(config, place.n_envs)


def make_env_with_helpers(place: Place, config: EnvConfig) -> GymEnv:
    """Its environment runs a program and a thread, and forgets both."""
    helper = subprocess.Popen(["sleep", "1000"])
    threading.Thread(target=_fall_silent, daemon=True).start()
    logging.getLogger("tests.env").warning("helper %d", helper.pid)
    return make_counting_env(place, config)


def make_for_a_run(step: int, lengths: tuple[int, ...] = (7,)) -> gymnasium.Env[Any, Any]:
    """For the real command: an environment that kills its process in this env step, in actors, every time."""
    env = CountingEnv(lengths=lengths)
    return Deadly(env, step, "kill") if multiprocessing.current_process().name.startswith("actor") else env
