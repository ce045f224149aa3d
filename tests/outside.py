"""An environment that leaves its observation space in episodes of some seeds, so it can be resumed exactly."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces


class Outside(gymnasium.Env[Any, Any]):  # type: ignore[misc] # gymnasium is not checked
    """Observation (1,) within ±1 in episodes of the seeds in `inside`, 2 in all others. length: env steps per episode."""

    def __init__(self, inside: Sequence[int], length: int) -> None:
        self.observation_space = spaces.Box(-1.0, 1.0, (1,), np.float32)
        self.action_space = spaces.Discrete(2)
        self._inside = frozenset(inside)
        self._length = length
        self._value = 0.0
        self._time = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._value = 0.5 if seed in self._inside else 2.0
        self._time = 0
        return np.array([self._value], np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._time += 1
        return np.array([self._value], np.float32), 1.0, False, self._time == self._length, {}


class NeverFinite(gymnasium.Env[Any, Any]):  # type: ignore[misc] # gymnasium is not checked
    """Every reward is NaN."""

    def __init__(self) -> None:
        self.observation_space = spaces.Box(-1.0, 1.0, (1,), np.float32)
        self.action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return np.zeros(1, np.float32), np.nan, False, False, {}
