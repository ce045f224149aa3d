"""Targets, losses and the opt step of the value-based family, as functions of tensors.

A head defines what the network's outputs mean: a mean return (DQN, Mnih et al., 2015), probabilities of fixed returns (C51,
Bellemare et al., 2017) or quantiles of the return (QR-DQN and IQN, Dabney et al., 2018).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn.functional import log_softmax, mse_loss, smooth_l1_loss, softmax

from border_cli.agents.branches import by_branch, mask_actions, mean_of_branches
from border_cli.agents.dqn.config import DqnConfig, atoms_of
from border_cli.agents.dqn.network import NO_NOISE, Noise, QNetwork
from border_cli.agents.memory import at_next, mean_of_rows, sequence_errors
from border_cli.agents.params import AdamState, FlatParams, StepStats, TensorBatch, clip_norm_, flat_gradient
from border_cli.agents.quantiles import midpoints, quantile_huber

_ROUNDING = 1e-5
"""Share of the range of the atoms that float32 rounding can move an atom by."""


class Head(ABC):
    """Values, targets and losses of a network's outputs (..., k), k numbers per action."""

    @abstractmethod
    def values(self, outputs: Tensor) -> Tensor:
        """(..., k) → (...): expected returns."""

    def target(self, outputs: Tensor, reward: Tensor, discount: Tensor, terminated: Tensor) -> Tensor:
        """TD targets (B, k): by default r + γ^m·output, and r alone where terminated.

        Args:
            outputs: (B, k) of the next state and the action selected there; ignored where terminated, even if infinite.
            reward, discount, terminated: (B,) n-step sum, γ^m, and bool.
        """
        return _returns(outputs, reward, discount, terminated)

    def target_values(self, target: Tensor) -> Tensor:
        """(B, k) → (B,): the expected returns of targets."""
        return self.values(target)

    @abstractmethod
    def loss(self, outputs: Tensor, target: Tensor, tau: Tensor | None) -> Tensor:
        """(B,) losses. tau: (B, k) quantile levels of the outputs of IQN, else None."""

    def error(self, outputs: Tensor, target: Tensor) -> Tensor:
        """(B,) absolute errors for priorities, by default those of the expected returns."""
        return (self.values(outputs) - self.target_values(target)).abs()


def _returns(outputs: Tensor, reward: Tensor, discount: Tensor, terminated: Tensor) -> Tensor:
    """(B, k): r + γ^m·output, and r alone where terminated; by `where`, because the product 0·inf is NaN."""
    bootstrap = torch.where(terminated.unsqueeze(1), 0.0, outputs)
    return reward.unsqueeze(1) + discount.unsqueeze(1) * bootstrap


class ScalarHead(Head):
    """The mean return, k = 1, with the Huber or squared loss of the TD error."""

    def __init__(self, loss: str) -> None:
        self._loss = smooth_l1_loss if loss == "huber" else mse_loss

    def values(self, outputs: Tensor) -> Tensor:
        return outputs.squeeze(-1)

    def loss(self, outputs: Tensor, target: Tensor, tau: Tensor | None) -> Tensor:
        return self._loss(outputs, target, reduction="none").squeeze(-1)


