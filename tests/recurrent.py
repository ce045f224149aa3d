"""A plugin: an agent with a hidden state per environment, and an environment that needs memory.

The hidden state decays and adds up the observations: h_t = h_{t-1}/2 + x_t, with h_{-1} = 0 in every episode. The value
network sees (x_t, h_t). Each row stores h_{t-1}, so that an opt step computes h_t and h_{t+1} from the row alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from border_cli.agents.agent import Family
from border_cli.agents.dqn.agent import DqnAlgorithm, DqnPolicy, check_spec
from border_cli.agents.dqn.config import DqnConfig
from border_cli.agents.dqn.network import QNetwork
from border_cli.agents.params import TensorBatch
from border_cli.config.registry import register
from border_cli.config.schema import override_default
from border_cli.core.spaces import Array, EnvSpec, Obs, ObsLeaf, ObsSpec
from border_cli.core.types import Column, Step

__all__ = ["check_spec"]
HIDDEN = "hidden"


class Cue(gymnasium.Env[Any, Any]):
    """Shows ±1 in the first observation and 0 in the others; the last action must repeat it. Observations: cue, time."""

    observation_space = spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = spaces.Discrete(2)
    length = 4

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Array, dict[str, Any]]:
        super().reset(seed=seed)
        self.t, self.cue = 0, 2 * int(self.np_random.integers(2)) - 1
        return np.array([self.cue, 0.0], np.float32), {}

    def step(self, action: int) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        self.t += 1
        is_last = self.t == self.length
        reward = float(self.cue * (2 * action - 1)) if is_last else 0.0
        return np.array([0.0, self.t / self.length], np.float32), reward, is_last, False, {}


@dataclass
class RecurrentConfig(DqnConfig):
    type: str = override_default(DqnConfig, "type", "recurrent")


def advance(hidden: Any, obs: Any) -> Any:
    """h_{t-1}, x_t → h_t, of arrays or tensors."""
    return 0.5 * hidden + obs


def with_hidden(spec: EnvSpec) -> EnvSpec:
    """Return the spec of the network's input: the observation with the hidden state."""
    leaf = replace(spec.obs.leaves[0], name=HIDDEN, low=None, high=None)
    return EnvSpec(ObsSpec((*spec.obs.leaves, leaf)), spec.action)


class RecurrentPolicy(DqnPolicy):
    """Keeps the hidden state of each environment during an episode, in training and in evaluation."""

    def __init__(self, *args: Any, **others: Any) -> None:
        super().__init__(*args, **others)
        self.hidden: dict[int, Array] = {}
        self._before: Array | None = None

    def begin_episode(self, env_ix: int) -> None:
        self.hidden.pop(env_ix, None)

    def sample(self, obs: Obs, env_steps: int = 0, env_ix: Sequence[int] = ()) -> Array:
        before = np.stack([self.hidden.get(i, np.zeros_like(obs["obs"][0])) for i in env_ix])
        after = advance(before, obs["obs"])
        self._before = before
        self.hidden |= dict(zip(env_ix, after, strict=True))
        return super().sample(obs | {HIDDEN: after}, env_steps, env_ix)

    def extras(self, step: Step) -> dict[str, Array]:
        assert self._before is not None
        return super().extras(step) | {HIDDEN: self._before}

    def generator_state(self) -> dict[str, Any]:
        return super().generator_state() | {HIDDEN: {str(i): h.tolist() for i, h in self.hidden.items()}}

    def load_generator_state(self, state: dict[str, Any]) -> None:
        rest = dict(state)
        self.hidden = {int(i): np.array(h, np.float32) for i, h in rest.pop(HIDDEN).items()}
        super().load_generator_state(rest)


class RecurrentAlgorithm(DqnAlgorithm):
    """DQN on (x_t, h_t), where h_t follows from the stored h_{t-1}."""

    def step(self, batch: TensorBatch, noise: Any, lr_scale: Any, variant: int) -> Tensor | None:
        now = advance(batch.extra[HIDDEN], batch.obs["obs"])
        later = advance(now, batch.next_obs["obs"])
        whole = replace(batch, obs=batch.obs | {HIDDEN: now}, next_obs=batch.next_obs | {HIDDEN: later})
        return super().step(whole, noise, lr_scale, variant)


def extra_columns(config: RecurrentConfig, spec: EnvSpec) -> tuple[Column, ...]:
    leaf: ObsLeaf = spec.obs.leaves[0]
    return (Column(HIDDEN, leaf.shape, "float32"),)


def network(spec: EnvSpec, config: RecurrentConfig, generator: torch.Generator) -> QNetwork:
    return QNetwork(with_hidden(spec), config, generator)


FAMILY = Family(check_spec, RecurrentPolicy, RecurrentAlgorithm, network, acting="online")
make_policy, make_agent = FAMILY.make_policy, FAMILY.make_agent
register("agent", "recurrent", RecurrentConfig, __name__)
