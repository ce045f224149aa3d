"""Layers, and the encoder that turns any observation into one vector per row. Weights come from a given generator."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d, max_pool2d

from border_cli.agents.batch_renorm import BatchRenorm
from border_cli.agents.config import NetworkConfig
from border_cli.agents.numpy_policy import Network, pool_windows
from border_cli.agents.own_encoder import own_encoder
from border_cli.core.errors import UsageError
from border_cli.core.spaces import Array, ObsLeaf, ObsSpec

_MAX_SCALED_RANGE = 255
"""Integer boxes with at most this range, such as colours, are scaled to [0, 1]; wider ones, as int64, are not."""


class Encoder(nn.Module):
    """Encodes an observation as one float32 vector per row.

    Images go through convolutions, discrete leaves are one-hot coded, and integer boxes of a small range are scaled to
    [0, 1]. Everything else is only flattened, or normalised by running statistics. A network of the user's own takes the
    place of all this.

    Attributes:
        features: length of the vector.
        normalizers: by the names of the leaves that are normalised.
        is_deep: whether parts of it are networks, which torch computes faster than numpy.
    """

    def __init__(self, spec: ObsSpec, config: NetworkConfig, generator: torch.Generator) -> None:
        super().__init__()
        self._names = [leaf.name for leaf in spec.leaves]
        self.own = own_encoder(spec, config, generator) if config.has_own_encoder else None
        leaves = spec.leaves if self.own is None else ()
        self.parts = nn.ModuleList(leaf_encoder(leaf, config, generator) for leaf in leaves)
        named = dict(zip(self._names, self.parts, strict=False))
        self.normalizers = {name: part for name, part in named.items() if isinstance(part, Normalizer)}
        self.is_deep = self.own is not None or any(isinstance(p, Convolutions | Impala) for p in self.parts)
        parts = self.parts if self.own is None else [self.own]
        self.features = sum(cast(int, part.features) for part in parts)

    def forward(self, obs: dict[str, Tensor]) -> Tensor:
        """{name: (B, ...)} → (B, features)."""
        if self.own is not None:
            return cast(Tensor, self.own({name: obs[name] for name in self._names}))
        parts = [part(obs[name]) for name, part in zip(self._names, self.parts, strict=True)]
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)

    def described(self) -> list[dict[str, Any]]:
        """The parts of the vector in order, as `numpy_policy.Network` reads them; `at` begins the names of their arrays."""
        named = enumerate(zip(self._names, cast(Sequence[Any], self.parts), strict=True))
        return [{"name": name, "at": f"encoder.parts.{i}", **part.description} for i, (name, part) in named]

    def statistics(self) -> list[Tensor]:
        """The statistics of all normalised leaves."""
        return [tensor for part in self.normalizers.values() for tensor in part.buffers()]

    def updated_statistics(self, obs: dict[str, Tensor], valid: Tensor | None = None) -> list[Tensor]:
        """What `statistics` is with one more batch. valid: which rows count; None: all."""
        return [t for name, part in self.normalizers.items() for t in part.updated(obs[name], valid)]


def leaf_encoder(
    leaf: ObsLeaf, config: NetworkConfig, generator: torch.Generator
) -> Flattened | Normalizer | Convolutions | Impala:
    """What encodes a leaf: {"as": ...} in its `description` says how, as `numpy_policy.Network` reads it."""
    if config.channels and is_image(leaf):
        return (Impala if config.encoder == "impala" else Convolutions)(leaf, config, generator)
    return Normalizer(leaf) if config.normalize_obs and is_normalizable(leaf) else Flattened(leaf)


def described(leaf: ObsLeaf, config: NetworkConfig) -> str:
    """What an `Encoder` makes of a leaf, in words."""
    how: dict[str, Any] = {"as": config.encoder}
    if not config.has_own_encoder:
        how = leaf_encoder(leaf, config, torch.Generator()).description
    columns = f" in {leaf.features} columns" if "categories" in how else ""
    low, span = how.get("low", 0.0), how.get("span", 1.0)
    scaled = "" if (low, span) == (0.0, 1.0) else f", scaled from {low:g} … {low + span:g} to 0 … 1"
    return f"{leaf.name} {leaf.shape} {leaf.dtype}: {how['as']}{columns}{scaled}"


def is_normalizable(leaf: ObsLeaf) -> bool:
    """Whether running statistics can normalise a leaf: a box of floats, or of integers too wide to be scaled; no image."""
    return leaf.kind == "box" and not leaf.categories and not is_image(leaf) and _small_range(leaf) is None


def _small_range(leaf: ObsLeaf) -> tuple[float, float] | None:
    """Least value and range of integers that are scaled to [0, 1]; None for other numbers."""
    if np.dtype(leaf.dtype).kind == "f" or leaf.low is None or leaf.high is None:
        return None
    span = leaf.high - leaf.low
    return (leaf.low, span or 1.0) if span <= _MAX_SCALED_RANGE else None


_MAX_NORMALIZED = 10.0
_MAX_BATCHES = 10_000
_MIN_VARIANCE = 1e-12
"""Added to each variance: a component that has been constant is 0, and ±10 as soon as it changes by more than 1e-5."""


class Normalizer(nn.Module):
    """Normalises one leaf by running statistics: (x - mean)/std per component, clipped to ±10.

    The statistics are buffers, a part of the model wherever that goes. The frames of a stack have the same ones, taken from
    the newest frame alone, because each frame is the newest of some row.

    Attributes:
        shape: frames, and n components of each.
        mean, std: (n,).
        count: (), number of batches so far, at most 10,000. Until then each batch has the same weight in the statistics;
            from then on a new batch has the weight 1/10,000, so that old ones fade.
    """

    def __init__(self, leaf: ObsLeaf) -> None:
        super().__init__()
        self.features, self.shape = leaf.features, (leaf.stack, leaf.features // leaf.stack)
        self.description = {
            "as": "normalised by running statistics",
            "stack": leaf.stack,
            "limit": _MAX_NORMALIZED,
        }
        self.mean: Tensor
        self.std: Tensor
        self.count: Tensor
        self.register_buffer("mean", torch.zeros(self.shape[1]))
        self.register_buffer("std", torch.ones(self.shape[1]))
        self.register_buffer("count", torch.zeros(()))

    def forward(self, value: Tensor) -> Tensor:
        """(B, *leaf.shape) → (B, leaf.features). What is not finite becomes NaN, so that the opt step is skipped."""
        x = value.reshape(value.shape[0], *self.shape).float()
        z = ((x - self.mean) / self.std).clamp(-_MAX_NORMALIZED, _MAX_NORMALIZED)
        return torch.add(z, x, alpha=0).flatten(1)  # plus 0·x, which is NaN for an infinite x

    def updated(self, value: Tensor, valid: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Mean, std and count with one more batch (B, *leaf.shape). valid: which rows count; None: all.

        With mean m, variance v and weight w of the new batch, and m', v' before (Chan et al., 1979):
        mean = (1 - w)·m' + w·m, variance = (1 - w)·v' + w·v + w·(1 - w)·(m - m')².
        """
        x = value.reshape(len(value), *self.shape)[:, -1].float()
        # Relative to the first row: in float32 the mean of large numbers that differ little loses the difference.
        x0, x = x[0], x - x[0]
        if valid is None:
            variance, mean = torch.var_mean(x, 0, correction=0)
        else:
            share = (valid.flatten() / valid.sum()).unsqueeze(1)
            mean = (share * x).sum(0)
            variance = (share * (x - mean).square()).sum(0)
        mean = mean + x0
        count = (self.count + 1.0).clamp(max=_MAX_BATCHES)
        weight = count.reciprocal()
        between = weight * (1.0 - weight) * (mean - self.mean).square()
        variance = self.std.square().lerp(variance + _MIN_VARIANCE, weight) + between
        return self.mean.lerp(mean, weight), variance.sqrt(), count


