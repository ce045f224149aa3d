"""Adam (Kingma and Ba, 2015) on one vector, as a function of its state."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.optim.adam import adam


@dataclass
class Trained:
    """A vector that Adam changes, and what Adam has to remember of it.

    weights, mean, variance: float32 vectors of one length · count: Adam's steps so far, a scalar float32 tensor.
    """

    weights: Tensor
    mean: Tensor
    variance: Tensor
    count: Tensor

    @staticmethod
    def fresh(weights: Tensor) -> Trained:
        """Before the first step. The weights are used in place."""
        return Trained(weights, torch.zeros_like(weights), torch.zeros_like(weights), weights.new_zeros(()))

    def step(self, gradient: Tensor, lr: float, eps: float, skip: Tensor | None = None) -> None:
        """One step in place. skip: scalar float32 tensor; where it is 1 everything stays as it is, bit for bit."""
        adam(
            [self.weights],
            [gradient],
            [self.mean],
            [self.variance],
            [],
            [self.count],
            fused=True,
            amsgrad=False,
            beta1=0.9,
            beta2=0.999,
            lr=lr,
            weight_decay=0.0,
            eps=eps,
            maximize=False,
            found_inf=skip,
        )


def clip_norm_(gradient: Tensor, max_norm: float | None) -> Tensor:
    """Scale the gradient in place so that its norm is at most max_norm; the norm it had."""
    norm: Tensor = gradient.norm()
    if max_norm is not None:
        gradient.mul_((max_norm / (norm + 1e-6)).clamp(max=1.0))
    return norm
