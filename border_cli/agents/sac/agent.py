"""The actor-critic family for continuous actions, from acting to the opt step.

SAC (Haarnoja et al., 2018), TD3 (Fujimoto et al., 2018), TQC (Kuznetsov et al., 2020), REDQ (Chen et al., 2021), DroQ
(Hiraoka et al., 2022) and CrossQ (Bhatt et al., 2024) combine the same parts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from border_cli.agents.actor_critic import ActorCriticAlgorithm, critics_and_alpha
from border_cli.agents.agent import Family
from border_cli.agents.algorithm import Learned, td_target
from border_cli.agents.batch_renorm import BatchStats
from border_cli.agents.memory import (
    STATE,
    PerEnvironment,
    at_next,
    mean_of_rows,
    memory_columns,
    sequence_errors,
)
from border_cli.agents.params import TensorBatch, flat_gradient
from border_cli.agents.policy import NetworkPolicy
from border_cli.agents.quantiles import midpoints, quantile_huber
from border_cli.agents.sac.config import SacConfig
from border_cli.agents.sac.network import ActionParameters, Critics, PolicyNetwork, TanhBijector
from border_cli.core.errors import UsageError
from border_cli.core.spaces import Array, EnvSpec
from border_cli.runtime.tensors import library_of, like, to_device


def check_spec(config: SacConfig, spec: EnvSpec) -> None:
    """Raise UsageError unless the actions are a box."""
    if spec.action.kind != "box":
        raise UsageError(
            f"agent={config.type} needs a continuous action space, and this one has discrete actions",
            nearest="agent=dqn",
            allowed="agent=dqn, c51, qrdqn, iqn or rainbow, or an environment with a Box action space",
        )
    if not spec.action.low:
        raise UsageError(
            f"agent={config.type}: the environment's actions have no component", allowed="at least one"
        )


# -- acting ---------------------------------------------------------------------


_MAX_SEED = 2**63 - 1


class StateDependentNoise(PerEnvironment):
    """A matrix of standard normal numbers per environment (gSDE, Raffin et al., 2021), saved as the seed that generates it.

    interval: env steps after which an environment gets a new matrix; None: only when an episode begins.
    """

    def __init__(self, shape: tuple[int, ...], interval: int | None = None) -> None:
        super().__init__(seed=np.zeros(0, np.int64), uses=np.zeros(0, np.int64))
        self._shape = shape
        self._interval = interval
        self._matrices: dict[int, Array] = {}

    def begin_episode(self, env_ix: int) -> None:
        """The next `sample` draws a new matrix."""
        ix = self.known([env_ix])
        self.rows["uses"][ix] = 0

    def sample(self, env_ix: Sequence[int], rng: np.random.Generator) -> Array:
        """(k, *shape) float32 of these environments, for one env step."""
        self.known(env_ix)
        seed, uses = self.rows["seed"], self.rows["uses"]
        for i in env_ix:
            if uses[i] in (0, self._interval):
                seed[i], uses[i] = rng.integers(0, _MAX_SEED), 0
                self._matrices.pop(i, None)
            if i not in self._matrices:
                generator = np.random.Generator(np.random.PCG64(int(seed[i])))
                self._matrices[i] = generator.standard_normal(self._shape, np.float32)
            uses[i] += 1
        return np.stack([self._matrices[i] for i in env_ix])

    def load_state(self, state: Any) -> None:
        super().load_state(state)
        self._matrices = {}


class SacPolicy(NetworkPolicy):
    """Acts by the policy network: with noise in train mode, after uniform actions at first; by the mean in eval mode."""

    network: PolicyNetwork

    def _prepare(self, spec: EnvSpec, actor: int, n_actors: int) -> None:
        self._shape, self._bijector = spec.action.shape, TanhBijector(spec.action).to(self.params.device)
        self._bounds = np.array([spec.action.low, spec.action.high], np.float32)
        self._kept_noise: Any = self._make_noise(self.network)
        if self._kept_noise is not None:
            self._kept["noise"] = self._kept_noise

    def _make_noise(self, network: Any) -> Any:
        """What is kept of the exploration noise of each environment; None if each env step has noise of its own."""
        if self.config.exploration != "state_dependent":
            return None
        return StateDependentNoise(tuple(network.log_std.shape), self.config.noise_interval)

    def _explore(
        self, outputs: ActionParameters, obs: dict[str, Any], env_steps: int, env_ix: Sequence[int]
    ) -> Any:
        mean, scale, xp = outputs.mean, self._bijector.scale, library_of(outputs.mean)
        if env_steps < self.config.random_env_steps:
            return scale(2.0 * like(self._rng.random(mean.shape, np.float32), mean) - 1.0)
        if isinstance(self._kept_noise, StateDependentNoise):
            std = self.network.weight_std().detach()
            weights = like(self._kept_noise.sample(env_ix, self._rng), mean) * (
                std.numpy() if xp is np else std
            )
            return scale(xp.tanh(mean + xp.einsum("bf,bfd->bd", outputs.features, weights)))
        normal = like(self._normal(env_ix), mean)
        if self.config.policy == "gaussian":
            return scale(xp.tanh(mean + outputs.std * normal))
        # a deterministic policy: the noise is added to the action, in half ranges
        return scale((xp.tanh(mean) + self.config.noise_std * normal).clip(-1.0, 1.0))

    def _normal(self, env_ix: Sequence[int]) -> Array:
        """(k, d) float32 standard normal numbers: the exploration noise of these environments."""
        return self._rng.standard_normal((len(env_ix), self._bijector.size), np.float32)

    def _greedy(self, outputs: ActionParameters, obs: dict[str, Any]) -> Any:
        """(B, d) float32, the mean of the policy."""
        return self._bijector.scale(library_of(outputs.mean).tanh(outputs.mean))

    def _stored(self, action: Any) -> Any:
        """(B, d) actions → (B, *shape) float32, clipped to the bounds after rounding; NaN becomes the lower bound."""
        xp, (low, high) = library_of(action), (like(bound, action) for bound in self._bounds)
        return xp.fmin(xp.fmax(action, low), high).reshape(-1, *self._shape)


# -- learning -------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class StepNoise:
    """Random numbers of one opt step.

    action, next_action: (B, d) standard normal, for the policy's actions and for the next actions in the target · subset:
    (m,) the critics of the target; None: all · dropout, next_dropout: (n critics, B, units of all hidden layers) factors of
    the units of the critics and of their targets, 0 or 1/(1 - p); None: no dropout.
    """

    action: Tensor
    next_action: Tensor
    subset: Tensor | None = None
    dropout: Tensor | None = None
    next_dropout: Tensor | None = None


@dataclass(frozen=True)
class Seen:
    """What the networks see in the current states and in the next ones: observations, or the states of their memories."""

    policy: dict[str, Tensor]
    critics: dict[str, Tensor]
    next_policy: dict[str, Tensor]
    next_critics: dict[str, Tensor]


class SacAlgorithm(ActorCriticAlgorithm):
    """The opt step of SAC, TD3, TQC or CrossQ, as the configuration combines their parts."""

    config: SacConfig

    def __init__(self, config: SacConfig, spec: EnvSpec, *rest: Any) -> None:
        super().__init__(config, spec, *rest)
        self.bijector = TanhBijector(spec.action).to(self.device)

    @property
    def target_of(self) -> Mapping[str, str]:
        if self.config.norm == "batch":
            return {}
        is_gaussian = self.config.policy == "gaussian"
        return super().target_of if is_gaussian else {**super().target_of, "policy_target": "policy"}

    @property
    def target_entropy(self) -> float:
        """[nats], of actions scaled to [-1, 1]."""
        typed = self.config.target_entropy
        return -float(self.bijector.n_free) if typed is None else typed

    def noise(self, rows: int) -> StepNoise:
        sequences = getattr(self.config, "sequences", None)
        size = rows * (1 if sequences is None else sequences.length), self.bijector.size
        action, next_action = (
            to_device(self.rng.standard_normal(size, np.float32), self.device) for _ in range(2)
        )
        subset = dropout = next_dropout = None
        config, p = self.config, self.config.critic_dropout
        if config.critic_subset is not None:
            subset = to_device(self.rng.permutation(config.critics)[: config.critic_subset], self.device)
        if p:
            shape = 2, config.critics, size[0], sum(config.critic_hidden or config.hidden)
            is_kept = self.rng.integers(0, 2**16, shape, np.uint16) >= round(p * 2**16)
            dropout, next_dropout = to_device(is_kept * np.float32(1.0 / (1.0 - p)), self.device)
        return StepNoise(action, next_action, subset, dropout, next_dropout)

    def learn(self, batch: TensorBatch, noise: StepNoise, variant: int) -> Learned:
        """See `Algorithm.learn`. The weights of the batch, if it has any, multiply the critics' losses of the rows."""
        config, alpha, valid = self.config, self.entropy_coef(), batch.extra.get("is_valid")
        stats = None if "critics_target" in self.networks else BatchStats(self.state.nets["critics"].step)
        if valid is None:
            seen = Seen(*[batch.obs] * 2, *[batch.next_obs] * 2)
        else:
            seen = self._seen_by_memories(batch)
        values, target = self._values_and_target(batch, seen, noise, alpha, stats)
        critic_loss = mean_of_rows(critic_losses(values, target, config.kappa), valid, batch.weight)
        gradients = {"critics": flat_gradient(critic_loss, self.networks["critics"])}
        q, y = (mean_of_rows(v, valid) for v in (values.detach().mean((0, 2)), target.mean(1)))
        scalars = {"critic_loss": critic_loss, "q_mean": q, "target_mean": y, "entropy_coef": alpha.mean()}
        if variant == 1:
            policy_losses, log_prob = self._policy_losses(seen, noise, alpha, stats)
            policy_loss = mean_of_rows(policy_losses, valid)
            gradients["policy"] = flat_gradient(policy_loss, self.networks["policy"])
            entropy = torch.zeros_like(policy_loss)
            if log_prob is not None:
                entropy = -mean_of_rows(log_prob.detach(), valid)
            gradients |= self.entropy_coef_gradient(entropy, self.target_entropy)
            scalars |= {"policy_loss": policy_loss, "entropy": entropy}
        errors = None
        if batch.weight is not None:
            errors = (values.detach().mean(2) - target.mean(1)).abs().mean(0)
            if valid is not None:
                errors = sequence_errors(errors.view(valid.shape), valid, config.priority_max_share)
        return Learned(gradients, scalars, errors, stats)

    def _seen_by_memories(self, batch: TensorBatch) -> Seen:
        """States of the memories at the B·T rows of sequences. The target networks' are those of the next states."""
        networks, next_, rows = self.networks, batch.extra["next"], batch.reward.shape[1]
        policy, critics = networks["policy"].states(batch), networks["critics"].states(batch)
        with torch.no_grad():
            of_target = networks["policy_target"].states(batch) if "policy_target" in networks else policy
            next_critics = networks["critics_target"].states(batch)
        parts = policy[:, :rows].flatten(0, 1), critics[:, :rows].flatten(0, 1), of_target, next_critics
        return Seen(*({STATE: part if part.dim() == 2 else at_next(part, next_)} for part in parts))

    def _values_and_target(
        self,
        batch: TensorBatch,
        seen: Seen,
        noise: StepNoise,
        alpha: Tensor,
        stats: BatchStats | None,
    ) -> tuple[Tensor, Tensor]:
        """(n, B, k) values of the critics, and (B, m) TD targets without a gradient.

        Without target networks, current and next observations and actions are one batch of the critics (CrossQ): the
        statistics of both normalise it.
        """
        current = batch.action.reshape(-1, self.bijector.size)
        with torch.no_grad():
            action, penalty = self._next_action(seen, noise.next_action, alpha)
        if "critics_target" not in self.networks:
            obs = {name: torch.cat([rows, seen.next_critics[name]]) for name, rows in seen.critics.items()}
            both = self.networks["critics"](obs, torch.cat([current, action]), stats=stats)
            values, next_values = both.chunk(2, 1)
            next_values = next_values.detach()
        else:
            values = self.networks["critics"](seen.critics, current, dropout=noise.dropout)
            with torch.no_grad():
                next_values = self.networks["critics_target"](
                    seen.next_critics, action, dropout=noise.next_dropout
                )
        if noise.subset is not None:
            next_values = next_values[noise.subset]
        next_values = truncate(next_values, self.config.drop_quantiles)
        numbers = (part.flatten() for part in (batch.reward, batch.discount, batch.terminated))
        return values, td_target(next_values - penalty, *numbers)

    def _next_action(self, seen: Seen, noise: Tensor, alpha: Tensor) -> tuple[Tensor, Tensor | float]:
        """(B, d) actions in the next states, and (B, 1) α·log π of them, or 0."""
        config = self.config
        parameters = self.networks.get("policy_target", self.networks["policy"])(seen.next_policy)
        if config.policy == "gaussian":
            action, log_prob = sample_action(self.bijector, parameters, noise)
            return action, (alpha * log_prob).unsqueeze(1)
        smoothing = config.target_noise, config.target_noise_clip
        return smooth_action(self.bijector, parameters, noise, *smoothing), 0.0

    def _policy_losses(
        self,
        seen: Seen,
        noise: StepNoise,
        alpha: Tensor,
        stats: BatchStats | None,
    ) -> tuple[Tensor, Tensor | None]:
        """(B,) losses, and (B,) log-probabilities of the actions if the policy is Gaussian. The critics are as they act."""
        parameters = self.networks["policy"](seen.policy, stats)
        critics_see = {name: rows.detach() for name, rows in seen.critics.items()}
        if self.config.policy == "deterministic":
            action, first = self.bijector.squash(parameters.mean), 1 if noise.subset is None else None
            values = self.networks["critics"](critics_see, action, first, dropout=noise.dropout)
            return -values.mean((0, 2)), None
        action, log_prob = sample_action(self.bijector, parameters, noise.action)
        values = self.networks["critics"](critics_see, action, dropout=noise.dropout)
        # SAC takes the minimum over the critics, REDQ the mean, and TQC the mean over all quantiles of all critics.
        is_min = values.shape[2] == 1 and noise.subset is None
        value = values.min(0).values.mean(1) if is_min else values.mean((0, 2))
        return alpha * log_prob - value, log_prob


