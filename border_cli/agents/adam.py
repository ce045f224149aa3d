"""Adam (Kingma and Ba, 2015) on one vector, as a function of its state."""

from __future__ import annotations

from torch import Tensor
from torch.optim.adam import adam


def adam_step(
    weights: Tensor,
    gradient: Tensor,
    mean: Tensor,
    variance: Tensor,
    count: Tensor,
    lr: float,
    eps: float,
    skip: Tensor | None = None,
) -> None:
    """One step in place. mean, variance: moments, as long as weights. count: steps so far, a scalar tensor.

    skip: scalar float32 tensor; where it is 1 everything stays as it is, bit for bit.
    """
    adam(
        [weights],
        [gradient],
        [mean],
        [variance],
        [],
        [count],
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
