"""The policy's network and the critics'."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn

from border_cli.agents.encoding import Encoder
from border_cli.agents.layers import Linear
from border_cli.agents.sac.bounds import Bounds
from border_cli.agents.sac.config import SacConfig
from border_cli.core.spaces import EnvSpec

_LOG_STD_RANGE = (-20.0, 2.0)
_MEAN_RANGE = (-2.0, 2.0)
"""Of a policy with state-dependent noise, whose mean is pushed far out by it otherwise (Raffin et al., 2021)."""
_LEAST_STD = 1e-6


@dataclass(frozen=True, eq=False)
class ActionParameters:
    """Of what is squashed to an action. mean: (B, d) · std: (B, d), ones where the policy is deterministic ·
    features: (B, f) that state-dependent noise is a linear function of.
    """

    mean: Tensor
    std: Tensor
    features: Tensor


class PolicyNetwork(nn.Module):
    """A ReLU network. log_std: (f, d) of state-dependent noise, only where that is asked for."""

    def __init__(self, spec: EnvSpec, config: SacConfig, generator: torch.Generator) -> None:
        super().__init__()
        self.encoder = Encoder(spec.obs, config.channels, generator)
        self.n_actions = Bounds(spec.action).size
        self._kind = config.policy
        sizes = [self.encoder.features, *config.hidden]
        self.layers = nn.ModuleList(Linear(n_in, n_out, generator) for n_in, n_out in pairwise(sizes))
        self.n_features = sizes[-1]
        self._state_dependent = config.exploration == "state_dependent"
        outputs = 2 if config.policy == "gaussian" and not self._state_dependent else 1
        self.out = Linear(self.n_features, outputs * self.n_actions, generator)
        if self._state_dependent:
            self.log_std = nn.Parameter(torch.full((self.n_features, self.n_actions), config.log_std_start))

    def forward(self, obs: dict[str, Tensor]) -> ActionParameters:
        """{name: (B, ...)} → parameters of (B, d)."""
        x = self.encoder(obs)
        for layer in self.layers:
            x = torch.relu(layer(x))
        out = self.out(x)
        if self._state_dependent:
            variance = x.square() @ self.deviation().square()
            return ActionParameters(out.clamp(*_MEAN_RANGE), (variance + _LEAST_STD**2).sqrt(), x)
        if self._kind == "deterministic":
            return ActionParameters(out, torch.ones_like(out), x)
        mean, log_std = out.chunk(2, -1)
        return ActionParameters(mean, log_std.clamp(*_LOG_STD_RANGE).exp(), x)

    def deviation(self) -> Tensor:
        """(f, d) deviations of the weights of state-dependent noise."""
        return self.log_std.clamp(*_LOG_STD_RANGE).exp()


class Critics(nn.Module):
    """Several ReLU networks of one kind as one: each layer is a product of stacked matrices."""

    def __init__(self, spec: EnvSpec, config: SacConfig, generator: torch.Generator) -> None:
        super().__init__()
        self.encoder = Encoder(spec.obs, config.channels, generator)
        self._bounds = Bounds(spec.action)
        sizes = [self.encoder.features + self._bounds.size, *config.hidden, config.quantiles]
        self._n = config.critics
        self.layers = nn.ModuleList(
            _StackedLinear(config.critics, n_in, n_out, generator) for n_in, n_out in pairwise(sizes)
        )

    def forward(self, obs: dict[str, Tensor], action: Tensor, first: int | None = None) -> Tensor:
        """{name: (B, ...)} and actions (B, d) → (n critics, B, quantiles). They see actions scaled to [-1, 1].

        first: only so many of the critics.
        """
        bounds = self._bounds.to(action.device)
        n = self._n if first is None else first
        x = torch.cat([self.encoder(obs), bounds.unscaled(action)], 1).expand(n, -1, -1)
        *hidden, last = self.layers
        for layer in hidden:
            x = torch.relu(layer(x))
        out: Tensor = last(x)
        return out


class _StackedLinear(nn.Module):
    """(n, B, n_in) → (n, B, n_out), each by weights of its own; fewer by the first. Uniform in ±1/sqrt(inputs) at first."""

    def __init__(self, n: int, n_in: int, n_out: int, generator: torch.Generator) -> None:
        super().__init__()
        bound = n_in**-0.5
        self.weight = nn.Parameter(torch.empty(n, n_in, n_out).uniform_(-bound, bound, generator=generator))
        self.bias = nn.Parameter(torch.empty(n, 1, n_out).uniform_(-bound, bound, generator=generator))

    def forward(self, x: Tensor) -> Tensor:
        if len(x) == len(self.weight):
            return torch.baddbmm(self.bias, x, self.weight)
        return torch.baddbmm(self.bias[: len(x)], x, self.weight[: len(x)])


class EntropyCoefficient(nn.Module):
    """One learnt number, kept as its logarithm."""

    def __init__(self, start: float) -> None:
        super().__init__()
        self.log = nn.Parameter(torch.full((1,), start).log())

    def forward(self) -> Tensor:
        """(1,)."""
        return self.log.exp()
