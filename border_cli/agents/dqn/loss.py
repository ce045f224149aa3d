"""DQN's targets, loss and update, as functions of tensors."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss, smooth_l1_loss

from border_cli.agents.adam import adam_step, clip_norm_
from border_cli.agents.dqn.config import DqnConfig
from border_cli.agents.flat import FlatModule, flat_gradient

SCALARS = ("loss", "q_mean", "target_mean", "grad_norm")
"""What an opt step yields, in the order of its vector."""


@dataclass
class DqnState:
    """Everything an opt step reads and changes.

    online, target: weights · mean, variance: Adam's moments · count: its steps, a scalar float32 tensor ·
    sums: (len(SCALARS),) sums of the scalars since they were last read, skipped opt steps left out ·
    skipped: opt steps skipped since then · skipped_in_a_row: until now; both scalar float32 tensors.
    """

    online: Tensor
    target: Tensor
    mean: Tensor
    variance: Tensor
    count: Tensor
    sums: Tensor
    skipped: Tensor
    skipped_in_a_row: Tensor

    @staticmethod
    def fresh(weights: Tensor) -> DqnState:
        """State before the first opt step."""
        zeros = torch.zeros_like
        count, skipped, in_a_row = (weights.new_zeros(()) for _ in range(3))
        sums = weights.new_zeros(len(SCALARS))
        return DqnState(
            weights, weights.clone(), zeros(weights), zeros(weights), count, sums, skipped, in_a_row
        )


@dataclass(frozen=True)
class DqnNetworks:
    """The two networks, working with the weights of a state."""

    online: nn.Module
    target: nn.Module
    online_parameters: tuple[nn.Parameter, ...]

    @staticmethod
    def over(net: FlatModule, state: DqnState) -> DqnNetworks:
        """Networks of this kind over this state's vectors."""
        online = net.over(state.online)
        return DqnNetworks(online, net.over(state.target), tuple(online.parameters()))


@dataclass
class TensorBatch:
    """A batch as tensors; shapes as in `core.protocols.Batch`."""

    obs: dict[str, Tensor]
    action: Tensor
    reward: Tensor
    discount: Tensor
    terminated: Tensor
    next_obs: dict[str, Tensor]


def td_target(
    q_next_target: Tensor, q_next_online: Tensor | None, reward: Tensor, discount: Tensor, terminated: Tensor
) -> Tensor:
    """(B,) targets: reward + discount·Q_target(s', a'), without the second term where terminated.

    q_next_*: (B, n). a' is the best action by q_next_online (double DQN), by the target network where that is None.
    """
    chooser = q_next_target if q_next_online is None else q_next_online
    value = q_next_target.gather(1, chooser.argmax(1, keepdim=True)).squeeze(1)
    return reward + discount * torch.where(terminated, 0.0, value)


def opt_step(nets: DqnNetworks, config: DqnConfig, state: DqnState, batch: TensorBatch) -> None:
    """One opt step in place, target update left out: targets, loss, gradient, clipping, Adam.

    If any of the scalars, the gradient's norm among them, is not finite, the step is skipped: weights, moments and
    Adam's count stay as they are. That is decided on the device, so that nothing has to be read back for it.
    """
    with torch.no_grad():
        q_next_online = nets.online(batch.next_obs) if config.double else None
        q_next = nets.target(batch.next_obs)
        target = td_target(q_next, q_next_online, batch.reward, batch.discount, batch.terminated)
    q = nets.online(batch.obs).gather(1, batch.action.unsqueeze(1)).squeeze(1)
    loss = smooth_l1_loss(q, target) if config.loss == "huber" else mse_loss(q, target)
    gradient = flat_gradient(loss, nets.online_parameters)
    with torch.no_grad():
        norm = clip_norm_(gradient, config.max_grad_norm)
        scalars = torch.stack([loss, q.mean(), target.mean(), norm])
        is_bad = (
            (scalars - scalars).sum().isnan()
        )  # x - x is 0, or NaN for NaN and infinities; half of isfinite's time
        skip = is_bad.float()
        adam_step(
            state.online,
            gradient,
            state.mean,
            state.variance,
            state.count,
            config.lr,
            config.adam_eps,
            skip,
        )
        state.sums.add_(torch.where(is_bad, 0.0, scalars))
        state.skipped.add_(skip)
        state.skipped_in_a_row.add_(skip).mul_(skip)


def update_target(state: DqnState, tau: float) -> None:
    """Move the target weights by the share tau towards the online ones; 1 copies them."""
    if tau == 1.0:
        state.target.copy_(state.online)
    else:
        state.target.lerp_(state.online, tau)
