"""SAC for discrete actions (Christodoulou, 2019): network, acting, losses and the opt step.

The policy gives a probability to each action, and the critics give a value to each, so that the expectations over actions
in targets and losses are sums: nothing is sampled in an opt step.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from border_cli.agents.agent import NetworkPolicy, bytes_by, policy_maker
from border_cli.agents.dsac.config import DsacConfig
from border_cli.agents.nets import Encoder, Linear, in_float32, layer_list, to_tensors
from border_cli.agents.params import TensorBatch, flat_gradient
from border_cli.agents.sac import agent as sac
from border_cli.agents.sac import loss
from border_cli.agents.sac.agent import ActorCriticAlgorithm, Parts
from border_cli.agents.sac.network import StackedLinear, hidden_layers
from border_cli.core.errors import UsageError
from border_cli.core.spaces import Array, EnvSpec, Obs

_FORBIDDEN = -1e9
"""Logit of a forbidden action: its probability is 0, and p·log p stays finite, also where all actions are forbidden."""


def check_spec(config: DsacConfig, spec: EnvSpec) -> None:
    """Raise UsageError unless the actions are discrete."""
    if spec.action.kind != "discrete":
        raise UsageError(
            f"agent={config.type} chooses one discrete action, and this environment takes several, or numbers",
            nearest="agent=dqn" if spec.action.kind == "multi_discrete" else "agent=sac",
            allowed="agent=sac, td3, tqc or crossq, or an environment with a Discrete action space",
        )


class DsacNetwork(nn.Module):
    """The policy: a ReLU network, observation → logits of the actions."""

    def __init__(self, spec: EnvSpec, config: DsacConfig, generator: torch.Generator) -> None:
        super().__init__()
        seen = spec.without(config.privileged_obs).inputs
        self.encoder = Encoder(seen, config, generator)
        self.n_actions = spec.action.n
        sizes = [self.encoder.features, *config.hidden]
        self.layers = nn.ModuleList(Linear(n_in, n_out, generator) for n_in, n_out in pairwise(sizes))
        self.out = Linear(sizes[-1], spec.action.n, generator)

    def forward(self, obs: dict[str, Tensor]) -> Tensor:
        """{name: (B, ...)} → (B, n)."""
        return in_float32(self.out, hidden_layers(self.encoder(obs), self.layers))

    def described(self) -> dict[str, Any]:
        """See `numpy_policy.Network`."""
        layers = layer_list(self, self.layers, relu_at_end=True)
        return {"encoder": self.encoder.described(), "layers": layers, "out": layer_list(self, [self.out])}


class DsacCritics(nn.Module):
    """Several critics as one ReLU network, whose layers multiply stacked matrices. They share the encoder."""

    def __init__(self, spec: EnvSpec, config: DsacConfig, generator: torch.Generator) -> None:
        super().__init__()
        self.encoder = Encoder(spec.inputs, config, generator)
        self._n = config.critics
        sizes = [self.encoder.features, *(config.critic_hidden or config.hidden), spec.action.n]
        self.layers = nn.ModuleList(
            StackedLinear(config.critics, n_in, n_out, generator) for n_in, n_out in pairwise(sizes)
        )

    def forward(self, obs: dict[str, Tensor]) -> Tensor:
        """{name: (B, ...)} → (critics, B, n), the value of each action."""
        *hidden, last = self.layers
        return in_float32(last, hidden_layers(self.encoder(obs).expand(self._n, -1, -1), hidden))


def masked(logits: Tensor, obs: dict[str, Tensor], mask: str | None) -> Tensor:
    """(B, n) logits, those of forbidden actions tiny. mask: the leaf that marks the allowed actions."""
    return logits if mask is None else logits.masked_fill(obs[mask] == 0, _FORBIDDEN)


# -- acting ---------------------------------------------------------------------


class DsacPolicy(NetworkPolicy):
    """Draws actions by their probabilities in train mode, after uniform ones at first; the most probable in eval mode."""

    def logits(self, obs: Obs) -> Array:
        """(B, n), -inf for forbidden actions."""
        if self._arrays is not None:
            with np.errstate(over="ignore", invalid="ignore"):  # as torch
                logits = self._arrays(obs)[0]
        else:
            with torch.inference_mode():
                logits = self._network(to_tensors(obs, self.params.device)).cpu().numpy()
        return logits if self._mask is None else np.where(obs[self._mask] == 0, -np.inf, logits)

    def decide(self, obs: dict[str, Tensor], state: Tensor | None = None) -> tuple[Tensor, None]:
        """(B,) int64, the most probable allowed action."""
        return masked(self._network(obs), obs, self._mask).argmax(1), None

    def _explore(self, obs: Obs, env_steps: int, env_ix: Sequence[int]) -> Array:
        logits = self.logits(obs)
        if env_steps < self._config.random_env_steps:
            logits = np.where(logits == -np.inf, logits, np.float32(0.0))
        # The largest of logits plus Gumbel noise is a draw by the probabilities (Gumbel, 1954).
        drawn: Array = (logits + self._rng.gumbel(size=logits.shape)).argmax(1)
        return drawn

    def _exploit(self, obs: Obs) -> Array:
        best: Array = self.logits(obs).argmax(1)
        return best


# -- learning -------------------------------------------------------------------


class DsacAlgorithm(ActorCriticAlgorithm):
    """The opt step. All gradients are computed before any parameter changes."""

    config: DsacConfig

    def learn(
        self,
        networks: loss.SacNetworks,
        state: loss.SacState,
        batch: TensorBatch,
        noise: Any,
        lr_scale: float | Tensor,
        variant: int,
    ) -> Tensor | None:
        del noise
        config, mask, alpha = self.config, self.spec.mask, loss.entropy_coef(networks, self.config)
        target = self._target(networks, batch, alpha)
        all_values = networks.critics(batch.obs)  # (critics, B, n)
        taken = batch.action.view(1, -1, 1).expand(len(all_values), -1, 1)
        values = all_values.gather(2, taken).squeeze(2)
        losses = 0.5 * (values - target).square().sum(0)
        critic_loss = losses.mean() if batch.weight is None else (batch.weight * losses).mean()
        gradients = {"critics": flat_gradient(critic_loss, tuple(networks.critics.parameters()))}
        policy_loss = entropy = torch.zeros_like(critic_loss)
        if variant == 1:
            log_p = masked(networks.policy(batch.obs), batch.obs, mask).log_softmax(1)
            p = log_p.exp()
            entropies = -(p * log_p).sum(1)
            policy_loss = -(p * all_values.detach().min(0).values).sum(1).mean() - (alpha * entropies).mean()
            entropy = entropies.detach().mean()
            gradients["policy"] = flat_gradient(policy_loss, tuple(networks.policy.parameters()))
            if networks.alpha is not None:
                target_entropy = config.target_entropy * math.log(self.spec.action.n)
                gradients["alpha"] = loss.entropy_coef_gradient(networks, entropy, target_entropy)
        with torch.no_grad():
            scalars = (critic_loss, policy_loss, values.mean(), target.mean(), alpha.mean(), entropy)
            loss.change(state, config, gradients, scalars, lr_scale)
            return None if batch.weight is None else (values - target).abs().mean(0)

    @torch.no_grad()
    def _target(self, networks: loss.SacNetworks, batch: TensorBatch, alpha: Tensor) -> Tensor:
        """(B,) targets y = R + γ^m·Σ_a π(a|s')·(min_k Q_k(s', a) - α·log π(a|s')), and R alone where terminated."""
        log_p = masked(networks.policy(batch.next_obs), batch.next_obs, self.spec.mask).log_softmax(1)
        values = cast(nn.Module, networks.critics_target)(batch.next_obs).min(0).values
        value = (log_p.exp() * (values - alpha * log_p)).sum(1)
        return batch.reward + batch.discount * torch.where(batch.terminated, 0.0, value)


_PARTS = Parts(check_spec, DsacNetwork, DsacCritics, DsacPolicy, DsacAlgorithm)
make_policy = policy_maker(DsacPolicy, DsacNetwork)
make_agent = partial(sac.make_agent, parts=_PARTS)
agent_bytes = bytes_by(make_agent)
