"""Targets, losses and the opt step of the actor-critic family, as functions of tensors.

SAC (Haarnoja et al., 2018), TD3 (Fujimoto et al., 2018), TQC (Kuznetsov et al., 2020), REDQ (Chen et al., 2021), DroQ
(Hiraoka et al., 2022) and CrossQ (Bhatt et al., 2024) combine the same parts.
All gradients of an opt step are computed before any parameter changes. So an opt step with numbers that are not finite
can be skipped as a whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

from border_cli.agents.batch_renorm import BatchStats
from border_cli.agents.config import ActorCriticConfig
from border_cli.agents.memory import STATE, at_next, mean_of_rows, sequence_errors
from border_cli.agents.params import (
    AdamState,
    FlatParams,
    StepStats,
    TensorBatch,
    clip_norm_,
    flat_gradient,
    polyak_,
)
from border_cli.agents.quantiles import midpoints, quantile_huber
from border_cli.agents.sac.config import SacConfig
from border_cli.agents.sac.network import ActionParameters, EntropyCoefficient, TanhBijector
from border_cli.core.metrics import declare

declare(
    "agent/critic_loss", "", "loss summed over the critics (FlashSAC: their mean), mean over the interval"
)
declare("agent/policy_loss", "reward", "mean loss of the policy (FlashSAC: in units of agent/reward_scale)")
declare("agent/q_mean", "reward", "mean value of the actions in the batches")
declare("agent/target_mean", "reward", "mean TD target")
declare("agent/entropy_coef", "reward/nat", "entropy coefficient")
declare("agent/entropy", "nats", "mean of minus the log-probability of the policy's actions")
declare("agent/grad_norm", "", "mean gradient norm before clipping")
SCALARS = ("critic_loss", "policy_loss", "q_mean", "target_mean", "entropy_coef", "entropy", "grad_norm")
"""Scalars that an opt step adds to the statistics. policy_loss and entropy are 0 if it does not change the policy."""


@dataclass
class SacState:
    """Everything that an opt step reads and changes.

    critics_target: (n,), None without target networks · policy_target: (n,), None too unless the policy is deterministic ·
    alpha: the entropy coefficient, None unless it is learned ·
    policy_steps: scalar, opt steps since the last record that changed the policy.
    """

    policy: AdamState
    critics: AdamState
    critics_target: Tensor | None
    policy_target: Tensor | None
    alpha: AdamState | None
    stats: StepStats
    policy_steps: Tensor

    @staticmethod
    def init(layouts: dict[str, FlatParams], device: torch.device, beta1: float, n_scalars: int) -> SacState:
        """The state before the first opt step. Optional fields without a layout are None."""
        online = {
            name: AdamState.init(layouts[name], layouts[name].init().to(device), beta1)
            for name in ("policy", "critics", "alpha")
            if name in layouts
        }
        return SacState(
            policy=online["policy"],
            critics=online["critics"],
            critics_target=online["critics"].params.clone() if "critics_target" in layouts else None,
            policy_target=online["policy"].params.clone() if "policy_target" in layouts else None,
            alpha=online.get("alpha"),
            stats=StepStats.init(n_scalars, device),
            policy_steps=torch.zeros((), device=device),
        )


@dataclass(frozen=True)
class SacNetworks:
    """The networks, bound to the parameters in a state. policy_target: the policy itself if it has no target network."""

    policy: nn.Module
    policy_target: nn.Module
    critics: nn.Module
    critics_target: nn.Module | None
    alpha: nn.Module | None


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
class SacConstants:
    """What opt steps read and never change. target_entropy: in nats, of actions scaled to [-1, 1]."""

    config: SacConfig
    bijector: TanhBijector
    target_entropy: float


def opt_step(
    nets: SacNetworks,
    constants: SacConstants,
    state: SacState,
    batch: TensorBatch,
    noise: StepNoise,
    change_policy: bool = True,
    lr_scale: float | Tensor = 1.0,
) -> Tensor | None:
    """One opt step in place, without the target update.

    If a scalar of the statistics is not finite, the step is skipped: parameters, moments and counts stay as they are.

    Args:
        batch: its importance weights, if it has any, multiply the critics' losses of the rows.
        change_policy: whether the policy and the entropy coefficient are updated too.
        lr_scale: factor of the learning rates.

    Returns:
        (B,) absolute errors if the batch has weights, else None.
    """
    config = constants.config
    alpha, valid = entropy_coef(nets, config), batch.extra.get("is_valid")
    stats = None if nets.critics_target is not None else BatchStats(state.critics.step)
    seen = Seen(*[batch.obs] * 2, *[batch.next_obs] * 2) if valid is None else _seen_by_memories(nets, batch)
    values, target = _values_and_target(nets, constants, batch, seen, noise, alpha, stats)
    losses = critic_losses(values, target, config.kappa)
    critic_loss = mean_of_rows(losses, valid, batch.weight)
    gradients = {"critics": flat_gradient(critic_loss, tuple(nets.critics.parameters()))}
    policy_loss, entropy = torch.zeros_like(critic_loss), torch.zeros_like(critic_loss)
    if change_policy:
        policy_losses, log_prob = _policy_losses(nets, constants, seen, noise, alpha, stats)
        policy_loss = mean_of_rows(policy_losses, valid)
        gradients["policy"] = flat_gradient(policy_loss, tuple(nets.policy.parameters()))
        if log_prob is not None:
            entropy = -mean_of_rows(log_prob.detach(), valid)
        if nets.alpha is not None:
            gradients["alpha"] = entropy_coef_gradient(nets, entropy, constants.target_entropy)
    with torch.no_grad():
        means = (mean_of_rows(v, valid) for v in (values.mean((0, 2)), target.mean(1)))
        scalars = (critic_loss, policy_loss, *means, alpha.mean(), entropy)
        skip = change(state, config, gradients, scalars, lr_scale)
        if stats is not None:
            stats.apply(skip)
        if batch.weight is None:
            return None
        errors = (values.mean(2) - target.mean(1)).abs().mean(0)
        if valid is None:
            return errors
        return sequence_errors(errors.view(valid.shape), valid, config.priority_max_share)


def entropy_coef_gradient(nets: SacNetworks, entropy: Tensor, target: float) -> Tensor:
    """(1,) gradient of log α, which falls while the entropy, a scalar without gradient, is above its target."""
    alpha = cast(EntropyCoefficient, nets.alpha)
    loss = (alpha.log * (entropy - target)).mean()
    return flat_gradient(loss, tuple(alpha.parameters()))


def change(
    state: SacState,
    config: ActorCriticConfig,
    gradients: dict[str, Tensor],
    scalars: Sequence[Tensor],
    lr_scale: float | Tensor,
) -> Tensor:
    """Clip the gradients, by the name of their network, and do the steps of Adam.

    scalars: of the statistics, except for the gradient's norm. Returns a scalar, 1 if one of them was not finite: then
    nothing has changed.
    """
    norms = [clip_norm_(gradient, config.max_grad_norm) for gradient in gradients.values()]
    skip = state.stats.add((*scalars, torch.stack(norms).norm()))
    if "policy" in gradients:
        state.policy_steps.add_(1.0 - skip)
    for name, gradient in gradients.items():
        lr = config.critic_lr if name == "critics" and config.critic_lr is not None else config.lr
        cast(AdamState, getattr(state, name)).update(gradient, lr * lr_scale, config.adam_eps, skip)
    return skip


def update_targets(state: SacState, tau: float) -> None:
    """Move the targets towards the online parameters by the share tau; 1 copies them."""
    if state.critics_target is not None:
        polyak_(state.critics_target, state.critics.params, tau)
    if state.policy_target is not None:
        polyak_(state.policy_target, state.policy.params, tau)


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
    return bijector.scale(x.clamp(-1.0, 1.0))


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


def soft_target(
    values: Tensor, penalty: Tensor | float, reward: Tensor, discount: Tensor, terminated: Tensor
) -> Tensor:
    """(B, m) targets: r + γ^m·(value - penalty), and r alone where terminated.

    values: (B, m) of the next states and actions · penalty: (B,) α·log π of the next actions, or 0.
    """
    if isinstance(penalty, Tensor):
        penalty = penalty.unsqueeze(1)
    bootstrap = torch.where(terminated.unsqueeze(1), 0.0, values - penalty)
    return reward.unsqueeze(1) + discount.unsqueeze(1) * bootstrap


def critic_losses(values: Tensor, target: Tensor, kappa: float = 1.0) -> Tensor:
    """(n, B, k) values and (B, m) targets → (B,) losses, summed over the critics.

    Half the squared error for k = 1, else the quantile Huber loss.
    """
    if values.shape[2] == 1:
        return 0.5 * (values - target).square().sum((0, 2))
    levels = midpoints(values.shape[2], values)
    return quantile_huber(values, target.expand(len(values), -1, -1), levels, kappa).sum(0)


def entropy_coef(nets: SacNetworks, config: ActorCriticConfig) -> Tensor:
    """(1,) entropy coefficient, without a gradient; 0 for a deterministic policy."""
    if nets.alpha is not None:
        return cast(Tensor, nets.alpha()).detach()
    return torch.full((1,), config.fixed_entropy_coef or 0.0, device=next(nets.policy.parameters()).device)


@dataclass(frozen=True)
class Seen:
    """What the networks see in the current states and in the next ones: observations, or the states of their memories."""

    policy: dict[str, Tensor]
    critics: dict[str, Tensor]
    next_policy: dict[str, Tensor]
    next_critics: dict[str, Tensor]


def _seen_by_memories(nets: SacNetworks, batch: TensorBatch) -> Seen:
    """States of the memories at the B·T rows of sequences. The target networks' are those of the next states."""
    next_, rows = batch.extra["next"], batch.reward.shape[1]
    policy, critics = (cast(Any, network).states(batch) for network in (nets.policy, nets.critics))
    with torch.no_grad():
        of_target = (
            policy if nets.policy_target is nets.policy else cast(Any, nets.policy_target).states(batch)
        )
        next_critics = cast(Any, nets.critics_target).states(batch)
    parts = policy[:, :rows].flatten(0, 1), critics[:, :rows].flatten(0, 1), of_target, next_critics
    return Seen(*({STATE: part if part.dim() == 2 else at_next(part, next_)} for part in parts))


