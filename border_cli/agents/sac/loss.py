"""Targets, losses and update of the actor-critic family, as functions of tensors.

All gradients are taken from the weights as they are before the opt step, and only then anything is changed: so an opt
step whose numbers are not finite can be skipped as a whole.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn

from border_cli.agents.adam import Trained, clip_norm_
from border_cli.agents.batches import TensorBatch
from border_cli.agents.flat import FlatModule, flat_gradient
from border_cli.agents.outcome import Outcome
from border_cli.agents.quantiles import midpoints, quantile_huber
from border_cli.agents.sac.bounds import Bounds
from border_cli.agents.sac.config import SacConfig
from border_cli.agents.sac.network import ActionParameters, EntropyCoefficient

SCALARS = ("critic_loss", "policy_loss", "q_mean", "target_mean", "entropy_coef", "entropy", "grad_norm")
"""What an opt step yields, in the order of its sums. The policy's loss and entropy are 0 where it is not changed."""


@dataclass(frozen=True)
class SacNets:
    """The kinds of networks. coef: None where the entropy coefficient is not learnt."""

    policy: FlatModule
    critics: FlatModule
    coef: FlatModule | None


@dataclass
class SacState:
    """Everything an opt step reads and changes.

    policy_target: None where the target's actions are the policy's · policy_steps: opt steps since the last record that
    have changed the policy.
    """

    policy: Trained
    critics: Trained
    critics_target: Tensor
    policy_target: Tensor | None
    coef: Trained | None
    outcome: Outcome
    policy_steps: Tensor

    @staticmethod
    def fresh(nets: SacNets, config: SacConfig, device: torch.device) -> SacState:
        """State before the first opt step."""
        policy, critics = (Trained.fresh(net.initial().to(device)) for net in (nets.policy, nets.critics))
        return SacState(
            policy,
            critics,
            critics.weights.clone(),
            policy.weights.clone() if config.policy == "deterministic" else None,
            None if nets.coef is None else Trained.fresh(nets.coef.initial().to(device)),
            Outcome.fresh(len(SCALARS), device),
            torch.zeros((), device=device),
        )


@dataclass(frozen=True)
class SacNetworks:
    """The networks, working with the weights of a state."""

    policy: nn.Module
    policy_target: nn.Module
    critics: nn.Module
    critics_target: nn.Module
    coef: nn.Module | None

    @staticmethod
    def over(nets: SacNets, state: SacState) -> SacNetworks:
        """Networks of these kinds over this state's vectors."""
        policy = nets.policy.over(state.policy.weights)
        return SacNetworks(
            policy,
            policy if state.policy_target is None else nets.policy.over(state.policy_target),
            nets.critics.over(state.critics.weights),
            nets.critics.over(state.critics_target),
            None if nets.coef is None or state.coef is None else nets.coef.over(state.coef.weights),
        )


@dataclass(frozen=True, eq=False)
class StepDraws:
    """Standard normal numbers of one opt step, (B, d) each: for the policy's actions, and for the target's."""

    action: Tensor
    next_action: Tensor


@dataclass(frozen=True)
class Rules:
    """What does not change: the configuration, the bounds of actions, the entropy that the coefficient is learnt for, of
    actions scaled to [-1, 1].
    """

    config: SacConfig
    bounds: Bounds
    target_entropy: float


def sampled(bounds: Bounds, given: ActionParameters, noise: Tensor) -> tuple[Tensor, Tensor]:
    """(B, d) actions of a Gaussian policy, differentiable by its parameters, and their (B,) log-probabilities.

    Those are of actions scaled to [-1, 1]: a reward for entropy that depended on the unit of the actions would be one for
    living longer, or for ending soon.
    """
    u = given.mean + given.std * noise
    return bounds.squashed(u), bounds.log_prob(u, given.mean, given.std) + bounds.log_volume


def smoothed(bounds: Bounds, given: ActionParameters, noise: Tensor, std: float, clip: float) -> Tensor:
    """(B, d) actions of a deterministic policy with clipped noise, in half ranges, within the bounds (TD3)."""
    x = torch.tanh(given.mean) + (std * noise).clamp(-clip, clip)
    return bounds.scaled(x.clamp(-1.0, 1.0))


def truncated(values: Tensor, drop: int) -> Tensor:
    """(n, B, k) → (B, m): the values of all critics without the n·drop greatest (TQC); of their means the least."""
    n, rows, k = values.shape
    if k == 1:
        return values.min(0).values
    pooled = values.transpose(0, 1).reshape(rows, n * k).sort(1).values
    return pooled[:, : n * (k - drop)]


def soft_target(
    values: Tensor, penalty: Tensor | float, reward: Tensor, discount: Tensor, terminated: Tensor
) -> Tensor:
    """(B, m) targets: reward + discount·(value - penalty), without the second term where terminated.

    values: (B, m) of the next states and actions · penalty: (B,) entropy coefficient times log-probability, or 0.
    """
    if isinstance(penalty, Tensor):
        penalty = penalty.unsqueeze(1)
    later = torch.where(terminated.unsqueeze(1), 0.0, values - penalty)
    return reward.unsqueeze(1) + discount.unsqueeze(1) * later


