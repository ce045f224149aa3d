"""Observations to network input: convolutions, one-hot coding, scaling by the space's bounds, flattening."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn

from border_cli.agents.images import Convolutions, is_image
from border_cli.core.spaces import Obs, ObsLeaf, ObsSpec

_SCALED_RANGE = 255


class Encoder(nn.Module):
    """Any observation as one float32 vector per row. features: its length · has_images: whether convolutions have a part.

    Images go through convolutions (see `images.py`). Other integer boxes whose range is at most 255 are scaled to [0, 1];
    what is left, real-valued ones too, is flattened as it is.
    """

    def __init__(self, spec: ObsSpec, channels: Sequence[int], generator: torch.Generator) -> None:
        super().__init__()
        self._images = [leaf for leaf in spec.leaves if channels and is_image(leaf)]
        self._vectors = [leaf for leaf in spec.leaves if leaf not in self._images]
        self.convolutions = nn.ModuleList(Convolutions(leaf, channels, generator) for leaf in self._images)
        self.has_images = bool(self._images)
        self.features = sum(leaf.features for leaf in self._vectors) + sum(
            cast(Convolutions, part).features for part in self.convolutions
        )

    def forward(self, obs: dict[str, Tensor]) -> Tensor:
        """{name: (B, ...)} → (B, features)."""
        parts = [_encode(leaf, obs[leaf.name]) for leaf in self._vectors]
        parts += [part(obs[leaf.name]) for leaf, part in zip(self._images, self.convolutions, strict=True)]
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
