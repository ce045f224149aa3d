"""Test environments: one for each kind of space, one that watches its run, and some that fail."""

from __future__ import annotations

import copy
import json
import logging
import math
import multiprocessing
import warnings
from pathlib import Path
from typing import Any, ClassVar

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
    "number and kind": spaces.Dict(
        x=spaces.Box(-np.inf, np.inf, (3,), np.float32), k=spaces.Discrete(4, start=1)
    ),
    "tuple": spaces.Tuple((spaces.Box(-1.0, 1.0, (2, 2), np.float32), spaces.Dict(k=spaces.Discrete(2)))),
}


class Sampled(gymnasium.Env[Any, Any]):  # type: ignore[misc] # gymnasium is not checked
    """Observations drawn from a space, or one of SPACES. Actions are so many, from START, or of a space; others are errors.

    received: the actions that it gets.
    """

    def __init__(self, space: str | spaces.Space[Any], actions: int | spaces.Space[Any] = 3) -> None:
        space = SPACES[space] if isinstance(space, str) else space
        self.observation_space = copy.deepcopy(space)  # with its own random generator
        self.action_space = spaces.Discrete(actions, start=START) if isinstance(actions, int) else actions
        self.received: list[Any] = []
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
        self.received.append(action)
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

    def __init__(self, leaves_at: int = 60) -> None:
        super().__init__("image")
        self._leaves_at = leaves_at
        self._steps = 0

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._steps += 1
        if self._steps == self._leaves_at:
            raise SystemExit(9)
        return super().step(action)  # type: ignore[no-any-return]


class Grid(gymnasium.Env[Any, Any]):  # type: ignore[misc] # gymnasium is not checked
    """A corridor of five cells, seen as an image of categories, with the agent's cell as a number and with a text.

    The observation is a Dict: `image` (5, 5, 3) uint8 between 0 and 255, whose channels have the categories 0 … 9, 0 … 5
    and 0 at the agent's cell in row 2 and 1, 0, 0 elsewhere; `cell`; and `mission`, which no agent takes. Action 1 moves
    right, 0 left. The last cell ends the episode with the reward 1.
    """

    def __init__(self, parts: tuple[str, ...] = ("image", "cell", "mission"), brightest: int = 9) -> None:
        every: dict[str, spaces.Space[Any]] = {
            "image": spaces.Box(0, 255, (5, 5, 3), np.uint8),
            "cell": spaces.Discrete(5),
            "mission": spaces.Text(20),
        }
        self.observation_space = spaces.Dict({name: every[name] for name in parts})
        self.action_space = spaces.Discrete(2)
        self._brightest = brightest
        self._cell = 0

    def _observation(self) -> dict[str, Any]:
        image = np.zeros((5, 5, 3), np.uint8)
        image[:, :, 0] = 1
        image[2, self._cell] = (self._brightest, 5, 0)
        every = {"image": image, "cell": self._cell, "mission": "go right"}
        return {name: every[name] for name in self.observation_space.spaces}

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._cell = 0
        return self._observation(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._cell = min(max(self._cell + (1 if action else -1), 0), 4)
        over = self._cell == 4
        return self._observation(), float(over), over, False, {}


class MaskedGrid(Grid):
    """The same with a mask in its info that forbids action 0."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        return super().reset(seed=seed)[0], {"action_mask": np.array([0, 1], np.int8)}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert action == 1
        return *super().step(action)[:4], {"action_mask": np.array([0, 1], np.int8)}


class Add(gymnasium.ObservationWrapper[Any, Any, Any]):  # type: ignore[misc] # gymnasium is not checked
    """Adds a number to each observation of `CountingEnv`."""

    def __init__(self, env: gymnasium.Env[Any, Any], number: int) -> None:
        super().__init__(env)
        self._number = number

    def observation(self, observation: Any) -> Any:
        return observation + self._number


def twice(env: gymnasium.Env[Any, Any]) -> gymnasium.Env[Any, Any]:
    """Doubles each observation."""
    return gymnasium.wrappers.TransformObservation(env, lambda o: 2 * o, env.observation_space)


class Scaled(Add):
    """Multiplies each observation by a number; its space is unbounded."""

    def __init__(self, env: gymnasium.Env[Any, Any], number: int) -> None:
        super().__init__(env, number)
        shape = env.observation_space.shape
        self.observation_space = spaces.Box(-np.inf, np.inf, shape, np.float64)

    def observation(self, observation: Any) -> Any:
        return observation * float(self._number)


class SameStart(gymnasium.Wrapper[Any, Any, Any, Any]):  # type: ignore[misc] # gymnasium is not checked
    """Begins every episode in the same state, so that the actions alone determine it."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        return super().reset(seed=3, options=options)


class RunningMeanStd:
    """Stands for the statistics of another library."""


class Standardized(gymnasium.Wrapper[Any, Any, Any, Any]):  # type: ignore[misc] # gymnasium is not checked
    """Has statistics of rewards under a name of its own."""

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        self._of_returns = RunningMeanStd()


def normalized_cartpole() -> gymnasium.Env[Any, Any]:
    """Return CartPole that normalises its observations, with two wrappers around that."""
    env = gymnasium.wrappers.NormalizeObservation(gymnasium.make("CartPole-v1"))
    return gymnasium.wrappers.TimeLimit(gymnasium.wrappers.ClipReward(env, 0.0, 1.0), 10)


def only_image() -> gymnasium.Env[Any, Any]:
    """Return the image of `Grid` without a Dict."""
    space = spaces.Box(0, 255, (5, 5, 3), np.uint8)
    return gymnasium.wrappers.TransformObservation(Grid(), lambda o: o["image"], space)


class Reporting(gymnasium.Env[np.ndarray, int]):
    """Episodes of five env steps. At their end, info has the number of the episode, which is even or not."""

    observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self) -> None:
        self._episode = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self._episode += 1
        self._steps = 0
        return np.zeros(2, np.float32), {"is_even": "unknown"}

    def step(self, action: int) -> Any:
        self._steps += 1
        info = (
            {"is_even": self._episode % 2 == 0, "label": "x"} if self._steps == 5 else {"is_even": math.nan}
        )
        return np.zeros(2, np.float32), 1.0, self._steps == 5, False, info


