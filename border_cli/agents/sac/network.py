"""Networks of the policy and the critics, and the tanh that keeps actions within bounds."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import layer_norm, softplus

from border_cli.agents.batch_renorm import BatchRenorm, BatchStats
from border_cli.agents.memory import STATE, Gru, states_of_sequences
from border_cli.agents.nets import Encoder, Linear, in_float32, layer_list
from border_cli.agents.params import TensorBatch
from border_cli.agents.sac.config import SacConfig
from border_cli.core.spaces import ActionSpec, EnvSpec
from border_cli.runtime.tensors import library_of


class TanhBijector:
    """Maps (..., d) unbounded numbers u to actions in a box: action = middle + half_range·tanh(u).

    A component whose bounds are equal has half range 0: it is constant and does not count in probabilities.

    Attributes:
        n_free: number of components that are not constant.
        arrays: middle and half_range as (d,) float32 arrays.
    """

    def __init__(self, spec: ActionSpec) -> None:
        low, high = (np.array(b, np.float64) for b in (spec.low, spec.high))
        half = high / 2 - low / 2  # high - low can overflow
        self.size = len(low)
        self.n_free = int(np.count_nonzero(half))
        half_range = half.astype(np.float32)
        self.arrays = (low / 2 + high / 2).astype(np.float32), half_range
        self.middle = torch.tensor(self.arrays[0])
        self.half_range = torch.tensor(half_range)
        self._is_free = torch.tensor(half_range > 0, dtype=torch.float32)
        self._divisor = torch.tensor(np.where(half_range > 0, half_range, np.float32(1)))

    def to(self, device: torch.device) -> TanhBijector:
        """Move to a device, in place."""
        if self.middle.device != device:
            for name in ("middle", "half_range", "_is_free", "_divisor"):
                setattr(self, name, getattr(self, name).to(device))
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> TanhBijector:
        """Copies of a network share it: copying its tensors could not be traced (`border_cli.agents.graph`)."""
        return self

    def scale(self, x: Any) -> Any:
        """(..., d) in [-1, 1] → actions, of arrays or tensors."""
        middle, half_range = self.arrays if isinstance(x, np.ndarray) else (self.middle, self.half_range)
        return middle + half_range * x

    def unscale(self, action: Tensor) -> Tensor:
        """(..., d) actions → [-1, 1], the inverse of `scale`."""
        return (action - self.middle) / self._divisor

    def squash(self, u: Tensor) -> Tensor:
        """(..., d) unbounded → actions."""
        return cast(Tensor, self.scale(torch.tanh(u)))

    def log_prob(self, u: Tensor, mean: Tensor, std: Tensor) -> Tensor:
        """Log-density (...) of tanh(u), the action scaled to [-1, 1], for u ~ N(mean, std²) of (..., d).

        The change of variables divides the normal density by the derivative 1 - tanh²(u) (Haarnoja et al., 2018, appendix
        C). That underflows for large |u|, so its logarithm is computed as 2·(log 2 - u - softplus(-2u)), which is the same
        and stays finite.
        """
        z = (u - mean) / std
        normal = -0.5 * z * z - std.log() - 0.5 * math.log(2 * math.pi)
        log_derivative = 2.0 * (math.log(2.0) - u - softplus(-2.0 * u))
        return ((normal - log_derivative) * self._is_free).sum(-1)


_LOG_STD_RANGE = (-20.0, 2.0)
MEAN_RANGE = (-2.0, 2.0)
"""Limits of the mean with state-dependent noise, which would otherwise drive it far out (Raffin et al., 2021)."""
_MIN_STD = 1e-6


@dataclass(frozen=True, eq=False)
class ActionParameters:
    """Distribution of the action before tanh, as tensors or arrays.

    mean: (B, d) · std: (B, d), ones if the policy is deterministic · features: (B, f) outputs of the last hidden layer;
    state-dependent noise is a linear function of them.
    """

    mean: Any
    std: Any
    features: Any


class PolicyNetwork(nn.Module):
    """A ReLU network: observation → distribution of the action. log_std: (f, d), only with state-dependent noise."""

    def __init__(self, spec: EnvSpec, config: SacConfig, generator: torch.Generator) -> None:
        super().__init__()
        seen = spec.without(config.privileged_obs).obs
        self.encoder = Encoder(seen, config, generator)
        self.kind, self._burn_in = config.policy, config.burn_in
        self.gru = None if config.gru is None else Gru(self.encoder.features, config.gru, generator)
        sizes = [config.gru or self.encoder.features, *config.hidden]
        self.layers = nn.ModuleList(Linear(n_in, n_out, generator) for n_in, n_out in pairwise(sizes))
        self.norms = nn.ModuleList(BatchRenorm(n) for n in sizes if config.norm == "batch")
        n_features, n_actions = sizes[-1], len(spec.action.low)
        self.is_state_dependent = config.exploration == "state_dependent"
        outputs = 2 if config.policy == "gaussian" and not self.is_state_dependent else 1
        self.out = Linear(n_features, outputs * n_actions, generator)
        if self.is_state_dependent:
            self.log_std = nn.Parameter(torch.full((n_features, n_actions), config.log_std_start))

    def forward(self, obs: dict[str, Tensor], stats: BatchStats | None = None) -> ActionParameters:
        """{name: (B, ...)} → distribution of the actions; with a memory, {"gru": (B, units)} its states.

        stats: see `BatchRenorm`.
        """
        x = self.encoder(obs) if self.gru is None else obs[STATE]
        x = hidden_layers(x, self.layers, self.norms, stats)
        return self.of_outputs(in_float32(self.out, x), x.float())

    def of_outputs(self, out: Any, features: Any) -> ActionParameters:
        """The distribution of the actions, by the outputs of the last layer and of the one before, arrays or tensors."""
        xp = library_of(out)
        if self.is_state_dependent:
            # of Σ_f x_f·ε_fd, ε_fd ~ N(0, weight_std²)
            std = self.weight_std() if xp is torch else self.weight_std().detach().numpy()
            squares = xp.square(features), xp.square(std)
            variance = in_float32(torch.matmul, *squares) if xp is torch else np.matmul(*squares)
            return ActionParameters(out.clip(*MEAN_RANGE), xp.sqrt(variance + _MIN_STD**2), features)
        if self.kind == "deterministic":
            return ActionParameters(out, xp.ones_like(out), features)
        d = out.shape[1] // 2
        return ActionParameters(out[:, :d], xp.exp(out[:, d:].clip(*_LOG_STD_RANGE)), features)

    def described(self) -> dict[str, Any]:
        layers = [] if self.gru is None else layer_list(self, [self.gru])
        # A norm before each layer, and one after the last
        pairs = itertools.zip_longest(self.norms, self.layers)
        hidden = [layer for pair in pairs for layer in pair if layer is not None]
        layers += layer_list(self, hidden, relu_at_end=True)
        return {"encoder": self.encoder.described(), "layers": layers, "out": layer_list(self, [self.out])}

    def remember(self, obs: dict[str, Tensor], state: Tensor) -> tuple[ActionParameters, Tensor]:
        """One time step with a memory: {name: (B, ...)} and (B, units) → the distribution, and (B, units) after it."""
        after: Tensor = cast(Gru, self.gru)(self.encoder(obs).unsqueeze(1), state)[1]
        return self({STATE: after}), after

    def states(self, sequences: TensorBatch) -> Tensor:
        """(B, T + n, units) states of the memory."""
        return states_of_sequences(cast(Gru, self.gru), self.encoder, sequences, self._burn_in)

    def weight_std(self) -> Tensor:
        """(f, d) standard deviations of the weights of state-dependent noise."""
        return self.log_std.clamp(*_LOG_STD_RANGE).exp()


def hidden_layers(
    x: Tensor,
    layers: Iterable[nn.Module],
    norms: nn.ModuleList | None = None,
    stats: BatchStats | None = None,
    factors: Sequence[Tensor] = (),
    layer_norms: nn.ModuleList | None = None,
) -> Tensor:
    """ReLU layers. norms: none, or what normalises the input of each layer, and of the one after them.

    factors, layer_norms: none, or what the outputs of each layer are multiplied by before its ReLU, and then normalised by.
    """
    for i, layer in enumerate(layers):
        x = layer(norms[i](x, stats) if norms else x)
        if factors:
            x = x * factors[i]
        x = torch.relu(layer_norms[i](x) if layer_norms else x)
    return cast(Tensor, norms[-1](x, stats)) if norms else x


class Critics(nn.Module):
    """Several critics as one ReLU network, whose layers multiply stacked matrices. They share the encoder."""

    def __init__(self, spec: EnvSpec, config: SacConfig, generator: torch.Generator) -> None:
        super().__init__()
        self.encoder = Encoder(spec.obs, config, generator)
        self._bijector = TanhBijector(spec.action)
        hidden = config.critic_hidden or config.hidden
        self.gru = None if config.gru is None else Gru(self.encoder.features, config.gru, generator)
        n_in = (config.gru or self.encoder.features) + self._bijector.size
        sizes = [n_in, *hidden, config.quantiles]
        self._n, self._burn_in, self._hidden = config.critics, config.burn_in, hidden
        self.norms = nn.ModuleList(
            BatchRenorm(config.critics, 1, n) for n in sizes[:-1] if config.norm == "batch"
        )
        self.layer_norms = nn.ModuleList(
            LayerNorm(config.critics, n) for n in hidden if config.norm == "layer"
        )
        self.layers = nn.ModuleList(
            StackedLinear(config.critics, n_in, n_out, generator) for n_in, n_out in pairwise(sizes)
        )

    def forward(
        self,
        obs: dict[str, Tensor],
        action: Tensor,
        first: int | None = None,
        stats: BatchStats | None = None,
        dropout: Tensor | None = None,
    ) -> Tensor:
        """{name: (B, ...)} and actions (B, d) → (n critics, B, quantiles).

        The critics get actions scaled to [-1, 1]. first: number of critics to use · stats: see `BatchRenorm` · dropout:
        (n critics, B, units of all hidden layers), their factors.
        """
        bijector = self._bijector.to(action.device)
        n = self._n if first is None else first
        seen = self.encoder(obs) if self.gru is None else obs[STATE]
        x = torch.cat([seen, bijector.unscale(action)], 1).expand(n, -1, -1)
        *hidden, last = self.layers
        factors = () if dropout is None else dropout[:n].split(self._hidden, -1)
        return in_float32(last, hidden_layers(x, hidden, self.norms, stats, factors, self.layer_norms))

    def states(self, sequences: TensorBatch) -> Tensor:
        """(B, T + n, units) states of the memory, which is not that of the policy and begins with zeros."""
        return states_of_sequences(cast(Gru, self.gru), self.encoder, sequences, self._burn_in, stored=False)


class LayerNorm(nn.Module):
    """Layer normalisation (Ba et al., 2016) in n networks: (m, B, width) → the same, by the first m."""

    def __init__(self, n: int, width: int) -> None:
        super().__init__()
        self.scale, self.shift = nn.Parameter(torch.ones(n, 1, width)), nn.Parameter(torch.zeros(n, 1, width))

    def forward(self, x: Tensor) -> Tensor:
        n = len(x)
        return torch.addcmul(self.shift[:n], layer_norm(x.float(), x.shape[2:]), self.scale[:n])


class StackedLinear(nn.Module):
    """n linear layers: (m, B, n_in) → (m, B, n_out) by the first m. Initially uniform in ±1/√n_in."""

    def __init__(self, n: int, n_in: int, n_out: int, generator: torch.Generator) -> None:
        super().__init__()
        bound = n_in**-0.5
        self.weight = nn.Parameter(torch.empty(n, n_in, n_out).uniform_(-bound, bound, generator=generator))
        self.bias = nn.Parameter(torch.empty(n, 1, n_out).uniform_(-bound, bound, generator=generator))

    def forward(self, x: Tensor) -> Tensor:
        weight: Tensor = self.weight
        bias: Tensor = self.bias
        if len(x) < len(weight):
            weight, bias = weight[: len(x)], bias[: len(x)]
        if weight.shape[2] == 1:
            # For one column, MKL's product of stacked matrices takes 8 times as long.
            return (x * weight.transpose(1, 2)).sum(2, keepdim=True) + bias
        return torch.baddbmm(bias, x, weight)
