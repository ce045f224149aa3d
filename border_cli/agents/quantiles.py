"""Quantile regression with the Huber loss (Dabney et al., 2018)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def quantile_huber(quantiles: Tensor, target: Tensor, tau: Tensor) -> Tensor:
    """(..., N) quantiles at the levels tau, (..., N') samples of the target → (...) losses.

    The sum over the quantiles of the mean over the samples of |τ - 1[u < 0]|·huber(u), with u = sample - quantile. The
    gradient is that of the quantiles alone.
    """
    losses: Tensor = _QuantileHuber.apply(quantiles, target, tau)  # type: ignore[no-untyped-call] # torch's own
    return losses


class _QuantileHuber(torch.autograd.Function):
    """With its gradient written out: it takes a quarter of the time of autograd's, which was a third of TQC's opt step.

    With c = u within ±1, huber(u) = c·(u - c/2), and its derivative is c.
    """

    @staticmethod
    def forward(ctx: Any, quantiles: Tensor, target: Tensor, tau: Tensor) -> Tensor:
        u = target.unsqueeze(-2) - quantiles.unsqueeze(-1)  # (..., N, N')
        c = u.clamp(-1.0, 1.0)
        tau = tau.unsqueeze(-1)
        slope = torch.where(u < 0, 1 - tau, tau).mul_(c)
        ctx.save_for_backward(slope.mean(-1))
        return u.sub_(c, alpha=0.5).mul_(slope).mean(-1).sum(-1)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        (slope,) = ctx.saved_tensors
        return -slope * gradients[0].unsqueeze(-1), None, None


def midpoints(n: int, like: Tensor) -> Tensor:
    """(n,) levels (i + 1/2)/n."""
    return (torch.arange(n, device=like.device, dtype=torch.float32) + 0.5) / n
