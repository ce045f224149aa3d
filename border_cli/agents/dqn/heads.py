"""What is learnt of the return: its mean, or one of three forms of its distribution.

An action's outputs, the last dimension here, mean something else with each head: its value; logits of fixed values
(Bellemare et al., 2017); quantiles at fixed levels (Dabney et al., 2018a); quantiles at given levels τ
(Dabney et al., 2018b).
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor
from torch.nn.functional import log_softmax, mse_loss, smooth_l1_loss, softmax

from border_cli.agents.dqn.config import DqnConfig
from border_cli.agents.quantiles import midpoints, quantile_huber

_ROUNDING = 1e-5
"""Of the span of the atoms: so little beyond an end is what float32 makes of the end itself."""


class Head(ABC):
    """outputs: numbers per action that the network gives."""

    outputs: int

    @abstractmethod
    def values(self, outputs: Tensor) -> Tensor:
        """(..., outputs) → (...): expected returns."""

    @abstractmethod
    def target(self, outputs: Tensor, reward: Tensor, discount: Tensor, terminated: Tensor) -> Tensor:
        """What the outputs are to become. outputs: (B, k) of the next state and action; reward, discount, terminated: (B,).

        Where terminated, the next state counts for nothing, whatever its outputs are.
        """

    def target_values(self, target: Tensor) -> Tensor:
        """(B, k) → (B,): the expected returns of targets."""
        return self.values(target)

    @abstractmethod
    def loss(self, outputs: Tensor, target: Tensor, tau: Tensor | None) -> Tensor:
        """(B,) losses. tau: (B, k) levels of the outputs, where they differ."""

    def error(self, outputs: Tensor, target: Tensor) -> Tensor:
        """(B,) absolute errors, for priorities: of the expected returns, where a head has nothing better."""
        return (self.values(outputs) - self.target_values(target)).abs()


class ScalarHead(Head):
    """The mean return, learnt from the TD error."""

    outputs = 1

    def __init__(self, loss: str) -> None:
        self._loss = smooth_l1_loss if loss == "huber" else mse_loss

    def values(self, outputs: Tensor) -> Tensor:
        """As of `Head`."""
        return outputs.squeeze(-1)

    def target(self, outputs: Tensor, reward: Tensor, discount: Tensor, terminated: Tensor) -> Tensor:
        """(B, 1)."""
        return _returns(outputs, reward, discount, terminated)

    def loss(self, outputs: Tensor, target: Tensor, tau: Tensor | None) -> Tensor:
        """As of `Head`."""
        del tau
        return self._loss(outputs, target, reduction="none").squeeze(-1)


class CategoricalHead(Head):
    """Probabilities of `atoms` values from v_min to v_max, learnt by cross-entropy."""

    def __init__(self, atoms: int, v_min: float, v_max: float) -> None:
        self.outputs = atoms
        self._v_min, self._v_max = v_min, v_max
        self._atoms = torch.linspace(v_min, v_max, atoms)

    def values(self, outputs: Tensor) -> Tensor:
        """As of `Head`."""
        return softmax(outputs, -1) @ self._support(outputs)

    def target(self, outputs: Tensor, reward: Tensor, discount: Tensor, terminated: Tensor) -> Tensor:
        """(B, atoms) probabilities: the next state's, moved by the return and shared between the two nearest atoms."""
        probability, moved = self._moved(outputs, reward, discount, terminated)
        moved = moved.clamp(self._v_min, self._v_max)
        place = (moved - self._v_min) * ((self.outputs - 1) / (self._v_max - self._v_min))
        lower = place.detach().nan_to_num().floor().clamp(0, self.outputs - 2)
        share = (place - lower).clamp(0.0, 1.0)  # of the upper neighbour, rounding left out; NaN stays one
        ix = lower.long()
        projected = torch.zeros_like(probability).scatter_add_(1, ix, probability * (1 - share))
        return projected.scatter_add_(1, ix + 1, probability * share)

    def beyond(self, outputs: Tensor, reward: Tensor, discount: Tensor, terminated: Tensor) -> Tensor:
        """(B,) probabilities that `target` cuts: of returns off the atoms by more than what rounding does."""
        probability, moved = self._moved(outputs, reward, discount, terminated)
        slack = _ROUNDING * (self._v_max - self._v_min)
        off = (moved < self._v_min - slack) | (moved > self._v_max + slack)
        return torch.where(off, probability, 0.0).sum(1)

    def loss(self, outputs: Tensor, target: Tensor, tau: Tensor | None) -> Tensor:
        """As of `Head`: the cross-entropy."""
        del tau
        return -(target * log_softmax(outputs, -1)).sum(-1)

    def error(self, outputs: Tensor, target: Tensor) -> Tensor:
        """As of `Head`: what of the loss can be learnt, the Kullback-Leibler divergence (as in Rainbow)."""
        entropy = -torch.xlogy(target, target).sum(-1)
        return (self.loss(outputs, target, None) - entropy).clamp(min=0.0)

    def target_values(self, target: Tensor) -> Tensor:
        """As of `Head`; a target's probabilities are no logits."""
        return target @ self._support(target)

    def _moved(
        self, outputs: Tensor, reward: Tensor, discount: Tensor, terminated: Tensor
    ) -> tuple[Tensor, Tensor]:
        """(B, atoms) probabilities of the next state, and the returns that its atoms become."""
        probability = softmax(torch.where(terminated.unsqueeze(1), 0.0, outputs), -1)
        support = self._support(outputs).expand_as(outputs)
        return probability, _returns(support, reward, discount, terminated)

    def _support(self, like: Tensor) -> Tensor:
        if self._atoms.device != like.device:
            self._atoms = self._atoms.to(like.device)
        return self._atoms


class QuantileHead(Head):
    """Quantiles of the return, learnt by quantile regression with the Huber loss.

    Their levels are (i + 1/2)/outputs where none are given.
    """

    def __init__(self, quantiles: int) -> None:
        self.outputs = quantiles

    def values(self, outputs: Tensor) -> Tensor:
        """As of `Head`."""
        return outputs.mean(-1)

    def target(self, outputs: Tensor, reward: Tensor, discount: Tensor, terminated: Tensor) -> Tensor:
        """(B, k)."""
        return _returns(outputs, reward, discount, terminated)

    def loss(self, outputs: Tensor, target: Tensor, tau: Tensor | None) -> Tensor:
        """As of `Head`."""
        levels = midpoints(outputs.shape[1], outputs) if tau is None else tau
        return quantile_huber(outputs, target, levels)


def make_head(config: DqnConfig) -> Head:
    """The head that a configuration describes."""
    match config.head:
        case "categorical":
            return CategoricalHead(config.atoms, config.v_min, config.v_max)
        case "quantile":
            return QuantileHead(config.quantiles)
        case "implicit_quantile":
            return QuantileHead(1)  # an output for each level that the network is given
        case _:
            return ScalarHead(config.loss)


def _returns(outputs: Tensor, reward: Tensor, discount: Tensor, terminated: Tensor) -> Tensor:
    """Reward + discount·outputs, without the second term where terminated, for each of the (B, k) outputs."""
    later = torch.where(terminated.unsqueeze(1), 0.0, outputs)
    return reward.unsqueeze(1) + discount.unsqueeze(1) * later
