"""Images of any size and channel order, and their preparation for the network."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import adaptive_max_pool2d, conv2d, max_pool2d, relu

from border_cli.agents.config import NetworkConfig
from border_cli.agents.nets import (
    Convolutions,
    Encoder,
    Impala,
    channels_first,
    described,
    image_shape,
    is_image,
    spectral_norms,
)
from border_cli.core.errors import UsageError
from border_cli.core.spaces import ObsLeaf, ObsSpec
from tests.exported import spec_of
from tests.kinds import AGENTS
from tests.learners import encoded_by_numpy


def leaf(shape: tuple[int, ...], stack: int = 1, high: float | None = 255.0, dtype: str = "uint8") -> ObsLeaf:
    return ObsLeaf("obs", (), "box", shape, dtype, 0.0, high, stack=stack)


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


@pytest.mark.parametrize(
    ("image", "expected"),
    [
        (leaf((3, 64, 48)), (64, 48, 3)),
        (leaf((4, 60, 80, 3), stack=4), (60, 80, 12)),
        (leaf((4, 3, 60, 80), stack=4), (60, 80, 12)),
        (leaf((7, 7, 7)), (7, 7, 7)),
    ],
)
def test_the_order_of_channels_is_detected(image: ObsLeaf, expected: tuple[int, int, int]) -> None:
    assert is_image(image)
    assert image_shape(image) == expected
    height, width, channels = expected
    assert channels_first(image, torch.zeros(2, *image.shape)).shape == (2, channels, height, width)


@pytest.mark.parametrize(
    ("image", "channels"),
    [
        (leaf((4, 8), stack=4), [8]),
        (leaf((3, 4, 40)), [8]),  # one side is too short for an image
        (leaf((84, 84, 3), high=None, dtype="float32"), [8]),
        (leaf((2, 84, 84, 3)), [8]),
        (replace(leaf((7, 7, 3)), categories=(1, 1, 1)), [8]),
        (leaf((10, 10, 2)), []),  # without `channels` an image gets no convolutions
    ],
)
def test_everything_else_is_flattened(image: ObsLeaf, channels: list[int]) -> None:
    assert is_image(image) == (not channels)
    encoder = Encoder(ObsSpec((image,)), NetworkConfig(channels=channels), generator())
    assert not encoder.is_deep
    assert encoder.features == np.prod(image.shape)


@pytest.mark.parametrize(
    ("image", "normalize", "expected"),
    [
        (leaf((84, 84, 3)), False, "obs (84, 84, 3) uint8: convolutions, scaled from 0 … 255 to 0 … 1"),
        (leaf((7,), high=9.0), False, "obs (7,) uint8: flattened, scaled from 0 … 9 to 0 … 1"),
        (leaf((7,), high=None, dtype="float32"), True, "obs (7,) float32: normalised by running statistics"),
        (
            replace(leaf((7, 7, 1)), categories=(3,)),
            True,
            "obs (7, 7, 1) uint8: one-hot coded in 147 columns",
        ),
    ],
)
def test_what_becomes_of_a_part_is_said_in_words(image: ObsLeaf, normalize: bool, expected: str) -> None:
    assert described(image, NetworkConfig(channels=[8], normalize_obs=normalize)) == expected


def test_channels_are_not_mixed() -> None:
    value = torch.arange(2 * 6 * 5 * 3).reshape(2, 6, 5, 3)
    assert (channels_first(leaf((6, 5, 3)), value)[1, 2] == value[1, :, :, 2]).all()
    stacked = torch.arange(4 * 6 * 5 * 3).reshape(1, 4, 6, 5, 3)
    merged = channels_first(leaf((4, 6, 5, 3), stack=4), stacked)
    assert (merged[0, 3 * 2 + 1] == stacked[0, 2, :, :, 1]).all()


def test_atari_frames_get_ataris_network() -> None:
    network = Convolutions(leaf((4, 84, 84), stack=4), NetworkConfig(), generator())
    shapes = [tuple(layer.weight.shape) for layer in network.layers]
    assert shapes == [(32, 4, 8, 8), (64, 32, 4, 4), (64, 64, 3, 3)]
    assert network.features == 3136


def test_typed_kernels_are_used_without_padding() -> None:
    """84 pixels, then (84 - 5) // 5 + 1 = 16, then 3."""
    config = NetworkConfig(channels=[32, 64], kernels=[5, 5], strides=[5, 5])
    network = Convolutions(leaf((4, 84, 84), stack=4), config, generator())
    assert [tuple(layer.weight.shape) for layer in network.layers] == [(32, 4, 5, 5), (64, 32, 5, 5)]
    assert network.features == 64 * 3 * 3
    with pytest.raises(UsageError, match="the kernel of convolution 2, 5 pixels, is larger than its input"):
        Convolutions(leaf((12, 12, 1)), config, generator())


