"""What every policy with a network has: weights that can be replaced, two modes, and generators of its own."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from border_cli.agents.encoding import to_tensors
from border_cli.agents.flat import FlatModule
from border_cli.core.protocols import Estimates, ModelInfo
from border_cli.core.spaces import Array, Obs
from border_cli.runtime import seeding


class NetworkPolicy(ABC):
    """Implements `core.protocols.ActingPolicy` but for the choice of actions.

    weights: the network's vector, used in place, so that an agent's policy acts with what the agent learns ·
    rng: of exploration; evaluations draw from a generator of their own below `seed`, anew in each ·
    network: works with the weights as they are at each call.
    """

    def __init__(self, net: FlatModule, weights: Tensor, rng: np.random.Generator, seed: int) -> None:
        self._net = net
        self._weights = weights
        self._network = net.over(weights)
        self._rng = rng
        self._seed = seed
        self._evaluation_rng = seeding.generator(seed, seeding.EVALUATION_POLICY)
        self._exploring = True
        self.version = 0

    @property
    def weights(self) -> Tensor:
        """The vector it acts with."""
        return self._weights

    def sample(self, obs: Obs, env_steps: int = 0, env_ix: Sequence[int] = ()) -> Array:
        """Actions (B, ...) as stored."""
        with torch.inference_mode():
            tensors = to_tensors(obs, self._weights.device)
            return self._explore(tensors, env_steps, env_ix) if self._exploring else self._exploit(tensors)

    @abstractmethod
    def _explore(self, obs: dict[str, Tensor], env_steps: int, env_ix: Sequence[int]) -> Array:
        """Actions in train mode, drawn from `_rng`."""

    @abstractmethod
    def _exploit(self, obs: dict[str, Tensor]) -> Array:
        """Actions in eval mode, drawn from `_evaluation_rng` where anything is drawn."""

    def estimates(self) -> Estimates | None:
        """It knows of no values."""
        return None

    def begin_episode(self, env_ix: int) -> None:  # noqa: B027 - nothing to do is what most policies want
        """Nothing here lasts for an episode."""

    def train(self) -> None:
        """Explore from now on."""
        self._exploring = True

    def eval(self) -> None:
        """Exploit from now on."""
        self._exploring = False
        self._evaluation_rng = seeding.generator(self._seed, seeding.EVALUATION_POLICY)

    def model_info(self) -> ModelInfo:
        """The network's weights under its own names (views)."""
        host = self._weights.detach().cpu()
        return ModelInfo(self.version, {n: v.numpy() for n, v in self._net.views(host).items()})

    def sync_model(self, info: ModelInfo) -> None:
        """Copy the weights. Raises ValueError where names or shapes differ."""
        parts = self._net.views(self._weights)
        expected = {name: tuple(part.shape) for name, part in parts.items()}
        given = {name: tuple(array.shape) for name, array in info.arrays.items()}
        if expected != given:
            raise ValueError(f"the network has {expected}, the model {given}")
        with torch.no_grad():
            for name, part in parts.items():
                part.copy_(torch.from_numpy(np.ascontiguousarray(info.arrays[name])))
        self.version = info.version

    def generator_state(self) -> dict[str, Any]:
        """State of the exploration generator, as JSON values."""
        return dict(self._rng.bit_generator.state)

    def load_generator_state(self, state: dict[str, Any]) -> None:
        """Explore on from a saved state."""
        seeding.restore(self._rng, state)