# -- those that do not follow gymnasium's API, such as those for gym before 0.26, and one that warns -----

ZEROS = np.zeros(2, np.float32)


class Sound(gymnasium.Env[Any, Any]):  # type: ignore[misc] # gymnasium is not checked
    """A correct environment that returns zeros and never ends."""

    observation_space = spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return ZEROS, {}

    def step(self, action: Any) -> Any:
        return ZEROS, 1.0, False, False, {}


class ResetWithoutSeed(Sound):
    def reset(self) -> Any:  # type: ignore[override]
        return ZEROS


class FourValues(Sound):
    def step(self, action: Any) -> Any:
        return ZEROS, 1.0, False, {}


class OutOfItsSpace(Sound):
    """Its observations have other shapes than its space."""

    def step(self, action: Any) -> Any:
        observation, *rest = super().step(action)
        return (np.concatenate([observation, observation]), *rest)


class NoEnv:
    """Has all methods of an environment, but is not a gymnasium.Env."""

    observation_space, action_space = Sound.observation_space, Sound.action_space
    metadata: ClassVar[dict[str, Any]] = {}
    reset, step = Sound.reset, Sound.step


class Warns(Sound):
    """Warns when it is made, like gymnasium does for outdated environments."""

    def __init__(self) -> None:
        warnings.warn("\x1b[33mWARN: out of date\x1b[0m", DeprecationWarning, stacklevel=2)
        warnings.warn("slow", UserWarning, stacklevel=2)
        warnings.warn("", UserWarning, stacklevel=2)


for kind in (FourValues, NoEnv):  # gymnasium wraps these
    gymnasium.register(f"tests/{kind.__name__}-v0", f"{__name__}:{kind.__name__}", max_episode_steps=50)
