"""Test environments: one for each kind of space, one that watches its run, and some that fail."""

from __future__ import annotations

import json
import logging
import multiprocessing
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

EPISODE = 10
START = 5

SPACES: dict[str, spaces.Space[Any]] = {
    "discrete": spaces.Discrete(4, start=-2),
    "multi_discrete": spaces.MultiDiscrete([3, 2], start=[1, -1]),
    "multi_binary": spaces.MultiBinary(3),
    "image": spaces.Box(0, 255, (2, 3), np.uint8),
    "dict": spaces.Dict(
        {
            "position": spaces.Box(-1.0, 1.0, (2,), np.float64),
            "inside": spaces.Tuple((spaces.Discrete(3), spaces.MultiBinary(2))),
        }
    ),
    "tuple": spaces.Tuple((spaces.Box(-1.0, 1.0, (2, 2), np.float32), spaces.Dict(k=spaces.Discrete(2)))),
}


class Sampled(gymnasium.Env[Any, Any]):  # type: ignore[misc] # gymnasium is not checked
    """Observations drawn from one of SPACES, actions counted from START; an action outside is an error."""

    def __init__(self, space: str) -> None:
        self.observation_space = spaces.Dict(o=SPACES[space])["o"]  # a copy with its own random generator
        self.action_space = spaces.Discrete(3, start=START)
        self._time = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        if seed is not None:
            self.observation_space.seed(seed)
        self._time = 0
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if not self.action_space.contains(action):
            raise ValueError(f"{action!r} is none of {self.action_space}")
        self._time += 1
        return self.observation_space.sample(), 1.0, False, self._time == EPISODE, {}


class Onlooker(Sampled):
    """Copies summary.json into the file `seen` at its first step in a run; logs a warning when it is made."""

    def __init__(self, summary: str, seen: str) -> None:
        super().__init__("discrete")
        self._summary, self._seen = Path(summary), Path(seen)
        logging.getLogger("tests.envs").warning("an onlooker was made")

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if self._summary.exists() and not self._seen.exists():
            self._seen.write_text(json.dumps(json.loads(self._summary.read_text(encoding="utf-8"))))
        return super().step(action)


class NotANumber(gymnasium.Env[Any, Any]):  # type: ignore[misc] # gymnasium is not checked
    """Observation (2,): episode and time, counted from 0. The reward or observation of one env step is NaN.

    Args:
        what: "reward" or "observation".
        at: number of the env step, counted from 1 over all episodes.
        place: prefix of the process names in which it happens: "actor", or "MainProcess" for the learner.
    """

    def __init__(self, what: str, at: int = 77, place: str = "") -> None:
        self.observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)
        self.action_space = spaces.Discrete(2)
        self._what = what if multiprocessing.current_process().name.startswith(place) else ""
        self._left = at
        self._episode, self._time = -1, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._episode, self._time = self._episode + 1, 0
        return np.array([self._episode, 0], np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._time += 1
        self._left -= 1
        bad = self._what if self._left == 0 else ""
        observation = np.array([self._episode, np.nan if bad == "observation" else self._time], np.float32)
        return observation, np.nan if bad == "reward" else 1.0, False, self._time == EPISODE, {}


class Leaving(Sampled):
    """Raises SystemExit at env step number `leaves_at`."""

    def __init__(self, leaves_at: int = 100) -> None:
        super().__init__("image")
        self._leaves_at = leaves_at
        self._steps = 0

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._steps += 1
        if self._steps == self._leaves_at:
            raise SystemExit(9)
        return super().step(action)  # type: ignore[no-any-return]
