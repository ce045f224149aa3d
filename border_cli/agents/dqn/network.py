"""The Q network: observation vector → one value per action."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from border_cli.agents.encoding import VectorEncoder
from border_cli.core.spaces import EnvSpec


class QNetwork(nn.Module):
    """A ReLU network with the sizes that follow from the spaces."""

    def __init__(self, spec: EnvSpec, hidden: Sequence[int], generator: torch.Generator) -> None:
        super().__init__()
        self.encoder = VectorEncoder(spec.obs)
        sizes = [spec.obs.features, *hidden, spec.action.n]
        self.layers = nn.ModuleList(_BlankLinear(n_in, n_out) for n_in, n_out in pairwise(sizes))
        for layer in self.layers:
            _initialise(layer, generator)

    def forward(self, obs: dict[str, Tensor]) -> Tensor:
        """{name: (B, ...)} → (B, n) action values."""
        x = self.encoder(obs)
        *hidden, last = self.layers
        for layer in hidden:
            x = torch.relu(layer(x))
        out: Tensor = last(x)
        return out


class _BlankLinear(nn.Linear):
    """A linear layer that draws nothing from torch's global generator when it is made.

    `nn.utils.skip_init` would do the same, but loads torch's symbolic shapes, in each actor: half a second.
    """

    def reset_parameters(self) -> None:
        """Nothing; `_initialise` follows."""


def _initialise(layer: nn.Module, generator: torch.Generator) -> None:
    """Uniform in ±1/sqrt(inputs), torch's own choice, but from our generator."""
    assert isinstance(layer, nn.Linear)
    bound = layer.in_features**-0.5
    with torch.no_grad():
        layer.weight.uniform_(-bound, bound, generator=generator)
        layer.bias.uniform_(-bound, bound, generator=generator)
