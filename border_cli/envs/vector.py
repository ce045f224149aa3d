"""Vector environments: gymnasium's `VectorEnv`, whose sub-environments are stepped together and reset themselves."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space, iterate

from border_cli.core.errors import UsageError
from border_cli.envs.checks import checked

_MODES = "AutoresetMode.NEXT_STEP, DISABLED, or SAME_STEP with info['final_obs']"


class Vector:
    """A vector environment with what its last step or reset returned, split by sub-environment.

    Attributes:
        actions: of the next step; a sub-environment that resets in it ignores its own.
        mode: how the sub-environments reset.
        is_waiting: whether the step is due, because there are new actions.
        results: of the last step, as a single environment gives them. Where an episode ended, with its last observation.
    """

    def __init__(self, env: Any) -> None:
        self.env, self.n = env, int(env.num_envs)
        self.actions: list[Any] = [None] * self.n
        self.is_waiting = False
        self.results: list[tuple[Any, ...]] = []
        self._space = batch_space(env.single_observation_space, self.n)
        # Observation and info of each environment; of a new episode after a reset
        self._current: list[tuple[Any, dict[str, Any]]] = []
        self._ended: list[int] = []  # in the last step
        try:
            self.mode = AutoresetMode(env.metadata.get("autoreset_mode"))
        except ValueError as e:
            raise UsageError(f"env: {env} does not say when it resets", allowed=f"metadata: {_MODES}") from e

    def resets_in_next_step(self, index: int) -> bool:
        """Whether an episode has ended there, and the first observation of the next one comes with the next step."""
        return self.mode is AutoresetMode.NEXT_STEP and index in self._ended

    def reset(self, index: int, seed: int | None) -> tuple[Any, dict[str, Any]]:
        """First observation and info of an episode. A seed is used by the first call, or by all of one environment."""
        if not self._current or (self.n == 1 and seed is not None):
            self._split(*checked(self.env.reset(seed=seed), "reset"))
        elif self.mode is AutoresetMode.DISABLED and index in self._ended:
            self._split(*self.env.reset(options={"reset_mask": np.arange(self.n) == index}))
        return self._current[index]

    def step(self) -> None:
        """One env step of all sub-environments but those that reset."""
        self.is_waiting = False
        observation, *numbers, info = self.env.step(np.array(self.actions))
        self._split(observation, info)
        reward, terminated, truncated = (np.asarray(values).tolist() for values in numbers)
        self._ended = [i for i in range(self.n) if terminated[i] or truncated[i]]
        last = self._current.copy()
        if self.mode is AutoresetMode.SAME_STEP:
            for i in self._ended:
                if "final_obs" not in info or not info.get("_final_obs", {i: True})[i]:
                    raise UsageError(f"env: {self.env} loses episodes' last observations", allowed=_MODES)
                last[i] = _row(info["final_obs"], i), last[i][1] | _entries(info.get("final_info", {}), i)
        self.results = [
            (observation, *parts, info)
            for (observation, info), *parts in zip(last, reward, terminated, truncated, strict=True)
        ]

    def _split(self, observation: Any, info: dict[str, Any]) -> None:
        rows = iterate(self._space, observation)
        self._current = [(row, _entries(info, i)) for i, row in zip(range(self.n), rows, strict=True)]


class SubEnv(gymnasium.Env[Any, Any]):  # type: ignore[misc] # gymnasium is not checked
    """A sub-environment as an environment. Of several, each gets its action by `send`; the first `step` then steps all."""

    def __init__(self, vector: Vector, index: int) -> None:
        self.vector, self.index, self.env = vector, index, vector.env
        self.observation_space = self.env.single_observation_space
        self.action_space = self.env.single_action_space
        self.metadata, self.render_mode = self.env.metadata, self.env.render_mode

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        return self.vector.reset(self.index, seed)

    def send(self, action: Any) -> None:
        self.vector.actions[self.index] = action
        self.vector.is_waiting = True

    def step(self, action: Any) -> tuple[Any, ...]:
        if self.vector.n == 1:
            self.send(action)
        if self.vector.is_waiting:
            self.vector.step()
        return self.vector.results[self.index]

    def render(self) -> Any:
        return self.env.render()[self.index]

    def close(self) -> None:
        if self.index == 0:
            self.env.close()


def _row(batch: Any, index: int) -> Any:
    """One of an array (n, ...), or of arrays in a Dict or Tuple."""
    if isinstance(batch, dict):
        return {key: _row(part, index) for key, part in batch.items()}
    return tuple(_row(part, index) for part in batch) if isinstance(batch, tuple) else batch[index]


def _entries(info: dict[str, Any], index: int) -> dict[str, Any]:
    """The arrays of a vector environment's info for one sub-environment: `_key` says which ones have `key`."""
    return {
        key: values[index]
        for key, values in info.items()
        if isinstance(values, np.ndarray) and values.ndim and info.get(f"_{key}", {index: True})[index]
    }