class CategoricalHead(Head):
    """C51: logits of the probabilities of k returns, the atoms (k,)."""

    def __init__(self, atoms: Tensor) -> None:
        self.atoms = atoms

    def values(self, outputs: Tensor) -> Tensor:
        """Σ p_i·z_i of logits."""
        return softmax(outputs, -1) @ self._support(outputs)

    def target_values(self, target: Tensor) -> Tensor:
        """Σ p_i·z_i of probabilities: targets are no logits."""
        return target @ self._support(target)

    def target(self, outputs: Tensor, reward: Tensor, discount: Tensor, terminated: Tensor) -> Tensor:
        """Probabilities (B, atoms): the next state's distribution, shifted and projected on the atoms."""
        return self.project(*self._shifted(outputs, reward, discount, terminated))

    def project(self, p: Tensor, tz: Tensor) -> Tensor:
        """Project a distribution on the atoms (Bellemare et al., 2017, algorithm 1).

        Each return Tz_j is clipped to the range of the atoms. Its probability p_j is shared between the two nearest atoms
        z_l and z_u in proportion to how near they are: u gets p_j·(Tz_j - z_l)/(z_u - z_l), and l the rest. This keeps the
        mean, however the atoms are spaced.

        p: (B, atoms) probabilities of the returns tz: (B, atoms), r + γ^m·z_j. Returns (B, atoms) those of the atoms.
        """
        z = self._support(p)
        tz = tz.clamp(z[0], z[-1])
        # l is at most the last atom but one, so that u exists. A NaN return has that index, but its weight stays NaN, so
        # that the loss shows it.
        l = torch.bucketize(tz, z[1:-1], right=True)  # noqa: E741 - the paper's symbol
        weight_u = (tz - z[l]) / (z[l + 1] - z[l])
        m = torch.zeros_like(p).scatter_add_(1, l, p * (1 - weight_u))
        return m.scatter_add_(1, l + 1, p * weight_u)

    def share_clipped(self, outputs: Tensor, reward: Tensor, discount: Tensor, terminated: Tensor) -> Tensor:
        """(B,) probabilities of the returns that `project` clips by more than rounding. Arguments: see `target`."""
        p, tz = self._shifted(outputs, reward, discount, terminated)
        low, high = self.atoms[0], self.atoms[-1]
        slack = _ROUNDING * (high - low)
        return torch.where((tz < low - slack) | (tz > high + slack), p, 0.0).sum(1)

    def loss(self, outputs: Tensor, target: Tensor, tau: Tensor | None) -> Tensor:
        """(B,) cross-entropies."""
        return -(target * log_softmax(outputs, -1)).sum(-1)

    def error(self, outputs: Tensor, target: Tensor) -> Tensor:
        """(B,) Kullback-Leibler divergences, the cross-entropies minus the targets' entropies (as Rainbow's priorities)."""
        entropy = -torch.xlogy(target, target).sum(-1)
        return (self.loss(outputs, target, None) - entropy).clamp(min=0.0)

    def _shifted(
        self, outputs: Tensor, reward: Tensor, discount: Tensor, terminated: Tensor
    ) -> tuple[Tensor, Tensor]:
        """(B, atoms) probabilities p_j of the next state, and the returns Tz_j = r + γ^m·z_j."""
        p = softmax(torch.where(terminated.unsqueeze(1), 0.0, outputs), -1)
        z = self._support(outputs).expand_as(outputs)
        return p, _returns(z, reward, discount, terminated)

    def _support(self, like: Tensor) -> Tensor:
        if self.atoms.device != like.device:
            self.atoms = self.atoms.to(like.device)
        return self.atoms


class QuantileHead(Head):
    """k quantiles of the return, learned by quantile regression. Without given levels they are (i + 1/2)/k.

    kappa: the quantile Huber loss is quadratic up to this error.
    """

    def __init__(self, kappa: float = 1.0) -> None:
        self._kappa = kappa

    def values(self, outputs: Tensor) -> Tensor:
        """The mean of the quantiles."""
        return outputs.mean(-1)

    def loss(self, outputs: Tensor, target: Tensor, tau: Tensor | None) -> Tensor:
        """(B,) quantile Huber losses."""
        levels = midpoints(outputs.shape[1], outputs) if tau is None else tau
        return quantile_huber(outputs, target, levels, self._kappa)


def make_head(config: DqnConfig) -> Head:
    """The head that a configuration describes."""
    match config.head:
        case "categorical":
            return CategoricalHead(torch.tensor(atoms_of(config)))
        case "quantile" | "implicit_quantile":
            return QuantileHead(config.kappa)
        case _:
            return ScalarHead(config.loss)


SCALARS = ("loss", "q_mean", "target_mean", "grad_norm")
"""Scalars that an opt step adds to the statistics."""


@dataclass
class DqnState:
    """Everything that an opt step reads and changes. target: (n,) parameters of the target network."""

    online: AdamState
    target: Tensor
    stats: StepStats

    @staticmethod
    def init(layout: FlatParams, params: Tensor, beta1: float = 0.9) -> DqnState:
        """The state before the first opt step. `params`, of this layout, is used in place."""
        stats = StepStats.init(len(SCALARS), params.device)
        return DqnState(AdamState.init(layout, params, beta1), params.clone(), stats)


