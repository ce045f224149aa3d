"""SAC for discrete actions (Christodoulou, 2019): network, acting, losses and the opt step.

The policy gives a probability to each action, and the critics give a value to each, so that the expectations over actions
in targets and losses are sums: nothing is sampled in an opt step.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from border_cli.agents.agent import Algorithm, NetworkAgent, NetworkPolicy, bytes_by, policy_maker
from border_cli.agents.dsac.config import DsacConfig
from border_cli.agents.nets import Encoder, Linear, in_float32, layer_list, to_tensors
from border_cli.agents.params import (
    AdamState,
    FlatParams,
    StepStats,
    TensorBatch,
    clip_norm_,
    flat_gradient,
    polyak_,
)
from border_cli.agents.sac.loss import SCALARS
from border_cli.agents.sac.network import EntropyCoefficient, StackedLinear, hidden_layers
from border_cli.core.errors import UsageError
from border_cli.core.spaces import Array, EnvSpec, Obs
from border_cli.runtime import seeding

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
        self.encoder = Encoder(spec.inputs, config.channels, generator, config.normalize_obs, config.windows)
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
        self.encoder = Encoder(spec.inputs, config.channels, generator, config.normalize_obs, config.windows)
        self._n = config.critics
        sizes = [self.encoder.features, *config.hidden, spec.action.n]
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


make_policy = policy_maker(DsacPolicy, DsacNetwork)


# -- learning -------------------------------------------------------------------


@dataclass
class DsacState:
    """Everything that an opt step reads and changes. critics_target: (n,) · alpha: None unless it is learned."""

    policy: AdamState
    critics: AdamState
    critics_target: Tensor
    alpha: AdamState | None
    stats: StepStats


@dataclass(frozen=True)
class DsacNetworks:
    """The networks, bound to the parameters in a state."""

    policy: nn.Module
    critics: nn.Module
    critics_target: nn.Module
    alpha: nn.Module | None


class DsacAlgorithm(Algorithm):
    """The opt step."""

    config: DsacConfig
    state: DsacState
    scalars = SCALARS

    def __init__(
        self,
        layouts: dict[str, FlatParams],
        state: DsacState,
        config: DsacConfig,
        spec: EnvSpec,
        seed: int,
    ) -> None:
        super().__init__(config, state, layouts, seed)
        self._mask = spec.mask
        self._target_entropy = config.target_entropy * math.log(spec.action.n)

    def bind(self, state: DsacState) -> DsacNetworks:
        def bound(name: str, vector: Tensor) -> nn.Module:
            return self._layouts[name].bind(vector, self.config.precision)

        return DsacNetworks(
            bound("policy", state.policy.params),
            bound("critics", state.critics.params),
            bound("critics", state.critics_target),
            None if state.alpha is None else bound("alpha", state.alpha.params),
        )

    def encoders(self, networks: DsacNetworks) -> Sequence[Encoder]:
        every = (networks.policy, networks.critics, networks.critics_target)
        return [cast(DsacNetwork | DsacCritics, network).encoder for network in every]

    def learn(
        self,
        networks: DsacNetworks,
        state: DsacState,
        batch: TensorBatch,
        noise: Any,
        lr_scale: float | Tensor,
        variant: int,
    ) -> Tensor | None:
        """See `Algorithm.learn`. All gradients are computed before any parameter changes."""
        del noise, variant
        config, alpha = self.config, self._alpha(networks, batch.reward)
        target = self._target(networks, batch, alpha)
        all_values = networks.critics(batch.obs)  # (critics, B, n)
        taken = batch.action.view(1, -1, 1).expand(len(all_values), -1, 1)
        values = all_values.gather(2, taken).squeeze(2)
        losses = 0.5 * (values - target).square().sum(0)
        critic_loss = losses.mean() if batch.weight is None else (batch.weight * losses).mean()
        log_p = masked(networks.policy(batch.obs), batch.obs, self._mask).log_softmax(1)
        p = log_p.exp()
        entropy = -(p * log_p).sum(1)
        policy_loss = -(p * all_values.detach().min(0).values).sum(1).mean() - (alpha * entropy).mean()
        gradients = {
            "critics": flat_gradient(critic_loss, tuple(networks.critics.parameters())),
            "policy": flat_gradient(policy_loss, tuple(networks.policy.parameters())),
        }
        if networks.alpha is not None:
            # log α falls while the entropy is above its target
            log_alpha = cast(EntropyCoefficient, networks.alpha).log
            alpha_loss = (log_alpha * (entropy.detach() - self._target_entropy)).mean()
            gradients["alpha"] = flat_gradient(alpha_loss, tuple(networks.alpha.parameters()))
        with torch.no_grad():
            norms = [clip_norm_(gradient, config.max_grad_norm) for gradient in gradients.values()]
            skip = state.stats.add(
                (
                    *(critic_loss, policy_loss, values.mean(), target.mean()),
                    *(alpha.mean(), entropy.mean(), torch.stack(norms).norm()),
                )
            )
            for name, gradient in gradients.items():
                lr = config.critic_lr if name == "critics" and config.critic_lr is not None else config.lr
                cast(AdamState, getattr(state, name)).update(gradient, lr * lr_scale, config.adam_eps, skip)
            return None if batch.weight is None else (values - target).abs().mean(0)

    @torch.no_grad()
    def _target(self, networks: DsacNetworks, batch: TensorBatch, alpha: Tensor) -> Tensor:
        """(B,) targets y = R + γ^m·Σ_a π(a|s')·(min_k Q_k(s', a) - α·log π(a|s')), and R alone where terminated."""
        log_p = masked(networks.policy(batch.next_obs), batch.next_obs, self._mask).log_softmax(1)
        values = networks.critics_target(batch.next_obs).min(0).values
        value = (log_p.exp() * (values - alpha * log_p)).sum(1)
        return batch.reward + batch.discount * torch.where(batch.terminated, 0.0, value)

    def _alpha(self, networks: DsacNetworks, like: Tensor) -> Tensor:
        """(1,) entropy coefficient, without a gradient."""
        if networks.alpha is not None:
            return cast(Tensor, networks.alpha()).detach()
        return torch.full((1,), self.config.entropy_coef or 0.0, device=like.device)

    def update_targets(self, number: int) -> None:
        if number % self.config.target_interval == 0:
            polyak_(self.state.critics_target, self.state.critics.params, self.config.target_tau)

    def reset_targets(self) -> None:
        polyak_(self.state.critics_target, self.state.critics.params, 1.0)


def make_agent(config: DsacConfig, spec: EnvSpec, seed: int, device: str = "cpu") -> NetworkAgent:
    """A new agent. `seed` is the run's."""
    check_spec(config, spec)
    generator = torch.Generator().manual_seed(seeding.integer(seed, seeding.AGENT))
    layouts = {
        "policy": FlatParams(DsacNetwork(spec, config, generator)),
        "critics": FlatParams(DsacCritics(spec, config, generator)),
    }
    layouts["critics_target"] = layouts["critics"]
    if config.entropy_coef is None:
        layouts["alpha"] = FlatParams(EntropyCoefficient(config.entropy_coef_start))
    online = {
        name: AdamState.init(layouts[name], layouts[name].init().to(torch.device(device)), config.adam_beta1)
        for name in layouts
        if name != "critics_target"
    }
    stats = StepStats.init(len(SCALARS), torch.device(device))
    critics = online["critics"]
    state = DsacState(online["policy"], critics, critics.params.clone(), online.get("alpha"), stats)
    policy = DsacPolicy(layouts["policy"], state.policy.params, config, spec, seed, shared=True)
    return NetworkAgent(policy, DsacAlgorithm(layouts, state, config, spec, seed), config.batch_size)


agent_bytes = bytes_by(make_agent)
