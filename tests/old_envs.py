"""Environments that do not follow gymnasium's API, such as those for gym before 0.26, and one that warns."""

from __future__ import annotations

import warnings
from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium import spaces

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


class OutOfBounds(Sound):
    def step(self, action: Any) -> Any:
        return ZEROS + 3, 1.0, False, False, {}


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