def sample_action(
    bijector: TanhBijector, parameters: ActionParameters, noise: Tensor
) -> tuple[Tensor, Tensor]:
    """(B, d) actions of a Gaussian policy, differentiable by its parameters, and their (B,) log-probabilities.

    The log-probabilities are those of the actions scaled to [-1, 1]. Otherwise the entropy bonus would depend on the unit
    of the actions: a constant per env step, which rewards long episodes or short ones.
    """
    u = parameters.mean + parameters.std * noise
    return bijector.squash(u), bijector.log_prob(u, parameters.mean, parameters.std)


def smooth_action(
    bijector: TanhBijector, parameters: ActionParameters, noise: Tensor, std: float, clip: float
) -> Tensor:
    """TD3's target smoothing: (B, d) actions of a deterministic policy plus clipped noise, within the bounds.

    noise: (B, d) standard normal · std, clip: of the noise, in half ranges of the action space.
    """
    x = torch.tanh(parameters.mean) + (std * noise).clamp(-clip, clip)
    action: Tensor = bijector.scale(x.clamp(-1.0, 1.0))
    return action


def truncate(values: Tensor, drop: int) -> Tensor:
    """(n, B, k) values of n critics → (B, m) samples of the next value.

    Without quantiles (k = 1): the minimum over the critics (clipped double Q-learning of TD3), m = 1. With quantiles: those
    of all critics pooled, without the n·drop largest (TQC), m = n·(k - drop).
    """
    n, rows, k = values.shape
    if k == 1:
        return values.min(0).values
    pooled = values.transpose(0, 1).reshape(rows, n * k).sort(1).values
    return pooled[:, : n * (k - drop)]


def critic_losses(values: Tensor, target: Tensor, kappa: float = 1.0) -> Tensor:
    """(n, B, k) values and (B, m) targets → (B,) losses, summed over the critics.

    Half the squared error for k = 1, else the quantile Huber loss.
    """
    if values.shape[2] == 1:
        return 0.5 * (values - target).square().sum((0, 2))
    levels = midpoints(values.shape[2], values)
    return quantile_huber(values, target.expand(len(values), -1, -1), levels, kappa).sum(0)


FAMILY = Family(check_spec, SacPolicy, SacAlgorithm, PolicyNetwork, partial(critics_and_alpha, Critics))
make_policy, make_agent, agent_bytes = FAMILY.make_policy, FAMILY.make_agent, FAMILY.agent_bytes
extra_columns = memory_columns
