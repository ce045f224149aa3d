"""Batch normalisation (Ioffe and Szegedy, 2015) and renormalisation (Ioffe, 2017), with the constants of CrossQ (Bhatt et
al., 2024).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

_MOMENTUM = 0.01
_MOST_SCALE, _MOST_SHIFT = 3.0, 5.0
_WARM_UP = 100_000
"""Opt steps until which a batch is normalised by its own statistics alone."""


class BatchStats:
    """The running statistics that the training passes of one opt step lead to.

    steps: scalar, opt steps done before; None: the statistics of the batch alone normalise it, always.
    """

    def __init__(self, steps: Tensor | None = None) -> None:
        self.is_warm = None if steps is None else steps >= _WARM_UP
        self._updates: list[tuple[Tensor, Tensor]] = []

    def note(self, running: Tensor, batch: Tensor) -> None:
        """Remember to move a running statistic towards that of the batch."""
        self.set(running, running.lerp(batch.detach(), _MOMENTUM))

    def set(self, running: Tensor, value: Tensor) -> None:
        """Remember to set a running statistic."""
        self._updates.append((running, value))

    def apply(self, skip: Tensor) -> None:
        """Set the running statistics. skip: scalar; if it is 1, nothing changes."""
        for running, updated in self._updates:
            running.copy_(torch.where(skip == 0.0, updated, running))


class BatchRenorm(nn.Module):
    """Normalises (..., B, n) over B, by running statistics when acting, then scales and shifts.

    shape: that of one normalised row, such as (n,), or (critics, 1, n) for stacked critics · eps: is added to variances.
    """

    kind = "norm"

    def __init__(self, *shape: int, eps: float = 1e-3) -> None:
        super().__init__()
        self.eps = eps
        self.weight, self.bias = nn.Parameter(torch.ones(shape)), nn.Parameter(torch.zeros(shape))
        self.mean: Tensor
        self.variance: Tensor
        self.register_buffer("mean", torch.zeros(shape))
        self.register_buffer("variance", torch.ones(shape))

    def forward(self, x: Tensor, stats: BatchStats | None = None) -> Tensor:
        """(..., B, n) → the same. stats: given in training: the batch's own statistics count, and are noted there."""
        x = x.float()
        parts: list[Tensor] = [self.mean, self.variance, self.weight, self.bias]
        if self.mean.dim() > 1 and len(x) < len(self.mean):  # the first critics alone
            parts = [part[: len(x)] for part in parts]
        mean, variance, weight, bias = parts
        std = (variance.clamp(min=0.0) + self.eps).sqrt()  # weights of somebody else may be anything
        if stats is None:
            return (x - mean) / std * weight + bias
        keepdim = mean.dim() > 1
        if stats.is_warm is None:
            batch_mean = x.mean(-2, keepdim=keepdim)
            x = x - batch_mean
            of_batch = x.square().mean(-2, keepdim=keepdim)  # on a CPU, var_mean takes longer
        else:
            of_batch, batch_mean = torch.var_mean(x, -2, correction=0, keepdim=keepdim)
        batch_std = (of_batch + self.eps).sqrt()
        stats.note(mean, batch_mean)
        stats.note(variance, of_batch)
        if stats.is_warm is None:
            return torch.addcmul(bias, x, weight / batch_std)
        with torch.no_grad():  # r and d count as constants, as in the paper
            r = (batch_std / std).clamp(1.0 / _MOST_SCALE, _MOST_SCALE)
            d = ((batch_mean - mean) / std).clamp(-_MOST_SHIFT, _MOST_SHIFT)
            r, d = torch.where(stats.is_warm, r, 1.0), torch.where(stats.is_warm, d, 0.0)
        return ((x - batch_mean) / batch_std * r + d) * weight + bias
