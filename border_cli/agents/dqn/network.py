"""The Q-network: an observation → k numbers per action, which the head in `heads.py` turns into values.

After the encoder come hidden layers, the trunk. A memory follows, if there is one; for IQN (Dabney et al., 2018) the
product with the embedded quantile levels; then the last hidden layer and the output layer. These two can be noisy
(Fortunato et al., 2018), and can be two streams, for the value of the state and for the advantage of each action (Wang et
al., 2016).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, cast

import torch
from torch import Tensor, nn

from border_cli.agents.dqn.config import DqnConfig, atoms_of
from border_cli.agents.memory import Gru, states_of_sequences
from border_cli.agents.nets import Encoder, Linear, NoisyLinear, in_float32, layer_list, scaled_noise
from border_cli.agents.params import TensorBatch
from border_cli.agents.quantiles import midpoints
from border_cli.core.spaces import EnvSpec


@dataclass(frozen=True, eq=False)
class Noise:
    """Random numbers of one forward pass.

    tau: (B, k) quantile levels of IQN; None: `act_quantiles` fixed levels · normal: (noise_size,) standard normal numbers
    for the noisy layers; None: they use their mean weights.
    """

    tau: Tensor | None = None
    normal: Tensor | None = None


NO_NOISE = Noise()


class QNetwork(nn.Module):
    """A ReLU network whose sizes follow from the spaces.

    noise_size: standard normal numbers that its noisy layers take.
    """

    def __init__(self, spec: EnvSpec, config: DqnConfig, generator: torch.Generator) -> None:
        super().__init__()
        self.encoder = Encoder(spec.inputs, config, generator)
        self.branches = spec.action.branches
        self.n_actions, self._outputs = len(self.branches) * spec.action.n, config.outputs
        self.is_implicit = config.head == "implicit_quantile"
        self.act_quantiles = config.act_quantiles
        self._dueling = config.dueling
        sizes = [self.encoder.features, *config.hidden]
        # All hidden layers but the last are the trunk, and at least one unless there are convolutions.
        depth = max(len(config.hidden) - 1, min(len(config.hidden), 0 if self.encoder.is_deep else 1))
        top, k = sizes[depth:], self.n_actions * self._outputs
        if config.gru is not None:
            top = [config.gru, *top[1:]]

        def after_trunk(sizes: Sequence[int]) -> list[nn.Module]:
            return [
                NoisyLinear(n_in, n_out, generator, config.noisy_std)
                if config.noisy
                else Linear(n_in, n_out, generator)
                for n_in, n_out in pairwise(sizes)
            ]

        trunk = [Linear(n_in, n_out, generator) for n_in, n_out in pairwise(sizes[: depth + 1])]
        # Tuples beside the ModuleLists, because slicing a ModuleList takes longer than calling a layer.
        self.trunk, self.top, self.value_layers = (
            tuple(trunk),
            tuple(after_trunk([*top, k])),
            tuple[nn.Module](),
        )
        if config.dueling:
            self.layers = nn.ModuleList(trunk)
            self.advantage = nn.ModuleList(self.top)
            self.value_layers = tuple(after_trunk([*top, self._outputs]))
            self.value = nn.ModuleList(self.value_layers)
        else:
            self.layers = nn.ModuleList([*trunk, *self.top])
        if self.is_implicit:
            self.levels = Linear(config.cosines, top[0], generator)
        self._burn_in = config.burn_in
        self.gru = None if config.gru is None else Gru(sizes[depth], config.gru, generator)
        if config.head == "categorical" and None in (config.v_min, config.v_max):
            # Far returns are improbable at first: p ~ 1/(1 + |z|)². Else the initial values would be huge.
            last = cast(Linear, (self.value_layers or self.top)[-1])
            with torch.no_grad():
                for i, atom in enumerate(atoms_of(config).tolist()):
                    last.bias.view(-1, self._outputs)[:, i].sub_(2.0 * math.log1p(abs(atom)))
        self.noise_sizes = [layer.noise_size for layer in self.modules() if isinstance(layer, NoisyLinear)]
        self.noise_size = sum(self.noise_sizes)

    def forward(
        self, obs: dict[str, Tensor], noise: Noise = NO_NOISE, sequences: TensorBatch | None = None
    ) -> Tensor:
        """{name: (B, ...)} → (B, n, k), k numbers for each of n actions; (B·D, n, k) for D actions at once.

        sequences: for a network with a memory, the batch with these observations, (B, L, ...) → (B, T + n, n, k).
        """
        if sequences is None:
            return self.outputs(self.features(obs), noise)
        states = states_of_sequences(cast(Gru, self.gru), self.features, sequences, self._burn_in)
        return self.outputs(states.flatten(0, 1), noise).view(*states.shape[:2], self.n_actions, -1)

    def features(self, obs: dict[str, Tensor]) -> Tensor:
        """{name: (B, ...)} → (B, f), what comes out of the trunk."""
        x: Tensor = self.encoder(obs)
        for layer in self.trunk:
            x = torch.relu(layer(x))
        return x

    def outputs(self, x: Tensor, noise: Noise = NO_NOISE) -> Tensor:
        """(B, f) features, or states of the memory → (B, n, k)."""
        if self.is_implicit:
            # Levels τ (B, k) are embedded as (B, k, features): ReLU of a linear layer of cos(π·i·τ), i = 1 … cosines.
            tau = midpoints(self.act_quantiles, x).expand(x.shape[0], -1) if noise.tau is None else noise.tau
            i = torch.arange(1, self.levels.in_features + 1, device=x.device)
            x = x.unsqueeze(1) * torch.relu(self.levels(torch.cos(math.pi * i * tau.unsqueeze(-1))))
        # Each noisy layer takes the next of these parts, in the order of `modules()`.
        normal: Iterator[Tensor] = (
            iter(()) if noise.normal is None else iter(scaled_noise(noise.normal).split(self.noise_sizes))
        )
        out = _feed(self.top, x, normal)
        value = _feed(self.value_layers, x, normal) if self._dueling else None
        d = len(self.branches)
        out = out.view(*out.shape[:-1], *((d,) if d > 1 else ()), -1, self._outputs)
        if value is not None:
            value = value.unsqueeze(-2) if d == 1 else value[..., None, None, :]
            out = value + out - out.mean(-2, keepdim=True)  # Q = V + A - mean over the actions of A
        if d > 1:
            out = out.flatten(-3, -2)
        out = out.squeeze(-1).transpose(1, 2) if self.is_implicit else out
        return cast(Tensor, self.of_outputs(out))

    def of_outputs(self, out: Any, features: Any = None) -> Any:
        """(B, D·n, k) of D actions at once, arrays or tensors → (B·D, n, k)."""
        return out.reshape(-1, max(self.branches), out.shape[-1])

    def described(self) -> dict[str, Any]:
        memory = [] if self.gru is None else layer_list(self, [self.gru])
        description = {
            "encoder": self.encoder.described(),
            "layers": layer_list(self, self.trunk, relu_at_end=True) + memory,
            "out": layer_list(self, self.top),
            "value": layer_list(self, self.value_layers),
            "actions": self.n_actions,
            "branches": len(self.branches),
        }
        if self.is_implicit:
            embedding = layer_list(self, [self.levels], relu_at_end=True)
            description |= {"levels": self.act_quantiles, "embedding": embedding}
        return description

    def remember(
        self, obs: dict[str, Tensor], state: Tensor, noise: Noise = NO_NOISE
    ) -> tuple[Tensor, Tensor]:
        """One time step with a memory: {name: (B, ...)} and (B, units) → (B, n, k), and (B, units) after it."""
        _, after = cast(Gru, self.gru)(self.features(obs).unsqueeze(1), state)
        return self.outputs(after, noise), after


def _feed(layers: Sequence[nn.Module], x: Tensor, normal: Iterator[Tensor]) -> Tensor:
    """Apply layers with ReLU between them. Each noisy layer takes the next noise tensor, if there are any."""
    for i, layer in enumerate(layers):
        noise = next(normal, None) if isinstance(layer, NoisyLinear) else None
        inputs = (x,) if noise is None else (x, noise)
        x = in_float32(layer, *inputs) if i == len(layers) - 1 else torch.relu(layer(*inputs))
    return x
