"""A vector environment whose observations say where they belong, and vector environments of others."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.vector.utils import batch_space

from tests.envs import Sampled

LENGTHS = (2, 3, 2)
TRUNCATED = 2
"""The sub-environment whose episodes are truncated; those of the others are terminated."""


class CountingVector(VectorEnv[Any, Any, Any]):  # type: ignore[misc] # gymnasium is not checked
    """Observation (3,) int32: sub-environment, episode and time, both from 0. Reward: the new time; 100 where it resets.

    The array of the observations is always the same one. At an end, info["score"] is 10 · sub-environment + episode.

    Args:
        mode: what `metadata` says; None: nothing.
        lengths: env steps of the episodes of each sub-environment.
        final: whether info has the last observations, if they are reset in the same step.
        nan_at: the last two rewards are NaN in this step, counted from 1.
        nan_spread: the seed of the first reset, modulo this, is added to nan_at.
    """

    def __init__(
        self,
        num_envs: int,
        mode: str | None = "NextStep",
        lengths: tuple[int, ...] = LENGTHS,
        final: bool = True,
        nan_at: int = 0,
        nan_spread: int = 1,
    ) -> None:
        self.num_envs = num_envs
        self.metadata = {} if mode is None else {"autoreset_mode": mode}
        self.single_observation_space = gymnasium.spaces.Box(0, 10_000, (3,), np.int32)
        self.single_action_space = gymnasium.spaces.Discrete(2)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.received: list[Any] = []
        self.seeds: list[Any] = []
        self.closed = 0
        self._mode = AutoresetMode(mode or "NextStep")
        self._lengths = np.resize(lengths, num_envs)
        self._final, self._nan_at, self._nan_spread = final, nan_at, nan_spread
        self._observation = np.zeros((num_envs, 3), np.int32)
        self._observation[:, 0] = range(num_envs)
        self._observation[:, 1] = -1
        self._ended = np.zeros(num_envs, bool)

    def _begin(self, which: Any) -> None:
        self._observation[which, 1] += 1
        self._observation[which, 2] = 0

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        which = (options or {}).get("reset_mask", np.ones(self.num_envs, bool))
        assert options is None or seed is None
        self._nan_at += 0 if seed is None or self.seeds else seed % self._nan_spread
        self.seeds.append(seed)
        self._begin(which)
        self._ended[which] = False
        return self._observation, {}

    def step(self, actions: Any) -> tuple[Any, ...]:
        assert actions.dtype == np.int64 and self.action_space.contains(actions)
        self.received.append(actions)
        resets = self._ended.copy()
        assert self._mode is AutoresetMode.NEXT_STEP or not resets.any()
        self._begin(resets)
        self._observation[~resets, 2] += 1
        reward = np.where(resets, 100.0, self._observation[:, 2])
        over = ~resets & (self._observation[:, 2] == self._lengths)
        is_last = np.arange(self.num_envs) == TRUNCATED
        info: dict[str, Any] = {}
        if over.any():
            info = {"score": 10 * self._observation[:, 0] + self._observation[:, 1], "_score": over}
        self._ended = over.copy()
        if self._mode is AutoresetMode.SAME_STEP and over.any():
            info = {"final_info": info} | ({"final_obs": self._observation.copy()} if self._final else {})
            self._begin(over)
            self._ended[:] = False
        if len(self.received) == self._nan_at:
            reward[-2:] = np.nan
        return self._observation, reward, over & ~is_last, over & is_last, info

    def close(self, **kwargs: Any) -> None:
        self.closed += 1


def sampled(num_envs: int, space: str, mode: str, actions: Any = 3) -> SyncVectorEnv:
    """Return environments of one of `envs.SPACES`. The arrays of the vector environment are always the same ones."""
    makers = [lambda: Sampled(space, actions)] * num_envs
    return SyncVectorEnv(makers, copy=False, autoreset_mode=AutoresetMode(mode))


class Masked(gymnasium.Env[Any, Any]):  # type: ignore[misc] # gymnasium is not checked
    """Observation (1,): the time; info allows action time % 3 alone, and another one is an error. Three env steps."""

    def __init__(self) -> None:
        self.observation_space = gymnasium.spaces.Box(0, 255, (1,), np.uint8)
        self.action_space = gymnasium.spaces.Discrete(3)
        self._time = 0

    def _result(self) -> tuple[Any, dict[str, Any]]:
        return np.array([self._time], np.uint8), {"action_mask": np.eye(3, dtype=np.int8)[self._time % 3]}

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self._time = 0
        return self._result()

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert action == self._time % 3
        self._time += 1
        observation, info = self._result()
        return observation, 1.0, self._time == 3, False, info


def masked(num_envs: int, mode: str) -> SyncVectorEnv:
    return SyncVectorEnv([Masked] * num_envs, autoreset_mode=AutoresetMode(mode))
