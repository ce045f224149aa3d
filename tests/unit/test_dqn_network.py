"""The value network: its options, and the noise and quantile levels of an opt step."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
import torch

from border_cli.agents.dqn.agent import make_agent
from border_cli.agents.dqn.config import HEADS, DqnConfig
from border_cli.agents.dqn.loss import DqnNetworks, DqnState, make_head, opt_step
from border_cli.agents.dqn.network import Noise, QNetwork
from border_cli.agents.nets import NoisyLinear, scaled_noise
from border_cli.agents.params import FlatParams, TensorBatch
from border_cli.core.spaces import ActionSpec, EnvSpec, ObsLeaf, ObsSpec

SPEC = EnvSpec(ObsSpec((ObsLeaf("obs", (), "box", (4,), "float32"),)), ActionSpec("discrete", n=3))
SWITCHES = list(product(HEADS, (False, True), (False, True)))
T = torch.tensor


def config(head: str = "scalar", dueling: bool = False, noisy: bool = False, **more: Any) -> DqnConfig:
    few: dict[str, Any] = dict(atoms=5, quantiles=6, target_quantiles=7, act_quantiles=8, cosines=4)  # noqa: C408
    few |= {"batch_size": 16, "noisy_std": 0.1}
    return DqnConfig(head=head, dueling=dueling, noisy=noisy, **({"hidden": [16, 12]} | few | more))


def network(c: DqnConfig) -> QNetwork:
    return QNetwork(SPEC, c, torch.Generator().manual_seed(0))


def observations(n: int, seed: int = 0) -> dict[str, torch.Tensor]:
    return {"obs": torch.randn(n, 4, generator=torch.Generator().manual_seed(seed))}


@pytest.mark.parametrize(("head", "dueling", "noisy"), SWITCHES)
@pytest.mark.parametrize("hidden", [[], [16, 12]])
def test_every_combination_has_the_right_shape_and_a_gradient(
    head: str, dueling: bool, noisy: bool, hidden: list[int]
) -> None:
    c = config(head, dueling, noisy, hidden=hidden)
    net, generator = network(c), torch.Generator().manual_seed(0)
    k = {"scalar": 1, "categorical": 5, "quantile": 6, "implicit_quantile": 8}[head]
    out = net(observations(9))
    assert out.shape == (9, 3, k)
    assert make_head(c).values(out).shape == (9, 3)
    assert (net.noise_size > 0) == noisy
    tau = torch.rand(9, 4, generator=generator) if head == "implicit_quantile" else None
    noise = Noise(tau, torch.randn(net.noise_size, generator=generator) if noisy else None)
    out = net(observations(9), noise)
    assert out.shape == (9, 3, k if tau is None else 4)
    out.square().sum().backward()
    for name, weights in net.named_parameters():
        if name == "support":
            assert weights.grad is None
            continue
        assert weights.grad is not None
        assert (weights.grad != 0).float().mean() > 0.25, name


def test_dueling_is_value_plus_advantage_without_its_mean() -> None:
    net = network(config(dueling=True, hidden=[4]))
    with torch.no_grad():
        net.layers[0].weight.copy_(torch.eye(4))
        net.layers[0].bias.zero_()
        net.value[0].weight.copy_(T([[1.0, 0, 0, 0]]))
        net.value[0].bias.fill_(10.0)
        net.advantage[0].weight.zero_()
        net.advantage[0].bias.copy_(T([1.0, 2.0, 6.0]))
    assert net({"obs": T([[5.0, 0, 0, 0]])})[0, :, 0].tolist() == [15.0 - 2, 15.0 - 1, 15.0 + 3]


def test_an_implicit_quantile_depends_only_on_its_own_level() -> None:
    net = network(config("implicit_quantile"))
    out = net(observations(2), Noise(T([[0.1, 0.9], [0.9, 0.1]])))
    swapped = net(observations(2), Noise(T([[0.9, 0.1], [0.1, 0.9]])))
    assert torch.allclose(out, swapped.flip(2))
    assert not torch.allclose(out, swapped)


def test_noise_by_hand() -> None:
    layer = NoisyLinear(2, 1, torch.Generator().manual_seed(0), 0.5)
    assert layer.weight_std.tolist() == [[pytest.approx(0.5 / 2**0.5)] * 2]
    with torch.no_grad():
        layer.weight.copy_(T([[1.0, 2.0]]))
        layer.bias.fill_(0.5)
        layer.weight_std.copy_(T([[0.1, 0.2]]))
        layer.bias_std.fill_(1.0)
    x = T([[1.0, 1.0]])
    assert layer(x).item() == 3.5
    noise = scaled_noise(T([4.0, -9.0, 0.25]))
    assert noise.tolist() == [2.0, -3.0, 0.5]
    # weights 1 + 0.1·2·0.5 and 2 + 0.2·(-3)·0.5, bias 0.5 + 0.5
    assert layer(x, noise).item() == pytest.approx(1.1 + 1.7 + 1.0)


def test_each_opt_step_has_new_noise_and_levels_which_the_seed_determines() -> None:
    algorithm, same = (
        make_agent(config("implicit_quantile", noisy=True), SPEC, 3).algorithm for _ in range(2)
    )
    first, second = algorithm.noise(4), algorithm.noise(4)
    assert (first.online.tau.shape, first.target.tau.shape, first.select.tau) == ((4, 6), (4, 7), None)
    noises = [first.online.normal, first.target.normal, first.select.normal, second.online.normal]
    assert len({tuple(noise.tolist()) for noise in noises}) == 4
    assert torch.equal(same.noise(4).target.normal, first.target.normal)


def test_importance_weights_scale_the_rows() -> None:
    """A row of weight 0 has no effect except on the divisor of the mean."""
    c = config(loss="mse", max_grad_norm=None)
    net = FlatParams(network(c))
    gradients = []
    for weight, rows in ((T([2.0, 0.0]), slice(0, 2)), (None, slice(0, 1))):
        state = DqnState.init(net.init())
        nets = DqnNetworks.bind(net, state)
        obs = {"obs": observations(2)["obs"][rows]}
        n = len(obs["obs"])
        over = torch.ones(n, dtype=torch.bool)
        batch = TensorBatch(obs, T([1, 2])[rows], T([1.0, 5.0])[rows], torch.ones(n), over, obs, weight)
        opt_step(nets, make_head(c), c, state, batch)
        gradients.append(state.online.exp_avg)
    assert torch.allclose(*gradients)
