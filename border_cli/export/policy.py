"""A policy as a torch module of plain tensors, from what an environment gives to what it takes."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from border_cli.agents.agent import NetworkPolicy
from border_cli.core.errors import UsageError
from border_cli.core.protocols import ActingPolicy
from border_cli.core.spaces import ActionSpec, Array, EnvSpec, ObsLeaf


class ExportedPolicy(nn.Module):
    """The greedy action for each row of a batch.

    Args:
        policy: one that implements `NetworkPolicy.decide`. Others raise UsageError.
    """

    def __init__(self, policy: ActingPolicy, spec: EnvSpec) -> None:
        super().__init__()
        if not isinstance(policy, NetworkPolicy) or not _decides(type(policy)):
            raise UsageError(
                "the agent of this model cannot be exported",
                allowed="border-cli's own agents, and those with `decide`",
            )
        self.network = policy.network
        self._policy = policy
        self._leaves = spec.obs.leaves
        self._action = spec.action
        self._bounds = [torch.from_numpy(bound) for bound in inner_bounds(spec.action)]

    def forward(self, *parts: Tensor) -> Tensor:
        """(B, ...) for each leaf of the observation, as the environment gives it → (B, ...) actions as it takes them."""
        obs = {leaf.name: _from_zero(leaf, part) for leaf, part in zip(self._leaves, parts, strict=True)}
        decided = self._policy.decide(obs)
        dtype = getattr(torch, self._action.dtype)
        if self._action.kind == "discrete":
            return (decided + self._action.start).to(dtype)
        action = torch.clamp(decided, *self._bounds).reshape(-1, *self._action.shape)
        return (action if dtype.is_floating_point else action.round()).to(dtype)


def _decides(kind: type[NetworkPolicy]) -> bool:
    """Whether `decide` is what the policy does: no subclass of the class that defines it has its own way of acting."""
    owner = next(one for one in kind.__mro__ if "decide" in vars(one))
    derived = kind.__mro__[: kind.__mro__.index(owner)]
    ways = ("sample", "_exploit", "action_values", "begin_episode")
    return owner is not NetworkPolicy and not any(name in vars(one) for one in derived for name in ways)


def inner_bounds(action: ActionSpec) -> tuple[Array, Array]:
    """(d,) float32 bounds of an action that lie in its space, though a float64 bound may lie between two of float32."""
    low, high = np.asarray(action.low, np.float64), np.asarray(action.high, np.float64)
    inner_low, inner_high = low.astype(np.float32), high.astype(np.float32)
    inner_low = np.where(inner_low < low, np.nextafter(inner_low, np.float32(np.inf)), inner_low)
    inner_high = np.where(inner_high > high, np.nextafter(inner_high, np.float32(-np.inf)), inner_high)
    return inner_low, inner_high


def _from_zero(leaf: ObsLeaf, value: Tensor) -> Tensor:
    return value - torch.tensor(leaf.start).reshape(leaf.shape) if leaf.start else value


def example(spec: EnvSpec) -> tuple[Tensor, ...]:
    """A batch of two observations: a tensor for each part."""
    parts = []
    for leaf in spec.obs.leaves:
        fill: Any = 1 if leaf.name == spec.mask else 0
        value = torch.full((2, *leaf.shape), fill, dtype=getattr(torch, leaf.dtype))
        if leaf.start:
            value = value + torch.tensor(leaf.start).reshape(leaf.shape)
        parts.append(value)
    return tuple(parts)
