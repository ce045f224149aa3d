"""Environments that need a memory: a T-maze (Bakker, 2002), and classic tasks without their velocities."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from border_cli.core.spaces import Array


class TMaze(gymnasium.Env[Any, Any]):
    """A corridor with a junction at its end. The first observation says which way leads to the goal there.

    Observation: the sign, ±1 at the first cell and 0 elsewhere; whether this is the junction. Actions: forward, left,
    right. In the corridor only forward moves, and everything else costs 0.1. At the junction the right way gives 1 and the
    wrong one -1, and forward costs 0.1.
    """

    observation_space = spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = spaces.Discrete(3)

    def __init__(self, length: int = 10) -> None:
        self.length = length

    def _observation(self) -> Array:
        return np.array([self.sign if self.at == 0 else 0, self.at == self.length], np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Array, dict[str, Any]]:
        super().reset(seed=seed)
        self.at, self.t, self.sign = 0, 0, 2 * int(self.np_random.integers(2)) - 1
        return self._observation(), {}

    def step(self, action: int) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        self.t += 1
        reward, is_over = -0.1, False
        if self.at == self.length and action > 0:
            reward, is_over = (1.0 if (action == 1) == (self.sign == 1) else -1.0), True
        elif self.at < self.length and action == 0:
            self.at, reward = self.at + 1, 0.0
        return self._observation(), reward, is_over, self.t >= 2 * self.length + 10, {}


class Positions(gymnasium.ObservationWrapper[Any, Any, Any]):
    """An observation without the components that are velocities. kept: indices of the others."""

    def __init__(self, env: gymnasium.Env[Any, Any], kept: list[int]) -> None:
        super().__init__(env)
        space = env.observation_space
        assert isinstance(space, spaces.Box)
        self._kept = kept
        self.observation_space = spaces.Box(space.low[kept], space.high[kept], dtype=np.float32)

    def observation(self, observation: Array) -> Array:
        return observation[self._kept]


def cartpole_positions(**kwargs: Any) -> gymnasium.Env[Any, Any]:
    return Positions(gymnasium.make("CartPole-v1", **kwargs), [0, 2])


def pendulum_positions(**kwargs: Any) -> gymnasium.Env[Any, Any]:
    return Positions(gymnasium.make("Pendulum-v1", **kwargs), [0, 1])
