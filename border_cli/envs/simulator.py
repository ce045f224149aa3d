"""The adapter over a simulator, which steps many environments at once with torch tensors (`env=simulator`)."""

from __future__ import annotations

import contextlib
import logging
import traceback
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from border_cli.config.schema import EnvConfig
from border_cli.core.errors import ActorLostError, BorderError, UsageError
from border_cli.core.spaces import Array, Obs
from border_cli.core.types import Step
from border_cli.envs.checks import EnvDataError
from border_cli.envs.gym_spaces import env_spec
from border_cli.envs.make import maker

_logger = logging.getLogger(__name__)


class Simulator:
    """All environments of a simulator. Each starts its next episode in the env step that ends one.

    The function that `env.entry_point` names makes it from `num_envs` and `env.kwargs`. It has the attributes
    single_observation_space, single_action_space and device, and the methods `reset(seed=…)` → (obs, info) and
    `step(action)` → (obs, reward, terminated, truncated, info) of tensors (num_envs, ...); obs may be a dict of them.
    Where an episode ends, info["final_obs"] has its last observation. What it raises becomes ActorLostError.

    Args:
        owner: who acts in it, for messages.
        device: where the observations are wanted.

    Attributes:
        obs: (n_envs, ...) current observations as stored; no later env step changes these tensors.
        resets: how often all environments were reset.
    """

    def __init__(self, config: EnvConfig, n_envs: int, owner: str, device: str = "cpu") -> None:
        self.n_envs, self._owner, self._device = n_envs, owner, torch.device(device)
        self.obs: dict[str, Tensor] = {}
        self.resets = self._env_steps = 0
        self._warned = False
        self._env: Any = None
        with self._failures("made"):
            env = self._env = maker(config)(num_envs=n_envs, **config.kwargs)
            space, actions = env.single_observation_space, env.single_action_space
            if isinstance(actions, spaces.Box) and not actions.is_bounded():
                raise UsageError(
                    f"env.entry_point: the action space {actions} has no bounds",
                    allowed="a factory that sets a single_action_space with bounds, such as Box(-1, 1, shape)",
                )
            self.spec = env_spec(space, actions, categories=config.categories, keys=config.obs_keys)
            spec, first = self.spec.action, np.zeros(())
            if spec.kind != "box":  # they are stored counted from 0
                first = spec.bounds[0] if spec.kind == "multi_discrete" else np.array(spec.start)
            self._first = torch.from_numpy(first.astype(spec.stored_dtype))

    def reset(self, seed: int) -> None:
        with self._failures("reset"):
            self.resets += 1
            self.obs = self._stored(self._env.reset(seed=seed)[0])

    def step(self, action: Tensor) -> Step:
        """One env step in all environments. action: (n_envs, ...) as stored. Its observations are tensors."""
        with self._failures("stepped"):
            action_there = (action + self._first.to(action.device)).to(self._env.device)
            observation, reward, terminated, truncated, info = self._env.step(action_there)
            before, self.obs = self.obs, self._stored(observation)
            next_obs, over = self.obs, (terminated | truncated).to(self._device)
            if "final_obs" in info:
                last = self._stored(info["final_obs"])
                next_obs = {
                    name: rows.where(over.view(-1, *[1] * (rows.dim() - 1)), self.obs[name])
                    for name, rows in last.items()
                }
            # x - x is 0, but NaN for NaN and ±inf.
            observed = [
                rows.reshape(self.n_envs, -1).float() for rows in (*next_obs.values(), *self.obs.values())
            ]
            noughts = sum(((rows - rows).sum(1) for rows in observed), 0.0 * reward.to(self._device))
            # All that the host needs, in one copy from the device.
            parts = [part.to(self._device).float() for part in (reward, terminated, truncated, noughts)]
            values: Array = torch.stack(parts).cpu().numpy()
            terminated, truncated = values[1:3] > 0
            if np.isnan(values[3]).any():
                where = np.isnan(values[3]).argmax()
                raise EnvDataError(f"the reward or observation of environment {where} is not finite")
            if "final_obs" not in info and (terminated | truncated).any() and not self._warned:
                self._warned = True
                _logger.warning(
                    'the simulator gives no info["final_obs"]: the first observation of the next episode stands for the '
                    "last one of each episode, so what is learned of truncated episodes is biased"
                )
            self._env_steps += self.n_envs
        reward, every = values[0].astype(np.float64), range(self.n_envs)
        return Step(every, before, action, reward, terminated, truncated, next_obs)  # type: ignore[arg-type]

    def _stored(self, observation: Any) -> dict[str, Tensor]:
        """Copies of observations, by leaf, as stored: counted from 0, with the stored dtype."""
        stored = {}
        for leaf in self.spec.obs.leaves:
            value, shape = observation, (self.n_envs, *leaf.shape)
            for key in leaf.path:
                value = value[key]
            if value.shape != shape:
                raise EnvDataError(
                    f"observation {leaf.name} has shape {tuple(value.shape)}, its space says {shape}"
                )
            if any(leaf.start):
                value = value - torch.tensor(leaf.start, device=value.device).view(leaf.shape)
            stored[leaf.name] = value.to(self._device, getattr(torch, leaf.dtype), copy=True)
        return stored

    def close(self) -> None:
        """Release it; a second call does nothing."""
        env, self._env = self._env, None
        if hasattr(env, "close"):
            env.close()

    @property
    def is_open(self) -> bool:
        return self._env is not None

    @contextlib.contextmanager
    def _failures(self, phase: str) -> Iterator[None]:
        """Turn what the simulator raises inside into ActorLostError."""
        try:
            yield
        except (Exception, SystemExit) as e:
            if isinstance(e, BorderError):
                raise
            context = {"who": self._owner, "phase": phase, "env_steps": self._env_steps}
            message = f"the simulator of {self._owner} failed when it was {phase}, after {self._env_steps} env steps"
            details = "".join(traceback.format_exception(e))
            raise ActorLostError(f"{message}: {type(e).__name__}: {e}", details, context) from e


class SimulatorEpisodes:
    """A simulator as `core.protocols.Env`, for evaluations: each of its first `n_envs` environments plays one episode.

    The episodes begin together, when environment 0 is reset. The steps have no observations: see `observe`.
    """

    together: list[int] | None = None

    def __init__(self, simulator: Simulator, n_envs: int) -> None:
        self.n_envs, self.spec, self.close = n_envs, simulator.spec, simulator.close
        self._simulator = simulator

    def reset(self, env_ix: int, seed: int | None = None) -> None:
        if env_ix == 0:
            self._simulator.reset(seed or 0)

    def observe(self, env_ix: Sequence[int]) -> Obs:
        return {name: rows.cpu().numpy()[list(env_ix)] for name, rows in self._simulator.obs.items()}

    def step(self, env_ix: Sequence[int], action: Array) -> Step:
        ix, every = list(env_ix), action[:1].repeat(self._simulator.n_envs, 0)  # of the others, any action
        every[ix] = action
        step = self._simulator.step(torch.from_numpy(every))
        return Step(env_ix, {}, action, step.reward[ix], step.terminated[ix], step.truncated[ix], {})
