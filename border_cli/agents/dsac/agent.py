"""SAC for discrete actions (Christodoulou, 2019): network, acting, losses and the opt step.

The policy gives a probability to each action, and the critics give a value to each, so that the expectations over actions
in targets and losses are sums: nothing is sampled in an opt step. Several actions at once are chosen independently, each
with values of its own; their targets bootstrap from the mean of their soft values (`border_cli.agents.branches`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from border_cli.agents.actor_critic import ActorCriticAlgorithm, critics_and_alpha
from border_cli.agents.agent import Family
from border_cli.agents.algorithm import Learned, td_target
from border_cli.agents.branches import by_branch, check_discrete, mask_actions, mean_of_branches
from border_cli.agents.dsac.config import DsacConfig
from border_cli.agents.memory import mean_of_rows
from border_cli.agents.nets import Encoder, Linear, in_float32, layer_list
from border_cli.agents.params import TensorBatch, flat_gradient
from border_cli.agents.policy import NetworkPolicy
from border_cli.agents.sac.network import StackedLinear, hidden_layers
from border_cli.core.spaces import EnvSpec
from border_cli.runtime.tensors import library_of, like

_FORBIDDEN = -1e9
"""Logit of a forbidden action: its probability is 0, and p·log p stays finite, also where all actions are forbidden."""


class DsacNetwork(nn.Module):
    """The policy: a ReLU network, observation → logits of the actions; n_actions: their number."""

    def __init__(self, spec: EnvSpec, config: DsacConfig, generator: torch.Generator) -> None:
        super().__init__()
        seen = spec.without(config.privileged_obs).inputs
        self.encoder = Encoder(seen, config, generator)
        self._n = spec.action.n
        self.n_actions = len(spec.action.branches) * spec.action.n
        sizes = [self.encoder.features, *config.hidden]
        self.layers = nn.ModuleList(Linear(n_in, n_out, generator) for n_in, n_out in pairwise(sizes))
        self.out = Linear(sizes[-1], self.n_actions, generator)

    def forward(self, obs: dict[str, Tensor]) -> Tensor:
        """{name: (B, ...)} → (B, n), of D actions at once (B·D, n)."""
        logits: Tensor = self.of_outputs(in_float32(self.out, hidden_layers(self.encoder(obs), self.layers)))
        return logits

    def of_outputs(self, out: Any, features: Any = None) -> Any:
        """(B, D·n) of D actions at once, arrays or tensors → (B·D, n)."""
        return out.reshape(-1, self._n)

    def described(self) -> dict[str, Any]:
        layers = layer_list(self, self.layers, relu_at_end=True)
        return {"encoder": self.encoder.described(), "layers": layers, "out": layer_list(self, [self.out])}


class DsacCritics(nn.Module):
    """Several critics as one ReLU network, whose layers multiply stacked matrices. They share the encoder."""

    def __init__(self, spec: EnvSpec, config: DsacConfig, generator: torch.Generator) -> None:
        super().__init__()
        self.encoder = Encoder(spec.inputs, config, generator)
        self._critics, self._n = config.critics, spec.action.n
        outputs = len(spec.action.branches) * spec.action.n
        sizes = [self.encoder.features, *(config.critic_hidden or config.hidden), outputs]
        self.layers = nn.ModuleList(
            StackedLinear(config.critics, n_in, n_out, generator) for n_in, n_out in pairwise(sizes)
        )

    def forward(self, obs: dict[str, Tensor]) -> Tensor:
        """{name: (B, ...)} → (critics, B, n), the value of each action; of D actions at once (critics, B·D, n)."""
        *hidden, last = self.layers
        out = in_float32(last, hidden_layers(self.encoder(obs).expand(self._critics, -1, -1), hidden))
        return out.view(self._critics, -1, self._n)


def log_probabilities(logits: Tensor, obs: dict[str, Tensor], spec: EnvSpec) -> Tensor:
    """(B·D, n) logits → logarithms of the probabilities; those of forbidden actions are finite."""
    return mask_actions(logits, obs, spec.mask, spec.action.branches).clamp(min=_FORBIDDEN).log_softmax(1)


# -- acting ---------------------------------------------------------------------


class DsacPolicy(NetworkPolicy):
    """Draws actions by their probabilities in train mode, after uniform ones at first; the most probable in eval mode."""

    network: DsacNetwork

    def _prepare(self, spec: EnvSpec, actor: int, n_actors: int) -> None:
        self._branches = spec.action.branches
        self._shape = spec.action.shape

    def _logits(self, outputs: Any, obs: dict[str, Any]) -> Any:
        """(B·D, n), -inf for forbidden actions."""
        return mask_actions(outputs, obs, self._mask, self._branches)

    def _greedy(self, outputs: Any, obs: dict[str, Any]) -> Any:
        """(B,) int64, the most probable allowed action, (B, *shape) for several at once."""
        return self._logits(outputs, obs).argmax(1).reshape(-1, *self._shape)

    def _explore(self, outputs: Any, obs: dict[str, Any], env_steps: int, env_ix: Sequence[int]) -> Any:
        logits = self._logits(outputs, obs)
        if env_steps < self.config.random_env_steps:
            logits = library_of(logits).where(logits == -torch.inf, logits, 0.0)
        # The largest of logits plus Gumbel noise is a draw by the probabilities (Gumbel, 1954).
        noise = self._rng.gumbel(size=tuple(logits.shape)).astype(np.float32)
        return (logits + like(noise, logits)).argmax(1).reshape(-1, *self._shape)


# -- learning -------------------------------------------------------------------


class DsacAlgorithm(ActorCriticAlgorithm):
    """Targets, losses and gradients."""

    config: DsacConfig

    def learn(self, batch: TensorBatch, noise: Any, variant: int) -> Learned:
        branches, alpha = self.spec.action.branches, self.entropy_coef()
        d = len(branches)
        batch = by_branch(batch, d)
        target = self._target(batch, alpha)
        all_values = self.networks["critics"](batch.obs)  # (critics, B·D, n)
        taken = batch.action.view(1, -1, 1).expand(len(all_values), -1, 1)
        values = all_values.gather(2, taken).squeeze(2)
        losses = 0.5 * (values - target).square().sum(0)
        critic_loss = mean_of_rows(losses, None, batch.weight)
        gradients = {"critics": flat_gradient(critic_loss, self.networks["critics"])}
        values, all_values = values.detach(), all_values.detach()
        scalars = {"critic_loss": critic_loss, "q_mean": values.mean(), "target_mean": target.mean()}
        scalars["entropy_coef"] = alpha.mean()
        if variant == 1:
            log_p = log_probabilities(self.networks["policy"](batch.obs), batch.obs, self.spec)
            p = log_p.exp()
            entropies = -(p * log_p).sum(1)
            policy_loss = -(p * all_values.min(0).values).sum(1).mean() - (alpha * entropies).mean()
            entropy = entropies.detach().mean()
            gradients["policy"] = flat_gradient(policy_loss, self.networks["policy"])
            target_entropy = self.config.target_entropy * sum(map(math.log, branches)) / d
            gradients |= self.entropy_coef_gradient(entropy, target_entropy)
            scalars |= {"policy_loss": policy_loss, "entropy": entropy}
        errors = None if batch.weight is None else (values - target).abs().mean(0).view(-1, d).mean(1)
        return Learned(gradients, scalars, errors)

    @torch.no_grad()
    def _target(self, batch: TensorBatch, alpha: Tensor) -> Tensor:
        """(B·D,) targets y = R + γ^m·V(s'), and R alone where terminated.

        V(s') = Σ_a π(a|s')·(min_k Q_k(s', a) - α·log π(a|s')), the mean of this for D actions at once.
        """
        log_p = log_probabilities(self.networks["policy"](batch.next_obs), batch.next_obs, self.spec)
        values = self.networks["critics_target"](batch.next_obs).min(0).values
        value = mean_of_branches(
            (log_p.exp() * (values - alpha * log_p)).sum(1), len(self.spec.action.branches)
        )
        return td_target(value.unsqueeze(1), batch.reward, batch.discount, batch.terminated).squeeze(1)


FAMILY = Family(
    check_discrete, DsacPolicy, DsacAlgorithm, DsacNetwork, partial(critics_and_alpha, DsacCritics)
)
check_spec = check_discrete
make_policy, make_agent, agent_bytes = FAMILY.make_policy, FAMILY.make_agent, FAMILY.agent_bytes
