"""Observations to network input: one-hot coding, scaling by the space's bounds, flattening. No parameters."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from border_cli.core.spaces import Obs, ObsLeaf, ObsSpec

_SCALED_RANGE = 255


class VectorEncoder(nn.Module):
    """Any observation as one float32 vector per row, of length spec.features.

    Integer boxes whose range is at most 255 are scaled to [0, 1]; others and real-valued ones are left as they are.
    """

    def __init__(self, spec: ObsSpec) -> None:
        super().__init__()
        self._leaves = spec.leaves

    def forward(self, obs: dict[str, Tensor]) -> Tensor:
        """{name: (B, ...)} → (B, features)."""
        parts = [_encode(leaf, obs[leaf.name]) for leaf in self._leaves]
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)


def _encode(leaf: ObsLeaf, value: Tensor) -> Tensor:
    rows = value.shape[0]
    if leaf.categories:
        columns = value.reshape(rows, -1)
        hot = [nn.functional.one_hot(columns[:, i], n) for i, n in enumerate(leaf.categories)]
        return torch.cat(hot, dim=1).float()
    flat = value.reshape(rows, -1).float()
    if value.is_floating_point() or leaf.low is None or leaf.high is None:
        return flat
    if not 0 < leaf.high - leaf.low <= _SCALED_RANGE:  # such as int64 without bounds: all would become 0.5
        return flat
    return (flat - leaf.low) / (leaf.high - leaf.low)


def to_tensors(obs: Obs, device: torch.device) -> dict[str, Tensor]:
    """Arrays to tensors; on the CPU they share memory."""
    return {name: torch.from_numpy(rows).to(device) for name, rows in obs.items()}