class Flattened(nn.Module):
    """A leaf as it is, one-hot coded, or scaled to [0, 1] where its integers have a small range.

    The ones of an image of n categories are 1/√n, so that their vector has length 1. With ones, an opt step changes the
    first layer's outputs by about n times the learning rate, and the values stay noisy.
    """

    def __init__(self, leaf: ObsLeaf) -> None:
        super().__init__()
        self.features = leaf.features
        self.description: dict[str, Any]
        if leaf.categories:
            is_image = leaf.kind == "box"
            axis, scale = (leaf.channel_axis, math.prod(leaf.shape) ** -0.5) if is_image else (None, 1.0)
            self.description = {
                "as": "one-hot coded",
                "categories": leaf.categories,
                "axis": axis,
                "scale": scale,
            }
        else:
            low, span = _small_range(leaf) or (0.0, 1.0)
            self.description = {"as": "flattened", "low": low, "span": span}

    def forward(self, value: Tensor) -> Tensor:
        how, flat = self.description, value.reshape(value.shape[0], -1)
        if how["as"] == "flattened":
            is_scaled = (how["low"], how["span"]) != (0.0, 1.0)
            return (flat.float() - how["low"]) / how["span"] if is_scaled else flat.float()
        # By comparison, because torch's one_hot reads values, so it cannot be compiled. It codes other values as zeros.
        coded = flat if how["axis"] is None else value.movedim(how["axis"] % value.ndim, value.ndim - 1)
        sizes = enumerate(how["categories"])
        hot = [coded[..., i, None] == torch.arange(n, device=value.device) for i, n in sizes]
        return torch.cat(hot, dim=-1).flatten(1).float().mul(how["scale"])


