"""The weights of a network as one vector, with the network's own names for its parts.

One vector makes an optimiser step, a norm, a target update and a snapshot one operation each, and it is the whole
state of the network: what is saved, synced and updated cannot leave a layer out.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.func import functional_call


class FlatModule:
    """A module called functionally with its parameters taken from a vector of `size` float32."""

    def __init__(self, module: nn.Module) -> None:
        if any(True for _ in module.buffers()):
            raise ValueError("a network with buffers keeps state outside its parameters")
        parameters = dict(module.named_parameters())
        self.names = list(parameters)
        self.shapes = [tuple(p.shape) for p in parameters.values()]
        self._sizes = [math.prod(shape) for shape in self.shapes]
        self.size = sum(self._sizes)
        self._module = module.requires_grad_(False)

    def initial(self) -> Tensor:
        """The module's own initial weights, as a new vector."""
        return torch.cat([p.detach().reshape(-1) for p in self._module.parameters()])

    def views(self, vector: Tensor) -> dict[str, Tensor]:
        """Named parts of the vector: views into it, through which gradients flow back."""
        parts = vector.split(self._sizes)
        return {n: p.view(s) for n, p, s in zip(self.names, parts, self.shapes, strict=True)}

    def __call__(self, vector: Tensor, *inputs: object) -> Tensor:
        """The module's output with these weights."""
        out: Tensor = functional_call(self._module, self.views(vector), inputs)
        return out