def _values_and_target(
    nets: SacNetworks,
    constants: SacConstants,
    batch: TensorBatch,
    seen: Seen,
    noise: StepNoise,
    alpha: Tensor,
    stats: BatchStats | None,
) -> tuple[Tensor, Tensor]:
    """(n, B, k) values of the critics, and (B, m) TD targets without a gradient.

    Without target networks, current and next observations and actions are one batch of the critics (CrossQ): the statistics
    of both normalise it.
    """
    config, size = constants.config, constants.bijector.size
    current = batch.action.reshape(-1, size)
    with torch.no_grad():
        action, penalty = _next_action(nets, constants, seen, noise.next_action, alpha)
    if nets.critics_target is None:
        obs = {name: torch.cat([rows, seen.next_critics[name]]) for name, rows in seen.critics.items()}
        values, next_values = nets.critics(obs, torch.cat([current, action]), stats=stats).chunk(2, 1)
        next_values = next_values.detach()
    else:
        values = nets.critics(seen.critics, current, dropout=noise.dropout)
        with torch.no_grad():
            next_values = nets.critics_target(seen.next_critics, action, dropout=noise.next_dropout)
    if noise.subset is not None:
        next_values = next_values[noise.subset]
    next_values = truncate(next_values, config.drop_quantiles)
    numbers = (part.flatten() for part in (batch.reward, batch.discount, batch.terminated))
    return values, soft_target(next_values, penalty, *numbers)