def layer_list(
    network: nn.Module, layers: Iterable[nn.Module], relu_at_end: bool = False
) -> list[dict[str, Any]]:
    """Layers of a network as `numpy_policy.Network` reads them. ReLU follows each linear one but the last, or that too."""
    names, entries = {module: name for name, module in network.named_modules()}, list[dict[str, Any]]()
    for layer in layers:
        entry = {"kind": layer.kind, "at": names[layer], "relu": isinstance(layer, Linear)}
        entries.append(entry | ({"eps": layer.eps} if isinstance(layer, BatchRenorm) else {}))
    if entries:
        entries[-1]["relu"] &= relu_at_end
    return entries


def numpy_network(network: Any) -> Network | None:
    """The network as numpy computes it, with its parameters in place; None where torch is faster, or they are on a GPU."""
    if not hasattr(network, "described") or network.encoder.is_deep:
        return None
    description, arrays = network.described(), arrays_of(network)
    return None if arrays is None or "levels" in description else Network(description, arrays)


def arrays_of(network: nn.Module) -> dict[str, Array] | None:
    """Parameters and buffers as arrays that share their memory; None if they are not in the main memory."""
    tensors = dict((*network.named_parameters(), *network.named_buffers()))
    if any(tensor.device.type != "cpu" for tensor in tensors.values()):
        return None
    return {name: tensor.detach().numpy() for name, tensor in tensors.items()}


def in_float32(function: Callable[..., Tensor], *tensors: Tensor) -> Tensor:
    """function(*tensors) in float32, also where `FlatParams.bind` has lowered the precision."""
    device = tensors[0].device.type
    if not torch.is_autocast_enabled(device):
        return function(*tensors)
    with torch.autocast(device, enabled=False):
        return function(*(tensor.float() for tensor in tensors))


@torch.no_grad()
def _draw(layer: nn.Module, bound: float, generator: torch.Generator) -> None:
    """Draw all parameters of a layer uniformly in ±bound."""
    for parameter in layer.parameters():
        parameter.uniform_(-bound, bound, generator=generator)


class Linear(nn.Linear):
    """A linear layer with torch's initialisation, uniform in ±1/√inputs, from the given generator."""

    kind = "linear"

    def __init__(self, n_in: int, n_out: int, generator: torch.Generator) -> None:
        super().__init__(n_in, n_out)
        _draw(self, n_in**-0.5 if n_in else 0.0, generator)

    def reset_parameters(self) -> None:
        """Do nothing: torch would draw from its global generator here.

        `nn.utils.skip_init` would do, but imports torch's symbolic shapes, which takes half a second in each actor.
        """


class NoisyLinear(Linear):
    """A linear layer with factorised Gaussian noise on its weights (Fortunato et al., 2018).

    The weights are μ + σ·(ε_out ⊗ ε_in) with learned μ and σ; σ is initially std/√inputs. noise_size: length of its noise.
    """

    kind = "noisy"

    def __init__(self, n_in: int, n_out: int, generator: torch.Generator, std: float) -> None:
        super().__init__(n_in, n_out, generator)
        self.noise_size = n_in + n_out
        self.weight_std = nn.Parameter(torch.full((n_out, n_in), std * n_in**-0.5))
        self.bias_std = nn.Parameter(torch.full((n_out,), std * n_in**-0.5))

    def forward(self, x: Tensor, noise: Tensor | None = None) -> Tensor:
        """(..., n_in) → (..., n_out). noise: (noise_size,) from `scaled_noise`; None: the mean weights μ."""
        if noise is None:
            return nn.functional.linear(x, self.weight, self.bias)
        n_in = self.in_features
        of_inputs, of_outputs = noise[:n_in], noise[n_in:]
        weight = torch.addcmul(self.weight, self.weight_std, torch.outer(of_outputs, of_inputs))
        return nn.functional.linear(x, weight, torch.addcmul(self.bias, self.bias_std, of_outputs))


def scaled_noise(normal: Tensor) -> Tensor:
    """f(x) = sgn(x)·√|x| of standard normal numbers: the factors ε of factorised noise."""
    return normal.sign() * normal.abs().sqrt()


