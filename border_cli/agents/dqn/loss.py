"""Targets, loss and update of the value-based family, as functions of tensors."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from border_cli.agents.adam import Trained, clip_norm_
from border_cli.agents.batches import TensorBatch
from border_cli.agents.dqn.config import DqnConfig
from border_cli.agents.dqn.heads import CategoricalHead, Head
from border_cli.agents.dqn.network import NO_DRAWS, Draws
from border_cli.agents.flat import FlatModule, flat_gradient
from border_cli.agents.outcome import Outcome

SCALARS = ("loss", "q_mean", "target_mean", "grad_norm")
"""What an opt step yields, in the order of its sums."""


@dataclass
class DqnState:
    """Everything an opt step reads and changes. online: with Adam's moments · target: weights."""

    online: Trained
    target: Tensor
    outcome: Outcome

    @staticmethod
    def fresh(weights: Tensor) -> DqnState:
        """State before the first opt step. The weights are used in place."""
        return DqnState(Trained.fresh(weights), weights.clone(), Outcome.fresh(len(SCALARS), weights.device))


@dataclass(frozen=True)
class DqnNetworks:
    """The two networks, working with the weights of a state."""

    online: nn.Module
    target: nn.Module
    online_parameters: tuple[nn.Parameter, ...]

    @staticmethod
    def over(net: FlatModule, state: DqnState) -> DqnNetworks:
        """Networks of this kind over this state's vectors."""
        online = net.over(state.online.weights)
        return DqnNetworks(online, net.over(state.target), tuple(online.parameters()))


@dataclass(frozen=True, eq=False)
class StepDraws:
    """What chance has to do with one opt step: forward passes of the online network, of the target's, and of choosing."""

    online: Draws = NO_DRAWS
    target: Draws = NO_DRAWS
    choosing: Draws = NO_DRAWS


NO_STEP_DRAWS = StepDraws()


def td_target(
    head: Head, outputs: Tensor, choosing: Tensor, reward: Tensor, discount: Tensor, terminated: Tensor
) -> Tensor:
    """What the outputs of the present states' actions are to become, as `Head.target` says.

    outputs: (B, n, k) of the next states, by the target network · choosing: (B, n) values by which their action is
    chosen; by the online network for double DQN.
    """
    return head.target(of_action(outputs, choosing.argmax(1)), reward, discount, terminated)


def allowed(values: Tensor, obs: dict[str, Tensor], mask: str | None) -> Tensor:
    """(B, n) values, -inf where the observation's mask forbids the action."""
    return values if mask is None else values.masked_fill(obs[mask] == 0, -torch.inf)


def of_action(outputs: Tensor, action: Tensor) -> Tensor:
    """(B, n, k) and (B,) → (B, k)."""
    ix = action.view(-1, 1, 1).expand(-1, 1, outputs.shape[2])
    return outputs.gather(1, ix).squeeze(1)


def opt_step(
    nets: DqnNetworks,
    head: Head,
    config: DqnConfig,
    state: DqnState,
    batch: TensorBatch,
    draws: StepDraws = NO_STEP_DRAWS,
    mask: str | None = None,
) -> Tensor | None:
    """One opt step in place, target update left out: targets, loss, gradient, clipping, Adam. (B,) absolute errors of
    a weighted batch.

    mask: name of the leaf that says which actions are allowed, None where all are. Importance weights multiply the losses
    of the rows. If any of the scalars, the gradient's norm among them, is not finite, the step is skipped: weights,
    moments and Adam's count stay as they are.
    """
    with torch.no_grad():
        next_outputs, choosing = _of_next(nets, head, config, batch, draws, mask)
        target = td_target(head, next_outputs, choosing, batch.reward, batch.discount, batch.terminated)
    outputs = of_action(nets.online(batch.obs, draws.online), batch.action)
    losses = head.loss(outputs, target, draws.online.tau)
    loss = losses.mean() if batch.weight is None else (batch.weight * losses).mean()
    gradient = flat_gradient(loss, nets.online_parameters)
    with torch.no_grad():
        norm = clip_norm_(gradient, config.max_grad_norm)
        skip = state.outcome.take(
            (loss, head.values(outputs).mean(), head.target_values(target).mean(), norm)
        )
        state.online.step(gradient, config.lr, config.adam_eps, skip)
        return None if batch.weight is None else head.error(outputs, target)


@torch.no_grad()
def beyond_atoms(
    nets: DqnNetworks, head: CategoricalHead, config: DqnConfig, batch: TensorBatch, mask: str | None = None
) -> float:
    """Mean share of this batch's targets that the atoms cut off, by networks without noise."""
    outputs, choosing = _of_next(nets, head, config, batch, NO_STEP_DRAWS, mask)
    chosen = of_action(outputs, choosing.argmax(1))
    return head.beyond(chosen, batch.reward, batch.discount, batch.terminated).mean().item()


def _of_next(
    nets: DqnNetworks, head: Head, config: DqnConfig, batch: TensorBatch, draws: StepDraws, mask: str | None
) -> tuple[Tensor, Tensor]:
    """Of the next states: (B, n, k) outputs of the target network, and (B, n) values by which their action is chosen."""
    outputs = nets.target(batch.next_obs, draws.target)
    if config.double:
        choosing = nets.online(batch.next_obs, draws.choosing)
    elif draws.target.tau is not None:  # levels of the target's are random, those of choosing are not
        choosing = nets.target(batch.next_obs, draws.choosing)
    else:
        choosing = outputs
    return outputs, allowed(head.values(choosing), batch.next_obs, mask)


def update_target(state: DqnState, tau: float) -> None:
    """Move the target weights by the share tau towards the online ones; 1 copies them."""
    if tau == 1.0:
        state.target.copy_(state.online.weights)
    else:
        state.target.lerp_(state.online.weights, tau)