@dataclass(frozen=True)
class DqnNetworks:
    """The online and the target network, bound to the parameters in a state."""

    online: nn.Module
    target: nn.Module
    online_params: tuple[nn.Parameter, ...]

    @staticmethod
    def bind(layout: FlatParams, state: DqnState, precision: str = "float32") -> DqnNetworks:
        """Networks of this layout whose parameters are views of the state's vectors; see `FlatParams.bind`."""
        online, target = layout.bind(state.online.params, precision), layout.bind(state.target, precision)
        return DqnNetworks(online, target, tuple(online.parameters()))


@dataclass(frozen=True, eq=False)
class StepNoise:
    """Random numbers of the three passes of an opt step: online network, target network, selection of the next action."""

    online: Noise = NO_NOISE
    target: Noise = NO_NOISE
    select: Noise = NO_NOISE


NO_STEP_NOISE = StepNoise()
Targets = Callable[[DqnNetworks, TensorBatch, StepNoise], Tensor]


def opt_step(
    nets: DqnNetworks,
    head: Head,
    config: DqnConfig,
    state: DqnState,
    batch: TensorBatch,
    noise: StepNoise = NO_STEP_NOISE,
    mask: str | None = None,
    lr_scale: float | Tensor = 1.0,
    targets: Targets | None = None,
) -> Tensor | None:
    """One opt step in place, without the target update: targets, loss, gradient, clipping, Adam.

    If a scalar of the statistics is not finite, the step is skipped: parameters, moments and Adam's step count stay as
    they are.

    Args:
        batch: its importance weights, if it has any, multiply the losses of the rows.
        mask: name of the observation leaf that marks the allowed actions; None if all are allowed.
        lr_scale: factor of the learning rate.
        targets: instead of `td_targets`, for a variant of DQN without a memory.

    Returns:
        (B,) absolute errors, of rows or of sequences, if the batch has weights, else None.
    """
    d = len(cast(QNetwork, nets.online).branches)
    batch = by_branch(batch, d)
    if config.gru is None:
        with torch.no_grad():
            given = (nets, batch, noise)
            target = targets(*given) if targets else td_targets(nets, head, config, batch, noise, mask)
        outputs = gather_action(nets.online(batch.obs, noise.online), batch.action)
    else:
        outputs, target = _outputs_and_target_of_sequences(nets, head, config, batch, noise, mask)
    tau, valid = noise.online.tau, batch.extra.get("is_valid")
    losses = head.loss(outputs, target, tau if tau is None or d == 1 else tau.repeat_interleave(d, 0))
    loss = mean_of_rows(losses, valid, batch.weight)
    gradient = flat_gradient(loss, nets.online_params)
    with torch.no_grad():
        norm = clip_norm_(gradient, config.max_grad_norm)
        means = (mean_of_rows(values, valid) for values in (head.values(outputs), head.target_values(target)))
        skip = state.stats.add((loss, *means, norm))
        state.online.update(gradient, config.lr * lr_scale, config.adam_eps, skip)
        if batch.weight is None:
            return None
        errors = head.error(outputs, target)
        if valid is None:
            return errors.view(-1, d).mean(1) if d > 1 else errors
        return sequence_errors(errors.view(valid.shape), valid, config.priority_max_share)


def td_target(
    head: Head, outputs: Tensor, q_select: Tensor, reward: Tensor, discount: Tensor, terminated: Tensor
) -> Tensor:
    """TD targets (B, k), bootstrapped from the next action with the largest `q_select`.

    Args:
        outputs: (B, n, k) of the target network in the next states.
        q_select: (B, n) values that select the next action; in double DQN those of the online network.
        reward, discount, terminated: (B,).
    """
    return head.target(gather_action(outputs, q_select.argmax(1)), reward, discount, terminated)


def gather_action(outputs: Tensor, action: Tensor) -> Tensor:
    """(B, n, k) outputs → (B, k), those of the actions (B,)."""
    ix = action.view(-1, 1, 1).expand(-1, 1, outputs.shape[2])
    return outputs.gather(1, ix).squeeze(1)


def _next_outputs(
    nets: DqnNetworks, head: Head, config: DqnConfig, batch: TensorBatch, noise: StepNoise, mask: str | None
) -> tuple[Tensor, Tensor]:
    """In the next states: (B, n, k) outputs of the target network, and (B, n) values that select the action."""
    outputs = nets.target(batch.next_obs, noise.target)
    if config.double:
        selecting = nets.online(batch.next_obs, noise.select)
    elif noise.target.tau is not None:  # IQN: random levels for the target, fixed ones to select the action
        selecting = nets.target(batch.next_obs, noise.select)
    else:
        selecting = outputs
    branches = cast(QNetwork, nets.target).branches
    return outputs, mask_actions(head.values(selecting), batch.next_obs, mask, branches)