def _next_action(
    nets: SacNetworks, constants: SacConstants, seen: Seen, noise: Tensor, alpha: Tensor
) -> tuple[Tensor, Tensor | float]:
    """(B, d) actions in the next states, and (B,) α·log π of them, or 0."""
    config, parameters = constants.config, nets.policy_target(seen.next_policy)
    if config.policy == "gaussian":
        action, log_prob = sample_action(constants.bijector, parameters, noise)
        return action, alpha * log_prob
    smoothing = config.target_noise, config.target_noise_clip
    return smooth_action(constants.bijector, parameters, noise, *smoothing), 0.0


def _policy_losses(
    nets: SacNetworks,
    constants: SacConstants,
    seen: Seen,
    noise: StepNoise,
    alpha: Tensor,
    stats: BatchStats | None,
) -> tuple[Tensor, Tensor | None]:
    """(B,) losses, and (B,) log-probabilities of the actions if the policy is Gaussian. The critics are as they act."""
    parameters = nets.policy(seen.policy, stats)
    critics_see = {name: rows.detach() for name, rows in seen.critics.items()}
    if constants.config.policy == "deterministic":
        action, first = constants.bijector.squash(parameters.mean), 1 if noise.subset is None else None
        return -nets.critics(critics_see, action, first, dropout=noise.dropout).mean((0, 2)), None
    action, log_prob = sample_action(constants.bijector, parameters, noise.action)
    values = nets.critics(critics_see, action, dropout=noise.dropout)
    # SAC takes the minimum over the critics, REDQ the mean, and TQC the mean over all quantiles of all critics.
    is_min = values.shape[2] == 1 and noise.subset is None
    value = values.min(0).values.mean(1) if is_min else values.mean((0, 2))
    return alpha * log_prob - value, log_prob
