"""The value network: observation → for each action one value, or the numbers that a head makes a distribution of.

Layers, after the encoding: a trunk of hidden layers; then, for IQN, the product with the coded levels τ; then the last
hidden layer and the outputs, which are noisy, or two streams (Wang et al., 2016), if that is asked for.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn

from border_cli.agents.dqn.config import DqnConfig
from border_cli.agents.dqn.heads import make_head
from border_cli.agents.encoding import Encoder
from border_cli.agents.layers import Linear, NoisyLinear, scaled_noise
from border_cli.agents.quantiles import midpoints
from border_cli.core.spaces import EnvSpec


@dataclass(frozen=True, eq=False)
class Draws:
    """What chance has to do with one forward pass.

    tau: (B, k) levels of the quantiles, for IQN; without them k fixed ones · noise: (noise_size,) standard normal
    numbers for noisy layers; without them the mean weights count.
    """

    tau: Tensor | None = None
    noise: Tensor | None = None


NO_DRAWS = Draws()
Noise = Iterator[Tensor | None]
"""The share of one noisy layer after the other."""


class QNetwork(nn.Module):
    """A ReLU network with the sizes that follow from the spaces. noise_size: standard normal numbers it can take."""

    def __init__(self, spec: EnvSpec, config: DqnConfig, generator: torch.Generator) -> None:
        super().__init__()
        self.encoder = Encoder(spec.inputs, config.channels, generator)
        self._n, self._outputs = spec.action.n, make_head(config).outputs
        self._is_implicit = config.head == "implicit_quantile"
        self._act_quantiles = config.act_quantiles
        sizes = [self.encoder.features, *config.hidden]
        least = 0 if self.encoder.has_images else 1  # convolutions are trunk enough
        self._depth = max(
            len(config.hidden) - 1, min(len(config.hidden), least)
        )  # hidden layers of the trunk
        top, k = sizes[self._depth :], self._n * self._outputs
        layers = [Linear(n_in, n_out, generator) for n_in, n_out in pairwise(sizes[: self._depth + 1])]
        make = _Maker(config, generator)
        if config.dueling:
            self.layers = nn.ModuleList(layers)
            self.advantage = nn.ModuleList(make(n_in, n_out) for n_in, n_out in pairwise([*top, k]))
            self.value = nn.ModuleList(make(n_in, n_out) for n_in, n_out in pairwise([*top, self._outputs]))
        else:
            self.layers = nn.ModuleList(
                [*layers, *(make(n_in, n_out) for n_in, n_out in pairwise([*top, k]))]
            )
        self._dueling = config.dueling
        # As tuples: a slice of a ModuleList is a new module, which takes longer to make than a layer to be passed.
        self._advantage = tuple(self.advantage) if config.dueling else ()
        self._value = tuple(self.value) if config.dueling else ()
        self._trunk, self._top = tuple(self.layers[: self._depth]), tuple(self.layers[self._depth :])
        if self._is_implicit:
            self.levels = Linear(config.cosines, top[0], generator)
        self._noise_sizes = [layer.noise_size for layer in self.modules() if isinstance(layer, NoisyLinear)]
        self.noise_size = sum(self._noise_sizes)

    def forward(self, obs: dict[str, Tensor], draws: Draws = NO_DRAWS) -> Tensor:
        """{name: (B, ...)} → (B, n, k), k numbers for each of n actions."""
        x = self.encoder(obs)
        for layer in self._trunk:
            x = torch.relu(layer(x))
        if self._is_implicit:
            x = x.unsqueeze(1) * self._coded(draws.tau, x)
        out = self._streams(x, iter(self._noise(draws.noise)))
        return out.squeeze(-1).transpose(1, 2) if self._is_implicit else out

    def _streams(self, x: Tensor, noise: Noise) -> Tensor:
        """(..., features) → (..., n, outputs)."""
        if not self._dueling:
            return self._per_action(_through(self._top, x, noise))
        advantage = self._per_action(_through(self._advantage, x, noise))
        value = _through(self._value, x, noise).unsqueeze(-2)
        return value + advantage - advantage.mean(-2, keepdim=True)

    def _per_action(self, out: Tensor) -> Tensor:
        return out.view(*out.shape[:-1], self._n, self._outputs)

    def _coded(self, tau: Tensor | None, x: Tensor) -> Tensor:
        """Levels (B, k) → (B, k, features)."""
        levels = midpoints(self._act_quantiles, x).expand(len(x), -1) if tau is None else tau
        i = torch.arange(1, self.levels.in_features + 1, device=x.device)
        return torch.relu(self.levels(torch.cos(math.pi * i * levels.unsqueeze(-1))))

    def _noise(self, noise: Tensor | None) -> Sequence[Tensor | None]:
        """The share of each noisy layer, in the order of the modules."""
        if noise is None:
            return [None] * len(self._noise_sizes)
        shares: Sequence[Tensor] = scaled_noise(noise).split(self._noise_sizes)
        return shares


class _Maker:
    """Makes the layers after the trunk."""

    def __init__(self, config: DqnConfig, generator: torch.Generator) -> None:
        self._noisy, self._std = config.noisy, config.noisy_std
        self._generator = generator

    def __call__(self, n_in: int, n_out: int) -> nn.Module:
        if self._noisy:
            return NoisyLinear(n_in, n_out, self._generator, self._std)
        return Linear(n_in, n_out, self._generator)


def _through(layers: Sequence[nn.Module], x: Tensor, noise: Noise) -> Tensor:
    """ReLU between the layers; noise is taken from the iterator by those that are noisy."""
    last = len(layers) - 1
    for i, layer in enumerate(layers):
        x = layer(x, next(noise)) if isinstance(layer, NoisyLinear) else layer(x)
        if i < last:
            x = torch.relu(x)
    return x
