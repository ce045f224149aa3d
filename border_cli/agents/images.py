"""Convolutions for images of any size and order of channels: Atari's (Mnih et al., 2015), and smaller ones."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from border_cli.core.spaces import ObsLeaf

_LEAST_SIDE = 5
_LARGE = 36
"""From this side on the kernels of the first layers are those of Atari."""
_ATARI = ((8, 4, 0), (4, 2, 0), (3, 1, 0))
"""Side of the kernel, stride, padding of the first layers."""
_ONE_BYTE = 255


def is_image(leaf: ObsLeaf) -> bool:
    """Whether convolutions make sense: three dimensions, two of them sides, of numbers with the bounds of a colour."""
    if leaf.kind not in ("box", "multi_binary") or len(leaf.shape) not in (3, 4):
        return False
    if len(leaf.shape) == 4 and leaf.stack == 1:
        return False
    bounded = leaf.low is not None and leaf.high is not None and 0 <= leaf.low < leaf.high <= _ONE_BYTE
    height, width, _ = image_shape(leaf)
    return bounded and min(height, width) >= _LEAST_SIDE


def image_shape(leaf: ObsLeaf) -> tuple[int, int, int]:
    """Height, width, channels; frames of a stack are channels."""
    if len(leaf.shape) == 4:
        height, width, channels = _sides(leaf.shape[1:])
        return height, width, channels * leaf.stack
    if leaf.stack > 1:
        return leaf.shape[1], leaf.shape[2], leaf.stack
    return _sides(leaf.shape)


def _sides(shape: Sequence[int]) -> tuple[int, int, int]:
    """The channels are the first or the last dimension, whichever is smaller; the last where they are equal."""
    first, middle, last = shape
    return (middle, last, first) if first < last else (first, middle, last)


def channels_first(leaf: ObsLeaf, value: Tensor) -> Tensor:
    """(B, *leaf.shape) → (B, channels, height, width)."""
    if len(leaf.shape) == 3 and leaf.stack > 1:
        return value
    shape = leaf.shape[-3:]
    if not shape[0] < shape[2]:
        value = value.movedim(-1, -3)
    return value.flatten(1, 2) if len(leaf.shape) == 4 else value


class Convolutions(nn.Module):
    """ReLU convolutions of one leaf, flattened. features: how many numbers come out.

    channels: of each layer. Large images get the kernels and strides of Atari's network; small ones kernels of 3 that
    keep the sides, which from the second layer on are halved as long as they are longer than 4.
    """

    def __init__(self, leaf: ObsLeaf, channels: Sequence[int], generator: torch.Generator) -> None:
        super().__init__()
        self._leaf = leaf
        height, width, n_in = image_shape(leaf)
        layers = []
        for i, (before, after) in enumerate(pairwise([n_in, *channels])):
            kernel, stride, padding = _geometry(i, min(height, width), min(image_shape(leaf)[:2]) >= _LARGE)
            layers.append(_Convolution(before, after, kernel, stride, padding, generator))
            height, width = ((side + 2 * padding - kernel) // stride + 1 for side in (height, width))
        self.layers = nn.ModuleList(layers)
        self.features = height * width * ([n_in, *channels][-1])

    def forward(self, value: Tensor) -> Tensor:
        """(B, *leaf.shape) → (B, features)."""
        leaf = self._leaf
        assert leaf.low is not None and leaf.high is not None
        x = (channels_first(leaf, value).float() - leaf.low) * (1.0 / (leaf.high - leaf.low))
        for layer in self.layers:
            x = torch.relu(layer(x))
        return x.flatten(1)


def _geometry(layer: int, side: int, is_large: bool) -> tuple[int, int, int]:
    """Side of the kernel, stride and padding of one layer, for images that have this shorter side before it."""
    if is_large and layer < len(_ATARI):
        return _ATARI[layer]
    return 3, 2 if layer > 0 and side > 4 else 1, 1


class _Convolution(nn.Conv2d):
    """Uniform in ±1/sqrt(inputs) at first, from our generator."""

    def __init__(
        self, n_in: int, n_out: int, kernel: int, stride: int, padding: int, generator: torch.Generator
    ) -> None:
        super().__init__(n_in, n_out, kernel, stride, padding)
        bound = math.sqrt(1.0 / (n_in * kernel * kernel))
        with torch.no_grad():
            self.weight.uniform_(-bound, bound, generator=generator)
            assert self.bias is not None
            self.bias.uniform_(-bound, bound, generator=generator)

    def reset_parameters(self) -> None:
        """Nothing, as torch would draw from its global generator here."""
