"""An environment whose observations identify it and its time, and that can fail at a given moment."""

from __future__ import annotations

import ctypes
import itertools
import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

Observation = NDArray[np.int32]
_made = itertools.count()
FAULTS: dict[str, Callable[[], object]] = {
    "hang": lambda: threading.Event().wait(),
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "stop": lambda: os.kill(os.getpid(), signal.SIGSTOP),
    "segfault": lambda: ctypes.string_at(0),
    "exit": lambda: os._exit(3),
    "chdir": lambda: os.chdir("elsewhere"),
}


class CountingEnv(gymnasium.Env[Observation, np.int64]):  # type: ignore[misc] # gymnasium is not checked
    """Observation (4,) int32: actor, environment, episode from 0, time from 0. Each reward is the new time.

    Args:
        actor: number in the observation.
        env: number in the observation, by default how many were made before in this process.
        lengths: env steps of the episodes, in turn.
        truncate: "never", "always", or "odd" for every second episode.
        fault: "raise" or one of FAULTS.
        fault_at: "make", "reset" (the first), "close" or "step".
        fault_step: number of the env step that fails, counted from 1 over all episodes.
        fault_spread: the seed of the first reset, modulo this, is added to fault_step.
        fault_actor: the only actor that fails, None for all.
        make_s: duration of the constructor [s].
        step_s: duration of an env step [s].
    """

    def __init__(
        self,
        actor: int = 0,
        env: int | None = None,
        lengths: Sequence[int] = (7,),
        truncate: str = "never",
        fault: str | None = None,
        fault_at: str = "step",
        fault_step: int = 1,
        fault_spread: int = 1,
        fault_actor: int | None = None,
        make_s: float = 0.0,
        step_s: float = 0.0,
    ) -> None:
        time.sleep(make_s)
        high = np.iinfo(np.int32).max
        self.observation_space = gymnasium.spaces.Box(0, high, (4,), np.int32)
        self.action_space = gymnasium.spaces.Discrete(2)
        self._actor = actor
        self._env = next(_made) if env is None else env
        self._lengths = tuple(lengths)
        self._truncate = truncate
        self._fault = fault if fault_actor in (None, actor) else None
        self._fault_at = fault_at
        self._fault_step, self._fault_spread = fault_step, fault_spread
        self._step_s = step_s
        self._episode = -1
        self._time = 0
        self._steps = 0
        self._strike_at("make")

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Start the next episode."""
        super().reset(seed=seed, options=options)
        self._strike_at("reset")
        if self._episode < 0 and seed is not None:
            self._fault_step += seed % self._fault_spread
        self._episode += 1
        self._time = 0
        return self._observation(), {}

    def step(self, action: np.int64) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Advance the time by one."""
        del action
        if self._step_s:
            time.sleep(self._step_s)
        self._steps += 1
        if self._steps == self._fault_step:
            self._strike_at("step")
        self._time += 1
        over = self._time == self._lengths[self._episode % len(self._lengths)]
        cut = self._truncate == "always" or (self._truncate == "odd" and self._episode % 2 == 1)
        return self._observation(), float(self._time), over and not cut, over and cut, {}

    def close(self) -> None:
        """Nothing to release."""
        self._strike_at("close")

    def _observation(self) -> Observation:
        return np.array([self._actor, self._env, self._episode, self._time], np.int32)

    def _strike_at(self, moment: str) -> None:
        if self._fault is None or moment != self._fault_at:
            return
        if self._fault == "raise":
            raise RuntimeError(f"CountingEnv raises at {moment}")
        FAULTS[self._fault]()
