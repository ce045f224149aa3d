"""A policy as a torch module of plain tensors, from what an environment gives to what it takes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from border_cli.agents.agent import NetworkPolicy
from border_cli.core.errors import UsageError
from border_cli.core.protocols import ActingPolicy
from border_cli.core.spaces import EnvSpec, ObsLeaf


class ExportedPolicy(nn.Module):
    """The greedy action for each row of a batch.

    Args:
        policy: one that implements `NetworkPolicy.decide`. Others raise UsageError.
    """

    def __init__(self, policy: ActingPolicy, spec: EnvSpec) -> None:
        super().__init__()
        if not isinstance(policy, NetworkPolicy) or type(policy).decide is NetworkPolicy.decide:
            raise UsageError(
                "the agent of this model cannot be exported\nallowed: border-cli's own agents, and those with `decide`"
            )
        self.network = policy.network
        self._policy = policy
        self._leaves = spec.obs.leaves
        self._action = spec.action
        self._bounds = [
            torch.tensor(bound, dtype=torch.float32) for bound in (spec.action.low, spec.action.high)
        ]

    def forward(self, *parts: Tensor) -> Tensor:
        """(B, ...) for each leaf of the observation, as the environment gives it → (B, ...) actions as it takes them."""
        obs = {leaf.name: _from_zero(leaf, part) for leaf, part in zip(self._leaves, parts, strict=True)}
        decided = self._policy.decide(obs)
        if self._action.kind == "discrete":
            return decided + self._action.start
        return torch.clamp(decided, *self._bounds).reshape(-1, *self._action.shape)


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
