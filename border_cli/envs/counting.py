"""An environment whose observations say where they come from, for whoever checks what becomes of them.

Not for training: it serves the tests of the transport, and anyone who wants to see how a run behaves when an
environment fails.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

Observation = NDArray[np.int32]
_made = itertools.count()


class CountingEnv(gymnasium.Env[Observation, np.int64]):  # type: ignore[misc] # gymnasium is not checked
    """Observation (4,) int32: actor, environment, episode from 0, time from 0. Each reward is the new time.

    actor, env: what the observation says; without env, how many were made before in this process. lengths:
    env steps of the episodes, in turn. truncate: "never", "always", or "odd" for every second episode.
    fault: "raise" or "hang", at "make", "reset" (the first), "close" or "step" (number `fault_step` of this
    environment, counted from 1 over all episodes); it strikes `fault_actor` alone, or all actors if that is
    None.
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
        fault_actor: int | None = None,
    ) -> None:
        high = np.iinfo(np.int32).max
        self.observation_space = gymnasium.spaces.Box(0, high, (4,), np.int32)
        self.action_space = gymnasium.spaces.Discrete(2)
        self._actor = actor
        self._env = next(_made) if env is None else env
        self._lengths = tuple(lengths)
        self._truncate = truncate
        self._fault = fault if fault_actor in (None, actor) else None
        self._fault_at = fault_at
        self._fault_step = fault_step
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
        self._episode += 1
        self._time = 0
        return self._observation(), {}

    def step(self, action: np.int64) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Let time go on by one."""
        del action
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
        if self._fault == "hang":
            threading.Event().wait()
        raise RuntimeError(f"CountingEnv was told to raise at {moment}")
