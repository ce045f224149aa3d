"""Goal-conditioned environments with sparse rewards, which random actions practically never reach; and faulty ones."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces


class GoalEnv(gymnasium.Env[Any, Any]):  # type: ignore[misc] # gymnasium is not checked
    """Base class: the state is what is achieved; 0 at the goal, else -1. An episode ends after `limit` env steps."""

    def __init__(self, space: spaces.Space[Any], limit: int) -> None:
        self.observation_space = spaces.Dict(observation=space, achieved_goal=space, desired_goal=space)
        self._limit = limit

    def start(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the first state, and the goal."""
        raise NotImplementedError

    def moved(self, action: Any) -> np.ndarray:
        """Return the next state."""
        raise NotImplementedError

    def is_reached(self, achieved_goal: Any, desired_goal: Any) -> Any:
        """Return whether achieved goals (..., n) are at the desired ones, (...)."""
        raise NotImplementedError

    def compute_reward(self, achieved_goal: Any, desired_goal: Any, info: dict[str, Any]) -> Any:
        return self.is_reached(achieved_goal, desired_goal) - 1.0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._time = 0
        self._state, self._goal = self.start()
        return self._observation(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._time += 1
        self._state = self.moved(action)
        reward = float(self.compute_reward(self._state, self._goal, {}))
        terminated = hasattr(self, "compute_terminated") and bool(
            self.compute_terminated(self._state, self._goal, {})
        )
        info = {"is_success": bool(self.is_reached(self._state, self._goal))}
        return self._observation(), reward, terminated, self._time == self._limit, info

    def _observation(self) -> dict[str, np.ndarray]:
        return {"observation": self._state, "achieved_goal": self._state, "desired_goal": self._goal}


class BitFlip(GoalEnv):
    """N random bits and a goal of n bits; action i flips bit i. The episode ends at the goal, or after n env steps."""

    def __init__(self, n: int = 20) -> None:
        super().__init__(spaces.MultiBinary(n), n)
        self.action_space = spaces.Discrete(n)

    def start(self) -> tuple[np.ndarray, np.ndarray]:
        state, goal = self.np_random.integers(
            0, 2, (2, *self.observation_space["observation"].shape), np.int8
        )
        return state, goal

    def moved(self, action: Any) -> np.ndarray:
        flipped = np.arange(len(self._state)) == action
        return (self._state ^ flipped).astype(np.int8)

    def is_reached(self, achieved_goal: Any, desired_goal: Any) -> Any:
        return np.abs(achieved_goal - desired_goal).sum(-1) == 0

    def compute_terminated(self, achieved_goal: Any, desired_goal: Any, info: dict[str, Any]) -> Any:
        return self.is_reached(achieved_goal, desired_goal)


class Reach(GoalEnv):
    """A point in n dimensions between -1 and 1, moved by up to 0.2 in each per env step, 30 env steps long.

    The goal counts as reached at a distance below 0.1.
    """

    def __init__(self, n: int = 4) -> None:
        super().__init__(spaces.Box(-1.0, 1.0, (n,), np.float64), 30)
        self.action_space = spaces.Box(-1.0, 1.0, (n,), np.float32)

    def start(self) -> tuple[np.ndarray, np.ndarray]:
        state, goal = self.np_random.uniform(-1.0, 1.0, (2, *self.action_space.shape))
        return state, goal

    def moved(self, action: Any) -> np.ndarray:
        return np.clip(self._state + 0.2 * np.asarray(action, np.float64), -1.0, 1.0)

    def is_reached(self, achieved_goal: Any, desired_goal: Any) -> Any:
        return np.linalg.norm(achieved_goal - desired_goal, axis=-1) < 0.1
