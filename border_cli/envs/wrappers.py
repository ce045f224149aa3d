"""Wrappers of ours: of actions, of masks of actions, and of observations that other wrappers keep.

`env.wrappers` names FlattenActions and BoundActions as it names gymnasium's wrappers.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from itertools import product
from math import prod
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from border_cli.core.errors import UsageError
from border_cli.core.spaces import ACTION_MASK

MAX_COMBINATIONS = 4096


class FlattenActions(gymnasium.ActionWrapper[Any, Any, Any]):  # type: ignore[misc] # gymnasium is not checked
    """Numbers all combinations of a MultiDiscrete or MultiBinary action space, or of a Tuple or Dict of finite spaces.

    Raises UsageError for more than 4,096 combinations, and for other spaces.
    """

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        n = combinations(env.action_space)
        if not 0 < n <= MAX_COMBINATIONS:
            raise UsageError(
                f"env.wrappers: FlattenActions cannot number the actions of {env.action_space}\n"
                f"allowed: spaces of at most {MAX_COMBINATIONS:,} combinations"
            )
        self._actions = _all_actions(env.action_space)
        self.action_space = spaces.Discrete(n)

    def action(self, action: Any) -> Any:
        """The combination of this number."""
        return self._actions[int(action)]


def combinations(space: spaces.Space[Any]) -> int:
    """The number of actions in a space; 0 where it is not finite, or not one of those that `FlattenActions` takes."""
    if isinstance(space, spaces.Discrete):
        return int(space.n)
    if isinstance(space, spaces.MultiDiscrete | spaces.MultiBinary):
        sizes = space.nvec if isinstance(space, spaces.MultiDiscrete) else np.full(space.shape, 2)
        return prod(sizes.ravel().tolist())
    return prod(map(combinations, _within(space))) if isinstance(space, spaces.Tuple | spaces.Dict) else 0


def _within(space: spaces.Tuple | spaces.Dict) -> list[spaces.Space[Any]]:
    return list(space.spaces.values() if isinstance(space, spaces.Dict) else space.spaces)


def _all_actions(space: spaces.Space[Any]) -> list[Any]:
    """All actions of a finite space, the last component changing fastest."""
    if isinstance(space, spaces.Discrete):
        return list(np.arange(space.n, dtype=space.dtype) + space.start)
    if isinstance(space, spaces.MultiDiscrete):
        every = product(*(range(n) for n in space.nvec.ravel().tolist()))
        return [np.reshape(values, space.shape).astype(space.dtype) + space.start for values in every]
    if isinstance(space, spaces.MultiBinary):
        every = product((0, 1), repeat=prod(space.shape))
        return [np.reshape(values, space.shape).astype(space.dtype) for values in every]
    every = product(*map(_all_actions, _within(space)))
    return (
        [dict(zip(space.spaces, values, strict=True)) for values in every]
        if isinstance(space, spaces.Dict)
        else list(every)
    )


class BoundActions(gymnasium.ActionWrapper[Any, Any, Any]):  # type: ignore[misc] # gymnasium is not checked
    """Gives a Box of actions without finite bounds these bounds.

    Args:
        low, high: one number for all components, or one for each.
    """

    def __init__(
        self, env: gymnasium.Env[Any, Any], low: float | Sequence[float], high: float | Sequence[float]
    ) -> None:
        super().__init__(env)
        space = env.action_space
        if not isinstance(space, spaces.Box):
            raise UsageError(
                f"env.wrappers: BoundActions cannot bound the actions of {space}\nallowed: a Box"
            )
        bounds = [np.broadcast_to(np.asarray(bound, space.dtype), space.shape) for bound in (low, high)]
        self.action_space = spaces.Box(*bounds, dtype=space.dtype)

    def action(self, action: Any) -> Any:
        """The same action."""
        return action


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
                "env.action_mask=info: only one of a finite number of actions can be forbidden\n"
                "allowed: environments with a Discrete action space, or env.action_mask=none"
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
        given = np.ones(self._n, np.int8) if mask is None else np.asarray(mask).astype(np.int8)
        return {"obs": observation, ACTION_MASK: given}
