"""Quantile regression with the Huber loss (Dabney et al., 2018)."""

from __future__ import annotations

import torch
from torch import Tensor


def quantile_huber(quantiles: Tensor, target: Tensor, tau: Tensor) -> Tensor:
    """(..., N) quantiles at the levels tau, (..., N') samples of the target → (...) losses.

    The sum over the quantiles of the mean over the samples of |τ - 1[u < 0]|·huber(u), with u = sample - quantile.
    """
    u = target.unsqueeze(-2) - quantiles.unsqueeze(-1)
    size = u.abs()
    huber = torch.where(size <= 1.0, 0.5 * u * u, size - 0.5)
    weight = (tau.unsqueeze(-1) - (u.detach() < 0).float()).abs()
    return (weight * huber).mean(-1).sum(-1)


def midpoints(n: int, like: Tensor) -> Tensor:
    """(n,) levels (i + 1/2)/n."""
    return (torch.arange(n, device=like.device, dtype=torch.float32) + 0.5) / n
