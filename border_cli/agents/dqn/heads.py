"""What the outputs of a Q-network mean: its heads.

A mean return (DQN, Mnih et al., 2015), probabilities of fixed returns (C51, Bellemare et al., 2017) or quantiles of the
return (QR-DQN and IQN, Dabney et al., 2018).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import log_softmax, mse_loss, smooth_l1_loss, softmax

from border_cli.agents.algorithm import td_target
from border_cli.agents.dqn.config import DqnConfig, atoms_of
from border_cli.agents.quantiles import midpoints, quantile_huber

_ROUNDING = 1e-5
"""Share of the range of the atoms that float32 rounding can move an atom by."""


class Head(ABC):
    """Values, targets and losses of a network's outputs (..., k), k numbers per action."""

    @abstractmethod
    def values(self, outputs: Any) -> Any:
        """(..., k) → (...): expected returns, of arrays or tensors."""

    def target(self, outputs: Tensor, reward: Tensor, discount: Tensor, terminated: Tensor) -> Tensor:
        """TD targets (B, k): by default r + γ^m·output, and r alone where terminated.

        Args:
            outputs: (B, k) of the next state and the action selected there; ignored where terminated, even if infinite.
            reward, discount, terminated: (B,) n-step sum, γ^m, and bool.
        """
        return td_target(outputs, reward, discount, terminated)

    def target_values(self, target: Tensor) -> Tensor:
        """(B, k) → (B,): the expected returns of targets."""
        return cast(Tensor, self.values(target))

    @abstractmethod
    def loss(self, outputs: Tensor, target: Tensor, tau: Tensor | None) -> Tensor:
        """(B,) losses. tau: (B, k) quantile levels of the outputs of IQN, else None."""

    def error(self, outputs: Tensor, target: Tensor) -> Tensor:
        """(B,) absolute errors for priorities, by default those of the expected returns."""
        return cast(Tensor, self.values(outputs) - self.target_values(target)).abs()


class ScalarHead(Head):
    """The mean return, k = 1, with the Huber or squared loss of the TD error."""

    def __init__(self, loss: str) -> None:
        self._loss = smooth_l1_loss if loss == "huber" else mse_loss

    def values(self, outputs: Any) -> Any:
        return outputs.squeeze(-1)

    def loss(self, outputs: Tensor, target: Tensor, tau: Tensor | None) -> Tensor:
        return self._loss(outputs, target, reduction="none").squeeze(-1)


class CategoricalHead(Head):
    """C51: logits of the probabilities of k returns, the atoms (k,)."""

    def __init__(self, atoms: Tensor) -> None:
        self.atoms = atoms

    def values(self, outputs: Any) -> Any:
        """Σ p_i·z_i of logits."""
        if isinstance(outputs, np.ndarray):
            return self.values(torch.from_numpy(outputs)).numpy()
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
        return p, td_target(z, reward, discount, terminated)

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

    def values(self, outputs: Any) -> Any:
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