@pytest.mark.parametrize(("side", "layers"), [(5, 5), (7, 1), (36, 3)])
def test_every_size_has_a_network_with_the_stated_number_of_features(side: int, layers: int) -> None:
    image = leaf((side, side + 3, 3))
    network = Convolutions(image, NetworkConfig(channels=[4] * layers), generator())
    assert network(torch.zeros(2, *image.shape, dtype=torch.uint8)).shape == (2, network.features)
    assert network.features > 0


def test_scaling_by_the_bounds_of_the_space() -> None:
    network = Convolutions(leaf((5, 5, 1)), NetworkConfig(channels=[1]), generator())
    with torch.no_grad():
        network.layers[0].weight.zero_()
        network.layers[0].weight[0, 0, 1, 1] = 1.0
        network.layers[0].bias.zero_()
    image = torch.full((1, 5, 5, 1), 51, dtype=torch.uint8)
    assert network(image)[0].tolist() == pytest.approx([51 / 255] * 25)


IMPALA = NetworkConfig(encoder="impala", channels=[4, 6], spectral_norm=True)


def plain_impala(network: Impala, pixels: Tensor, normalized: bool) -> Tensor:
    """(B, channels, height, width) in 0 … 255 → (B, features), by torch's own layers."""
    x = pixels / 255.0
    for stage in network.stages:
        convolutions = list[nn.Conv2d]()
        for weight, bias in zip(stage.weight, stage.bias, strict=True):
            layer = nn.Conv2d(*weight.shape[:2], 3, padding=1)
            sigma = torch.linalg.matrix_norm(weight.flatten(1), 2) if normalized else 1.0
            layer.weight.data, layer.bias.data = weight / sigma, bias
            convolutions.append(layer)
        x = max_pool2d(conv2d(x, stage.convolution.weight, stage.convolution.bias, padding=1), 3, 2, 1)
        for first, second in (convolutions[:2], convolutions[2:]):
            x = x + second(relu(first(relu(x))))
    height, width = (min(side, 6) for side in x.shape[2:])
    return adaptive_max_pool2d(relu(x), (height, width)).flatten(1)


@pytest.mark.parametrize("normalized", [False, True])
@pytest.mark.parametrize(("height", "width"), [(40, 29), (84, 84), (10, 12)])
def test_impala_equals_its_layers_by_torch_and_by_numpy(height: int, width: int, normalized: bool) -> None:
    image = leaf((3, height, width), stack=3)
    config = replace(IMPALA, spectral_norm=normalized)
    encoder = Encoder(ObsSpec((image,)), config, generator())
    pixels = torch.randint(256, (5, *image.shape), dtype=torch.uint8, generator=generator())
    with torch.no_grad():
        encoded = encoder({"obs": pixels}).numpy()
        expected = plain_impala(encoder.parts[0], pixels, normalized).numpy()  # type: ignore[arg-type]
    assert encoder.is_deep and encoded.shape == (5, encoder.features)
    np.testing.assert_allclose(encoded, expected, rtol=1e-3, atol=1e-5)
    np.testing.assert_allclose(
        encoded_by_numpy(encoder, {"obs": pixels.numpy()}), encoded, rtol=1e-3, atol=1e-5
    )


