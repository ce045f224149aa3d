"""Layers whose first weights come from a generator of ours, and whose noise is given to them."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Linear(nn.Linear):
    """A linear layer, uniform in ±1/sqrt(inputs) at first, torch's own choice."""

    def __init__(self, n_in: int, n_out: int, generator: torch.Generator) -> None:
        super().__init__(n_in, n_out)
        bound = n_in**-0.5 if n_in else 0.0
        with torch.no_grad():
            self.weight.uniform_(-bound, bound, generator=generator)
            self.bias.uniform_(-bound, bound, generator=generator)

    def reset_parameters(self) -> None:
        """Nothing, as torch would draw from its global generator here.

        `nn.utils.skip_init` would do the same, but loads torch's symbolic shapes, in each actor: half a second.
        """


class NoisyLinear(Linear):
    """A linear layer with factorised Gaussian noise on its weights (Fortunato et al., 2018).

    std: σ_0; the noise begins with the standard deviation σ_0/sqrt(inputs). noise_size: numbers that it takes.
    """

    def __init__(self, n_in: int, n_out: int, generator: torch.Generator, std: float) -> None:
        super().__init__(n_in, n_out, generator)
        self.noise_size = n_in + n_out
        self.weight_std = nn.Parameter(torch.full((n_out, n_in), std * n_in**-0.5))
        self.bias_std = nn.Parameter(torch.full((n_out,), std * n_in**-0.5))

    def forward(self, x: Tensor, noise: Tensor | None = None) -> Tensor:
        """(..., n_in) → (..., n_out). noise: (noise_size,) of `scaled_noise`; without it the mean weights count."""
        if noise is None:
            return nn.functional.linear(x, self.weight, self.bias)
        n_in = self.in_features
        of_inputs, of_outputs = noise[:n_in], noise[n_in:]
        weight = torch.addcmul(self.weight, self.weight_std, torch.outer(of_outputs, of_inputs))
        return nn.functional.linear(x, weight, torch.addcmul(self.bias, self.bias_std, of_outputs))


def scaled_noise(normal: Tensor) -> Tensor:
    """sgn(x)·sqrt(|x|) of standard normal numbers: factors whose products have variance 1 · (2/π)."""
    return normal.sign() * normal.abs().sqrt()
