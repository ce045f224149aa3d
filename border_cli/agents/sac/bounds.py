"""Actions within bounds: from numbers without any to a box and back, and what that does to probabilities."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from border_cli.core.spaces import ActionSpec

_LOG_2 = math.log(2.0)


class Bounds:
    """Of d components: middle + half_range·x for x in [-1, 1]. log_volume: sum of the logarithms of the half ranges ·
    freedom: components that can be chosen.

    A component whose bounds are equal has half range 0: it is what it is, and has no part in probabilities.
    """

    def __init__(self, spec: ActionSpec) -> None:
        low, high = (np.array(b, np.float64) for b in (spec.low, spec.high))
        half = high / 2 - low / 2  # their difference may be more than there are numbers for
        self.size = len(low)
        self.freedom = int(np.count_nonzero(half))
        self.middle = torch.tensor(low / 2 + high / 2, dtype=torch.float32)
        self.half_range = torch.tensor(half, dtype=torch.float32)
        self.log_volume = float(np.log(half[half > 0]).sum())
        self._is_free = (self.half_range > 0).float()
        self._divisor = torch.where(self.half_range > 0, self.half_range, 1.0)

    def to(self, device: torch.device) -> Bounds:
        """The same on a device; without any work where it is there already."""
        if self.middle.device == device:
            return self
        for name in ("middle", "half_range", "_is_free", "_divisor"):
            setattr(self, name, getattr(self, name).to(device))
        return self

    def scaled(self, x: Tensor) -> Tensor:
        """(..., d) in [-1, 1] → actions."""
        return self.middle + self.half_range * x

    def unscaled(self, action: Tensor) -> Tensor:
        """The inverse of `scaled`."""
        return (action - self.middle) / self._divisor

    def squashed(self, u: Tensor) -> Tensor:
        """(..., d) without bounds → actions, by tanh."""
        return self.scaled(torch.tanh(u))

    def log_prob(self, u: Tensor, mean: Tensor, std: Tensor) -> Tensor:
        """(..., d) → (...): log-density, per unit of the box, of the action that u is squashed to, with u ~ N(mean, std²).

        Exact (Haarnoja et al., 2018, appendix C): the normal density over the derivative half_range·(1 - tanh²(u)),
        of which the logarithm is taken in a form that does not overflow.
        """
        z = (u - mean) / std
        normal = -0.5 * z * z - std.log() - 0.5 * math.log(2 * math.pi)
        derivative = 2.0 * (_LOG_2 - u - torch.nn.functional.softplus(-2.0 * u))
        return ((normal - derivative) * self._is_free).sum(-1) - self.log_volume
