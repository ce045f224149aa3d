"""Simulators: batched environments of torch tensors."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

CLOSED: list[int] = []
"""Numbers of environments of the CartPole simulators that were closed in this process."""
Result = tuple[Any, Tensor, Tensor, Tensor, dict[str, Any]]


class CartPole:
    """The dynamics of gymnasium's CartPole-v1, in float32. An environment whose episode ends is reset in the same env step.

    final_obs: whether the info has the last observations · limit: env steps at which an episode is truncated.
    """

    def __init__(self, num_envs: int, final_obs: bool = True, limit: int = 500, fails_at: int = 0) -> None:
        self.num_envs, self.device = num_envs, torch.device("cpu")
        high = np.array([4.8, np.inf, 24 * math.pi / 180, np.inf], np.float32)
        self.single_observation_space: spaces.Space[Any] = spaces.Box(-high, high)
        self.single_action_space: spaces.Space[Any] = spaces.Discrete(2)
        self._final_obs, self._limit, self._fails_at = final_obs, limit, fails_at
        self._steps = 0

    def reset(self, seed: int | None = None) -> tuple[Any, dict[str, Any]]:
        self._generator = torch.Generator().manual_seed(seed or 0)
        self._state = self._start()
        self._time = torch.zeros(self.num_envs, dtype=torch.int64)
        return self._observed(self._state), {}

    def step(self, action: Tensor) -> Result:
        self._steps += 1
        if self._steps == self._fails_at:
            raise RuntimeError("the GPU is on fire")
        x, v, angle, spin = self._state.unbind(1)
        force = torch.where(action == 1, 10.0, -10.0)
        sine, cosine = angle.sin(), angle.cos()
        part = (force + 0.05 * spin.square() * sine) / 1.1
        spun = (9.8 * sine - cosine * part) / (0.5 * (4.0 / 3.0 - 0.1 * cosine.square() / 1.1))
        pushed = part - 0.05 * spun * cosine / 1.1
        last = torch.stack([x + 0.02 * v, v + 0.02 * pushed, angle + 0.02 * spin, spin + 0.02 * spun], 1)
        self._time += 1
        terminated = (last[:, 0].abs() > 2.4) | (last[:, 2].abs() > 12 * math.pi / 180)
        truncated = (self._time >= self._limit) & ~terminated
        over = terminated | truncated
        self._time[over] = 0
        self._state.copy_(torch.where(over[:, None], self._start(), last))  # in place, as many simulators
        info = {"final_obs": self._observed(last)} if self._final_obs else {}
        return self._observed(self._state), torch.ones(self.num_envs), terminated, truncated, info

    def close(self) -> None:
        CLOSED.append(self.num_envs)

    def _start(self) -> Tensor:
        return torch.rand((self.num_envs, 4), generator=self._generator) * 0.1 - 0.05

    def _observed(self, state: Tensor) -> Any:
        return state


class Several(CartPole):
    """Two actions, of which the first one pushes. seen: the last actions."""

    def __init__(self, num_envs: int) -> None:
        super().__init__(num_envs)
        self.single_action_space = spaces.MultiDiscrete([2, 3], start=[5, -1])

    def step(self, action: Tensor) -> Result:
        self.seen = action
        return super().step(action[:, 0] - 5)


class TwoGroups(CartPole):
    """Observations in two groups; that of the critic has one number more."""

    def __init__(self, num_envs: int, **kwargs: Any) -> None:
        super().__init__(num_envs, **kwargs)
        policy = self.single_observation_space
        critic = spaces.Box(-np.inf, np.inf, (5,), np.float32)
        self.single_observation_space = spaces.Dict({"policy": policy, "critic": critic})

    def _observed(self, state: Tensor) -> Any:
        return {"policy": state, "critic": torch.cat([state, state[:, :1]], 1)}


class Counter:
    """Episode k of environment i has i + 1 + k % 2 env steps. It observes (environment, episode, env step).

    Every second episode is truncated. The reward is 100·environment + env step.
    """

    def __init__(self, num_envs: int, final_obs: bool = True) -> None:
        self.num_envs, self.device = num_envs, torch.device("cpu")
        self.single_observation_space = spaces.Box(0, np.inf, (3,), np.float32)
        self.single_action_space = spaces.Box(-1.0, 1.0, (2,), np.float32)
        self.seeds: list[int | None] = []
        self.is_closed = False
        self._final_obs = final_obs

    def reset(self, seed: int | None = None) -> tuple[Tensor, dict[str, Any]]:
        self.seeds.append(seed)
        self._obs = torch.zeros(self.num_envs, 3)
        self._obs[:, 0] = torch.arange(self.num_envs)
        return self._obs, {}

    def step(self, action: Tensor) -> Result:
        assert action.shape == (self.num_envs, 2)
        env, episode, step = self._obs.clone().unbind(1)
        over = step + 1 == env + 1 + episode % 2
        truncated = over & (episode % 2 == 1)
        final = torch.stack([env, episode, step + 1], 1)
        self._obs.copy_(torch.where(over[:, None], torch.stack([env, episode + 1, 0 * step], 1), final))
        info = {"final_obs": final} if self._final_obs else {}
        return self._obs, 100 * env + step, over & ~truncated, truncated, info

    def close(self) -> None:
        self.is_closed = True


class Point:
    """A point on a line that should go to 0, in episodes of 20 env steps."""

    def __init__(self, num_envs: int) -> None:
        self.num_envs, self.device = num_envs, torch.device("cpu")
        self.single_observation_space = spaces.Box(-5.0, 5.0, (1,), np.float32)
        self.single_action_space = spaces.Box(-1.0, 1.0, (1,), np.float32)

    def reset(self, seed: int | None = None) -> tuple[Tensor, dict[str, Any]]:
        self._generator = torch.Generator().manual_seed(seed or 0)
        self._x, self._time = self._start(), 0
        return self._x, {}

    def step(self, action: Tensor) -> Result:
        last = (self._x + 0.5 * action).clamp(-5.0, 5.0)
        self._time += 1
        truncated = torch.full((self.num_envs,), self._time % 20 == 0)
        self._x = torch.where(truncated[:, None], self._start(), last)
        none = torch.zeros(self.num_envs, dtype=torch.bool)
        return self._x, -last[:, 0].abs(), none, truncated, {"final_obs": last}

    def _start(self) -> Tensor:
        return torch.rand((self.num_envs, 1), generator=self._generator) * 4 - 2


class Unbounded(Point):
    """Its action space has no bounds."""

    def __init__(self, num_envs: int) -> None:
        super().__init__(num_envs)
        self.single_action_space = spaces.Box(-np.inf, np.inf, (1,), np.float32)


def always_three(num_envs: int) -> CartPole:
    del num_envs
    return CartPole(3)