def test_the_size_of_impala_on_ataris_frames_by_hand() -> None:
    """84 pixels, then 42, 21 and 11, pooled to 6. A convolution from n to m channels has 9·n·m weights and m biases."""
    network = Impala(leaf((4, 84, 84), stack=4), NetworkConfig(encoder="impala"), generator())
    assert network.features == 64 * 6 * 6
    stages = [(9 * n + 1) * m + 4 * (9 * m + 1) * m for n, m in ((4, 32), (32, 64), (64, 64))]
    assert sum(parameter.numel() for parameter in network.parameters()) == sum(stages)
    assert not list(network.buffers())


@pytest.mark.parametrize("agent", AGENTS)
def test_every_agent_can_have_it(agent: str) -> None:
    spec = spec_of("image", agent)
    config = AGENTS[agent].config(hidden=[8], channels=[4, 4], encoder="impala", spectral_norm=True)
    policy = AGENTS[agent].load().make_policy(config, spec, seed=0)
    assert "encoder.parts.0.stages.1.weight" in policy.model_info().arrays
    assert len(policy.sample({"obs": np.zeros((3, 10, 12, 3), np.uint8)})) == 3


@pytest.mark.parametrize("n", [2, 32, 64])
@pytest.mark.parametrize("scale", [1e-4, 1.0, 1e4])
def test_spectral_norms_and_their_gradient_are_those_of_singular_values(n: int, scale: float) -> None:
    weights = (scale * torch.randn(4, n, n, 3, 3, generator=generator())).requires_grad_()
    norms, expected = spectral_norms(weights), torch.linalg.matrix_norm(weights.flatten(2), 2)
    assert norms.tolist() == pytest.approx(expected.tolist(), rel=1e-4)
    (gradient,), (right,) = (torch.autograd.grad(part.sum(), weights) for part in (norms, expected))
    assert (gradient - right).norm() < 0.01 * right.norm()


def test_equal_singular_values_have_one_norm() -> None:
    assert spectral_norms(3.0 * torch.eye(8).view(1, 8, 8)).tolist() == pytest.approx([3.0])


GRID = ObsLeaf("obs", (), "box", (3, 1, 3), "uint8", 0.0, 255.0, categories=(3, 1, 2))


@pytest.mark.parametrize("stack", [1, 2])
def test_categories_are_one_hot_coded_per_channel_and_unknown_ones_are_zeros(stack: int) -> None:
    image = replace(GRID, shape=(stack, 3, 1, 3), stack=stack) if stack > 1 else GRID
    encoder = Encoder(ObsSpec((image,)), NetworkConfig(channels=[8]), generator())
    assert not encoder.is_deep
    assert encoder.features == image.features == stack * 18
    pixels = np.array([[2, 0, 1], [0, 0, 0], [3, 1, 255]], np.uint8)
    values = np.stack([pixels] * stack).reshape(1, *image.shape)
    expected = [[0, 0, 1, 1, 0, 1, 1, 0, 0, 1, 1, 0, 0, 0, 0, 0, 0, 0] * stack]
    for encoded in (
        encoder({"obs": torch.from_numpy(values)}).numpy(),
        encoded_by_numpy(encoder, {"obs": values}),
    ):
        assert encoded.dtype == np.float32
        np.testing.assert_allclose(encoded, np.array(expected) / np.sqrt(9 * stack), rtol=1e-6)


def test_channels_of_categories_may_come_first() -> None:
    image = replace(GRID, shape=(2, 3, 4), categories=(5, 2))
    assert image.features == 12 * 7
    values = np.zeros((1, 2, 3, 4), np.uint8)
    values[0, 0, 1, 2], values[0, 1, 2, 3] = 4, 1
    encoder = Encoder(ObsSpec((image,)), NetworkConfig(channels=[8]), generator())
    for encoded in (
        encoder({"obs": torch.from_numpy(values)}).numpy(),
        encoded_by_numpy(encoder, {"obs": values}),
    ):
        hot = np.round(encoded.reshape(3, 4, 7) * np.sqrt(24), 5)
        assert hot[1, 2].tolist() == [0, 0, 0, 0, 1, 1, 0]
        assert hot[2, 3].tolist() == [1, 0, 0, 0, 0, 0, 1]
        assert hot.sum() == 12 * 2