def critic_losses(values: Tensor, target: Tensor) -> Tensor:
    """(n, B, k) and (B, m) → (B,): the sum over the critics, of half the squared error or of quantile regression."""
    if values.shape[2] == 1:
        return 0.5 * (values - target).square().sum((0, 2))
    losses = quantile_huber(values, target.expand(len(values), -1, -1), midpoints(values.shape[2], values))
    return losses.sum(0)


def opt_step(
    nets: SacNetworks,
    rules: Rules,
    state: SacState,
    batch: TensorBatch,
    draws: StepDraws,
    change_policy: bool = True,
) -> Tensor | None:
    """One opt step in place, target updates left out. (B,) absolute errors of a weighted batch.

    Importance weights multiply the critics' losses. If any of the scalars, the gradients' norms among them, is not
    finite, the step is skipped: weights, moments and counts stay as they are.
    """
    config = rules.config
    coef = _coefficient(nets, config)
    target = _target(nets, rules, batch, draws.next_action, coef)
    values = nets.critics(batch.obs, _flat(batch.action))
    losses = critic_losses(values, target)
    critic_loss = losses.mean() if batch.weight is None else (batch.weight * losses).mean()
    gradients = {"critics": flat_gradient(critic_loss, tuple(nets.critics.parameters()))}
    policy_loss, log_prob = torch.zeros_like(critic_loss), None
    if change_policy:
        policy_loss, log_prob = _policy_loss(nets, rules, batch, draws.action, coef)
        gradients["policy"] = flat_gradient(policy_loss, tuple(nets.policy.parameters()))
        if nets.coef is not None and log_prob is not None:
            coef_loss = -(
                cast(EntropyCoefficient, nets.coef).log * (log_prob.detach() + rules.target_entropy)
            ).mean()
            gradients["coef"] = flat_gradient(coef_loss, tuple(nets.coef.parameters()))
    with torch.no_grad():
        norms = [clip_norm_(gradient, config.max_grad_norm) for gradient in gradients.values()]
        entropy = torch.zeros_like(critic_loss) if log_prob is None else -log_prob.mean()
        skip = state.outcome.take(
            (
                critic_loss, policy_loss, values.mean(), target.mean(),
                coef.mean(), entropy, torch.stack(norms).norm(),
            )
        )  # fmt: skip
        if change_policy:
            state.policy_steps.add_(1.0 - skip)
        _apply(state, gradients, config, skip)
        return None if batch.weight is None else (values.mean(2) - target.mean(1)).abs().mean(0)


def update_targets(state: SacState, tau: float) -> None:
    """Move the target weights by the share tau towards the online ones; 1 copies them."""
    pairs = [(state.critics_target, state.critics.weights)]
    if state.policy_target is not None:
        pairs.append((state.policy_target, state.policy.weights))
    for target, online in pairs:
        if tau == 1.0:
            target.copy_(online)
        else:
            target.lerp_(online, tau)


def _coefficient(nets: SacNetworks, config: SacConfig) -> Tensor:
    """(1,), without a gradient."""
    if nets.coef is not None:
        found: Tensor = nets.coef().detach()
        return found
    fixed = config.entropy_coef if config.policy == "gaussian" else 0.0
    return torch.full((1,), fixed or 0.0, device=next(nets.policy.parameters()).device)


@torch.no_grad()
def _target(nets: SacNetworks, rules: Rules, batch: TensorBatch, noise: Tensor, coef: Tensor) -> Tensor:
    config, given = rules.config, nets.policy_target(batch.next_obs)
    penalty: Tensor | float = 0.0
    if config.policy == "gaussian":
        action, log_prob = sampled(rules.bounds, given, noise)
        penalty = coef * log_prob
    else:
        action = smoothed(rules.bounds, given, noise, config.target_noise, config.target_noise_clip)
    values = truncated(nets.critics_target(batch.next_obs, action), config.drop_quantiles)
    return soft_target(values, penalty, batch.reward, batch.discount, batch.terminated)


def _policy_loss(
    nets: SacNetworks, rules: Rules, batch: TensorBatch, noise: Tensor, coef: Tensor
) -> tuple[Tensor, Tensor | None]:
    """The loss, and the (B,) log-probabilities of a Gaussian policy's actions."""
    given = nets.policy(batch.obs)
    if rules.config.policy == "deterministic":
        values = nets.critics(batch.obs, rules.bounds.squashed(given.mean), first=1)
        return -values.mean(), None
    action, log_prob = sampled(rules.bounds, given, noise)
    values = nets.critics(batch.obs, action)
    value = values.min(0).values.mean(1) if values.shape[2] == 1 else values.mean((0, 2))
    return (coef * log_prob - value).mean(), log_prob


def _apply(state: SacState, gradients: dict[str, Tensor], config: SacConfig, skip: Tensor) -> None:
    for name, gradient in gradients.items():
        trained: Trained = getattr(state, name)
        lr = config.critic_lr if name == "critics" and config.critic_lr is not None else config.lr
        trained.step(gradient, lr, config.adam_eps, skip)


def _flat(action: Tensor) -> Tensor:
    return action.reshape(len(action), -1)
