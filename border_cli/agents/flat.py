"""The weights of a network as one vector, with the network's own names for its parts.

One vector makes an optimiser step, a norm, a target update and a snapshot one operation each, and it is the whole
state of the network: what is saved, synced and updated cannot leave a layer out.
"""

from __future__ import annotations

import copy
import math

import torch
from torch import Tensor, nn


class FlatModule:
    """A kind of network, and how the parameters of one lie in a vector of `size` float32."""

    def __init__(self, module: nn.Module) -> None:
        if any(True for _ in module.buffers()):
            raise ValueError("a network with buffers keeps state outside its parameters")
        parameters = dict(module.named_parameters())
        self.names = list(parameters)
        self.shapes = [tuple(p.shape) for p in parameters.values()]
        self._sizes = [math.prod(shape) for shape in self.shapes]
        self.size = sum(self._sizes)
        self._module = module

    def initial(self) -> Tensor:
        """The module's own initial weights, as a new vector."""
        return torch.cat([p.detach().reshape(-1) for p in self._module.parameters()])

    def views(self, vector: Tensor) -> dict[str, Tensor]:
        """Named parts of the vector: views into it."""
        parts = vector.split(self._sizes)
        return {n: p.view(s) for n, p, s in zip(self.names, parts, self.shapes, strict=True)}

    def over(self, vector: Tensor) -> nn.Module:
        """A network that works with the vector as it is at each call: its parameters are views into it.

        The parameters are leaves that require gradients; `flat_gradient` gives those as one vector.
        """
        module = copy.deepcopy(self._module)
        for name, part in self.views(vector.detach()).items():
            owner, _, own_name = name.rpartition(".")
            setattr(module.get_submodule(owner), own_name, nn.Parameter(part))
        return module


def flat_gradient(loss: Tensor, parameters: tuple[nn.Parameter, ...]) -> Tensor:
    """Gradient of a scalar with respect to the parameters of a network of `FlatModule.over`, as one vector."""
    return torch.cat([g.reshape(-1) for g in torch.autograd.grad(loss, parameters)])