def td_targets(
    nets: DqnNetworks, head: Head, config: DqnConfig, batch: TensorBatch, noise: StepNoise, mask: str | None
) -> Tensor:
    """(B, k) TD targets of rows; of D actions at once (B·D, k).

    Those all bootstrap from their mean, as in BDQ (Tavakoli et al., 2018), but from their own where distributions of fixed
    returns are learned.
    """
    reward = batch.reward
    if config.munchausen is None:
        next_outputs, q_select = _next_outputs(nets, head, config, batch, noise, mask)
        best = gather_action(next_outputs, q_select.argmax(1))
    else:
        best, bonus = _munchausen(nets, head, config, batch, noise, mask)
        reward = reward + config.munchausen * bonus
    d = len(cast(QNetwork, nets.target).branches)
    if not isinstance(head, CategoricalHead):
        best = mean_of_branches(best, d)
    return head.target(best, reward, batch.discount, batch.terminated)


def _munchausen(
    nets: DqnNetworks, head: Head, config: DqnConfig, batch: TensorBatch, noise: StepNoise, mask: str | None
) -> tuple[Tensor, Tensor]:
    """What the targets of Munchausen RL (Vieillard et al., 2020) have in place of the best action, and add to the reward.

    (B, k) Σ_b π(b|s')·(output_b - τ·log π(b|s')), the soft value of the next state, and (B,) clipped τ·log π(a|s). π is the
    softmax of the target network's values by the temperature τ.
    """
    tau, branches = config.munchausen_tau, cast(QNetwork, nets.target).branches
    next_outputs = nets.target(batch.next_obs, noise.target)
    now = (nets.target(batch.obs, noise.select), batch.obs)
    log_pi, next_log_pi = (  # finite, so that 0·log 0 is 0
        (mask_actions(head.values(outputs), obs, mask, branches) / tau).clamp(min=-1e30).log_softmax(1)
        for outputs, obs in (now, (next_outputs, batch.next_obs))
    )
    bonus = tau * log_pi.gather(1, batch.action.unsqueeze(1)).squeeze(1)
    next_log_pi = next_log_pi.unsqueeze(2)
    value = (next_log_pi.exp() * (next_outputs - tau * next_log_pi)).sum(1)
    return value, bonus.clamp(config.munchausen_clip, 0.0)


def _outputs_and_target_of_sequences(
    nets: DqnNetworks, head: Head, config: DqnConfig, batch: TensorBatch, noise: StepNoise, mask: str | None
) -> tuple[Tensor, Tensor]:
    """(B·T, k) outputs and TD targets of networks with a memory. The next states are in the same sequences."""
    online = nets.online(batch.obs, noise.online, batch)  # (B, T + n, actions, k)
    with torch.no_grad():
        next_ = batch.extra["next"]
        next_outputs = at_next(nets.target(batch.obs, noise.target, batch), next_)
        values = head.values(at_next(online, next_) if config.double else next_outputs)
        if mask is not None:
            allowed = at_next(batch.obs[mask][:, config.burn_in :], next_)
            values = values.masked_fill(allowed == 0, -torch.inf)
        numbers = (part.flatten() for part in (batch.reward, batch.discount, batch.terminated))
        target = td_target(head, next_outputs, values, *numbers)
    rows = online[:, : batch.action.shape[1]].flatten(0, 1)
    return gather_action(rows, batch.action.flatten()), target


@torch.no_grad()
def mean_share_clipped(
    nets: DqnNetworks, head: CategoricalHead, config: DqnConfig, batch: TensorBatch, mask: str | None = None
) -> float:
    """Mean probability of the targets of a batch of rows beyond the atoms; computed without noise."""
    batch = by_branch(batch, len(cast(QNetwork, nets.target).branches))
    outputs, q_select = _next_outputs(nets, head, config, batch, NO_STEP_NOISE, mask)
    selected = gather_action(outputs, q_select.argmax(1))
    return head.share_clipped(selected, batch.reward, batch.discount, batch.terminated).mean().item()