_MIN_SIDE = 5
_LARGE = 36
"""Images whose shorter side is at least this get the kernels of Atari's network (Mnih et al., 2015)."""
_ATARI = ((8, 4, 0), (4, 2, 0), (3, 1, 0))
"""Kernel, stride and padding of its layers."""


def is_image(leaf: ObsLeaf) -> bool:
    """Whether a leaf is an image: three dimensions, or a stack of images, with the bounds of a colour.

    A grid of categories is none: flattened, its opt steps take a quarter of the time that convolutions take.
    """
    if leaf.kind not in ("box", "multi_binary") or leaf.low is None or leaf.high is None or leaf.categories:
        return False
    if not (len(leaf.shape) == 3 or (len(leaf.shape) == 4 and leaf.stack > 1)):
        return False
    return 0 <= leaf.low < leaf.high <= 255 and min(image_shape(leaf)[:2]) >= _MIN_SIDE


def image_shape(leaf: ObsLeaf) -> tuple[int, int, int]:
    """Height, width, channels of an image; the frames of a stack are channels.

    Of one frame, the smaller of the first and the last dimension is the channels; if they are equal, the last.
    """
    if len(leaf.shape) == 3 and leaf.stack > 1:
        return leaf.shape[1], leaf.shape[2], leaf.stack
    first, middle, last = leaf.shape[-3:]
    frames = leaf.stack if len(leaf.shape) == 4 else 1
    return (middle, last, first * frames) if leaf.channel_axis == -3 else (first, middle, last * frames)


def channels_first(leaf: ObsLeaf, value: Tensor) -> Tensor:
    """(B, *leaf.shape) → (B, channels, height, width)."""
    if len(leaf.shape) == 3 and leaf.stack > 1:
        return value
    value = value.movedim(leaf.channel_axis % value.ndim, value.ndim - 3)  # ONNX knows no negative axes
    return value.flatten(1, 2) if len(leaf.shape) == 4 else value


