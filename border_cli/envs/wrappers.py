"""Wrappers of ours: of actions, of masks of actions, and of observations that other wrappers keep.

`env.wrappers` names FlattenActions, BoundActions and IntActions as it names gymnasium's wrappers.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from math import prod
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from border_cli.core.errors import UsageError
from border_cli.core.spaces import ACTION_MASK

MAX_COMBINATIONS = 4096


def flatten_actions(env: gymnasium.Env[Any, Any]) -> gymnasium.Env[Any, Any]:
    """Number the combinations of a MultiDiscrete or MultiBinary action space, the last component changing fastest.

    Raises UsageError for more than 4,096 of them, and for other spaces.
    """
    space = env.action_space
    sizes = component_sizes(space)
    if not 0 < prod(sizes) <= MAX_COMBINATIONS:
        raise UsageError(
            f"env.wrappers: FlattenActions cannot number the actions of {space}",
            allowed=f"MultiDiscrete and MultiBinary with at most {MAX_COMBINATIONS:,} combinations",
        )

    def combination(number: Any) -> Any:
        values = np.reshape(np.unravel_index(int(number), sizes), space.shape) + getattr(space, "start", 0)
        return values.astype(space.dtype)

    return gymnasium.wrappers.TransformAction(env, combination, spaces.Discrete(prod(sizes)))


def component_sizes(space: spaces.Space[Any]) -> list[int]:
    """How many values each component of a MultiDiscrete or MultiBinary space has; [0] for another space."""
    if isinstance(space, spaces.MultiBinary):
        return [2] * prod(space.shape)
    return space.nvec.ravel().tolist() if isinstance(space, spaces.MultiDiscrete) else [0]


def int_actions(env: gymnasium.Env[Any, Any]) -> gymnasium.Env[Any, Any]:
    """Give actions as Python's int."""
    return gymnasium.wrappers.TransformAction(env, int, env.action_space)


def bound_actions(
    env: gymnasium.Env[Any, Any], low: float | Sequence[float], high: float | Sequence[float]
) -> gymnasium.Env[Any, Any]:
    """Give a Box of actions without finite bounds these: one number for all components, or one for each."""
    shape, dtype = env.action_space.shape, env.action_space.dtype
    bounds = [np.broadcast_to(np.asarray(bound, dtype), shape) for bound in (low, high)]
    return gymnasium.wrappers.TransformAction(env, lambda action: action, spaces.Box(*bounds, dtype=dtype))


class CopiedObservation(gymnasium.ObservationWrapper[Any, Any, Any]):  # type: ignore[misc] # gymnasium is not checked
    """Copies each observation, for a wrapper that keeps some while the environment changes its own array in place."""

    def __getattr__(self, name: str) -> Any:
        """As if the wrapper around it had the environment itself."""
        return getattr(self.__dict__["env"], name)

    def observation(self, observation: Any) -> Any:
        """A copy."""
        return copy.deepcopy(observation)


class MaskFromInfo(gymnasium.Wrapper[Any, Any, Any, Any]):  # type: ignore[misc] # gymnasium is not checked
    """Adds info["action_mask"] to the observation, as a Dict. Without a mask in the info, all actions are allowed."""

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        if not isinstance(env.action_space, spaces.Discrete):
            raise UsageError(
                "env.action_mask=info: only one of a finite number of actions can be forbidden",
                allowed="environments with a Discrete action space, or env.action_mask=none",
            )
        self._n = int(env.action_space.n)
        self.observation_space = spaces.Dict(
            {"obs": env.observation_space, ACTION_MASK: spaces.MultiBinary(self._n)}
        )

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Adds the mask to the observation."""
        observation, info = self.env.reset(seed=seed, options=options)
        return self._masked(observation, info), info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Adds the mask to the observation."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        return self._masked(observation, info), reward, terminated, truncated, info

    def _masked(self, observation: Any, info: dict[str, Any]) -> dict[str, Any]:
        mask = info.get(ACTION_MASK)
        mask = np.ones(self._n, np.int8) if mask is None else np.asarray(mask).astype(np.int8)
        return {"obs": observation, ACTION_MASK: mask}