class Convolutions(nn.Module):
    """ReLU convolutions of one image leaf, flattened. features: length of the result.

    If no kernels are typed, large images get the kernels and strides of Atari's network. Small ones get kernels of 3 that
    keep the size; from the second layer on, strides of 2 halve it while the shorter side is longer than 4.
    """

    def __init__(self, leaf: ObsLeaf, config: NetworkConfig, generator: torch.Generator) -> None:
        super().__init__()
        self.leaf = leaf
        height, width, n_in = image_shape(leaf)
        channels, windows = config.channels, list(zip(config.kernels, config.strides, strict=True))
        is_large = min(height, width) >= _LARGE
        layers = list[_Convolution]()
        for i, (before, after) in enumerate(pairwise([n_in, *channels])):
            if windows:
                (kernel, stride), padding = windows[i], 0
            elif is_large and i < len(_ATARI):
                kernel, stride, padding = _ATARI[i]
            else:
                kernel, stride, padding = 3, 2 if i > 0 and min(height, width) > 4 else 1, 1
            layers.append(_Convolution(before, after, kernel, stride, padding, generator))
            height, width = ((side + 2 * padding - kernel) // stride + 1 for side in (height, width))
            if min(height, width) < 1:
                raise UsageError(
                    f"agent.kernels: the kernel of convolution {i + 1}, {kernel} pixels, is larger than its input",
                    allowed="smaller kernels, smaller strides or fewer convolutions",
                )
        self.layers = nn.ModuleList(layers)
        self.features = height * width * ([n_in, *channels][-1])
        sizes = [(layer.kernel_size[0], layer.stride[0], int(layer.padding[0])) for layer in layers]
        self.description = _image(leaf) | {"layers": sizes}

    def forward(self, value: Tensor) -> Tensor:
        """(B, *leaf.shape) → (B, features)."""
        x, scale = _shifted(self.leaf, value)
        for layer in cast(Sequence[_Convolution], self.layers):
            x = layer(x, scale).relu_()
            scale = 1.0
        return x.flatten(1)


def _image(leaf: ObsLeaf) -> dict[str, Any]:
    """How an image is prepared for convolutions."""
    assert leaf.low is not None and leaf.high is not None
    order = "stack" if len(leaf.shape) == 3 and leaf.stack > 1 else "axis"
    how = {"as": "convolutions", "channels": order, "axis": leaf.channel_axis}
    return how | {"low": leaf.low, "span": leaf.high - leaf.low}


def _shifted(leaf: ObsLeaf, value: Tensor) -> tuple[Tensor, float]:
    """(B, *leaf.shape) → (B, channels, height, width) from 0 on, and what scales it to 1."""
    assert leaf.low is not None and leaf.high is not None
    x = channels_first(leaf, value).float()
    return x - leaf.low if leaf.low else x, 1.0 / (leaf.high - leaf.low)


class _Convolution(nn.Conv2d):
    """A convolution of its input times `scale`, initialised as `Linear`."""

    def __init__(
        self, n_in: int, n_out: int, kernel: int, stride: int, padding: int, generator: torch.Generator
    ) -> None:
        super().__init__(n_in, n_out, kernel, stride, padding)
        _draw(self, math.sqrt(1.0 / (n_in * kernel * kernel)), generator)

    def forward(self, x: Tensor, scale: float = 1.0) -> Tensor:
        """Scales the weights instead of the images, which have a hundred times as many numbers."""
        weight = self.weight if scale == 1.0 else self.weight * scale
        return conv2d(x, weight, self.bias, self.stride, self.padding)

    reset_parameters = Linear.reset_parameters


class Impala(nn.Module):
    """The residual network of Espeholt et al. (2018) for one image leaf, a stage for each of the `channels`.

    As in BTR (Clark et al., 2025), adaptive max pooling leaves at most 6×6 numbers per channel. features: their number.
    """

    def __init__(self, leaf: ObsLeaf, config: NetworkConfig, generator: torch.Generator) -> None:
        super().__init__()
        self.leaf = leaf
        *sides, n_in = image_shape(leaf)
        sizes, norm = [n_in, *config.channels], config.spectral_norm
        self.stages = nn.ModuleList(_Stage(*pair, norm, generator) for pair in pairwise(sizes))
        self._windows = [pool_windows(math.ceil(side / 2 ** len(self.stages))) for side in sides]
        self.features = sizes[-1] * math.prod(map(len, self._windows))
        self.description = _image(leaf) | {"stages": len(self.stages), "spectral_norm": norm}

    def forward(self, value: Tensor) -> Tensor:
        """(B, *leaf.shape) → (B, features)."""
        x, scale = _shifted(self.leaf, value)
        x = x.contiguous(memory_format=torch.channels_last)
        for stage in self.stages:
            x = stage(x, scale)
            scale = 1.0
        # Not torch's adaptive pooling, which ONNX lacks, and whose gradient on a GPU does not repeat its bits.
        for dim, windows in enumerate(self._windows, start=2):
            x = torch.stack([x.narrow(dim, start, end - start).amax(dim) for start, end in windows], dim)
        return torch.relu(x).flatten(1)


class _Stage(nn.Module):
    """A convolution, max pooling that halves the image, and two residual blocks of two convolutions each.

    weight: (4, n, n, 3, 3) of the blocks' convolutions in order, divided by its norms if `spectral_norm` · bias: (4, n).
    """

    def __init__(self, n_in: int, n_out: int, spectral_norm: bool, generator: torch.Generator) -> None:
        super().__init__()
        self.convolution = _Convolution(n_in, n_out, 3, 1, 1, generator)
        bound, n = (9 * n_out) ** -0.5, n_out
        self.weight = nn.Parameter(torch.empty(4, n, n, 3, 3).uniform_(-bound, bound, generator=generator))
        self.bias = nn.Parameter(torch.empty(4, n).uniform_(-bound, bound, generator=generator))
        self._spectral_norm = spectral_norm

    def forward(self, x: Tensor, scale: float) -> Tensor:
        """(B, n_in, height, width) times `scale` → (B, n, height/2, width/2), rounded up."""
        weight: Tensor = self.weight
        if self._spectral_norm:
            weight = weight / in_float32(spectral_norms, weight).view(-1, 1, 1, 1, 1)
        x = max_pool2d(self.convolution(x, scale), 3, 2, 1)
        for i in (0, 2):
            y = conv2d(torch.relu(x), weight[i], self.bias[i], padding=1)
            x = x + conv2d(torch.relu(y), weight[i + 1], self.bias[i + 1], padding=1)
        return x


def spectral_norms(weights: Tensor) -> Tensor:
    """(m, n_out, ...) → (m,) largest singular values of the matrices W (n_out, ·), with gradients (Miyato et al., 2018).

    (W·Wᵀ)^1024, scaled to trace 1, is nearly u·uᵀ for the first left singular vector u, and σ² = uᵀ·W·Wᵀ·u. Unlike a power
    iteration that goes on over opt steps, this needs no state.
    """
    w = weights.flatten(2)
    with torch.no_grad():
        power = w @ w.transpose(1, 2)
        for _ in range(10):
            power = power / power.norm(dim=(1, 2), keepdim=True)
            power = power @ power  # its trace is the squared norm, 1
    return (w * (power @ w)).sum((1, 2)).sqrt()
