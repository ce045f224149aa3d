"""The value network and its options; networks computed by numpy give what torch gives."""

from __future__ import annotations

from itertools import product
from typing import Any, cast

import numpy as np
import pytest
import torch
from gymnasium import spaces

from border_cli.agents.dqn.agent import DqnPolicy, make_agent, make_policy
from border_cli.agents.dqn.config import HEADS, DqnConfig
from border_cli.agents.dqn.heads import make_head
from border_cli.agents.dqn.network import NO_NOISE, Noise, QNetwork
from border_cli.agents.nets import Encoder, NoisyLinear, numpy_network, scaled_noise
from border_cli.agents.params import TensorBatch
from border_cli.agents.sac.config import SacConfig, Td3Config
from border_cli.agents.sac.network import PolicyNetwork
from border_cli.core.spaces import ActionSpec, EnvSpec, ObsLeaf, ObsSpec
from border_cli.envs.gym_spaces import env_spec
from tests.learners import opt_step

SPEC = EnvSpec(ObsSpec((ObsLeaf("obs", (), "box", (4,), "float32"),)), ActionSpec("discrete", n=3))
SWITCHES = list(product(HEADS, (False, True), (False, True)))
T = torch.tensor


def tensors_of(obs: dict[str, Any]) -> dict[str, torch.Tensor]:
    return {name: torch.from_numpy(rows) for name, rows in obs.items()}


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
def test_shape_and_gradient_of_each_kind(head: str, dueling: bool, noisy: bool, hidden: list[int]) -> None:
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
    gradients = []
    for weight, rows in ((T([2.0, 0.0]), slice(0, 2)), (None, slice(0, 1))):
        algorithm = make_agent(c, SPEC, 3).algorithm
        obs = {"obs": observations(2)["obs"][rows]}
        n = len(obs["obs"])
        over = torch.ones(n, dtype=torch.bool)
        batch = TensorBatch(obs, T([1, 2])[rows], T([1.0, 5.0])[rows], torch.ones(n), over, obs, weight)
        opt_step(algorithm, batch, 1)
        gradients.append(algorithm.state.nets["online"].exp_avg)
    assert torch.allclose(*gradients)


# -- computed by numpy, for acting -----------------------------------------


OBSERVATIONS = spaces.Dict(
    x=spaces.Box(-np.inf, np.inf, (3,), np.float32),
    far=spaces.Box(-np.inf, np.inf, (2,), np.float64),
    small=spaces.Box(0, 200, (2, 2), np.uint8),
    large=spaces.Box(-1000, 1000, (2,), np.int32),
    k=spaces.MultiDiscrete([4, 3]),
)
CPU = torch.device("cpu")
Q_NETWORKS: list[dict[str, Any]] = [
    {"hidden": []},
    {"hidden": [8]},
    {"hidden": [16, 8], "head": "categorical", "dueling": True},
    {"hidden": [16, 8, 4], "head": "quantile", "noisy": True},
    {"hidden": [16, 8], "noisy": True, "dueling": True},
    {"hidden": [8], "normalize_obs": True},
]


def mixed_observations(rows: int) -> dict[str, Any]:
    rng = np.random.default_rng(5)
    return {
        "obs.x": rng.normal(size=(rows, 3)).astype(np.float32),
        "obs.far": rng.normal(size=(rows, 2)),
        "obs.small": rng.integers(0, 201, (rows, 2, 2)).astype(np.uint8),
        "obs.large": rng.integers(-1000, 1001, (rows, 2)).astype(np.int32),
        "obs.k": rng.integers(0, 3, (rows, 2)),
    }


def set_statistics(encoder: Encoder) -> None:
    """Give the encoder statistics that scale some numbers, and clip others."""
    for tensor in encoder.statistics():
        tensor.data.copy_(torch.linspace(0.05, 1.5, max(tensor.numel(), 1)).view_as(tensor))


@pytest.mark.parametrize("rows", [1, 7])
@pytest.mark.parametrize("settings", Q_NETWORKS)
def test_the_q_network(settings: dict[str, Any], rows: int) -> None:
    spec = env_spec(OBSERVATIONS, spaces.Discrete(3))
    generator = torch.Generator().manual_seed(0)
    network = QNetwork(spec, DqnConfig(**settings), generator)
    set_statistics(network.encoder)
    arrays, obs = numpy_network(network), mixed_observations(rows)
    assert arrays is not None
    before = {name: rows.copy() for name, rows in obs.items()}
    normal = torch.randn(network.noise_size, generator=generator) if network.noise_size else None
    for noise in (NO_NOISE, Noise(normal=normal)):
        with torch.no_grad():
            wanted = network(tensors_of(obs), noise).numpy()
        q, *_ = arrays(obs, None if noise.normal is None else noise.normal.numpy())
        np.testing.assert_allclose(q, wanted, rtol=1e-4, atol=1e-5 * np.abs(wanted).max())
    assert all((obs[name] == before[name]).all() for name in obs), "observations are not changed"


def test_an_actor_uses_the_model_of_the_last_sync_and_an_agent_what_it_has_learned() -> None:
    spec = env_spec(spaces.Box(-1, 1, (2,), np.float32), spaces.Discrete(2))
    config = DqnConfig(hidden=[4])
    policy = make_policy(config, spec, seed=0)
    learning = cast(DqnPolicy, make_agent(config, spec, seed=0).policy)
    for each in (policy, learning):
        each.params.fill_(1.0)
        each.sync_model(each.model_info())
        each.params.fill_(0.0)
    obs = {"obs": np.array([[1.0, 2.0]], np.float32)}
    # four hidden units of 1·1 + 1·2 + 1 = 4, and 4·4 + 1 with the weights of the last sync; 0 with the newest
    assert policy.action_values(obs).tolist() == [[17.0, 17.0]]
    assert learning.action_values(obs).tolist() == [[0.0, 0.0]]
    policy.sync_model(policy.model_info())
    assert policy.action_values(obs).tolist() == [[0.0, 0.0]]


@pytest.mark.parametrize("rows", [1, 7])
@pytest.mark.parametrize(
    "config",
    [
        SacConfig(hidden=[16, 8]),
        SacConfig(hidden=[8], exploration="state_dependent"),
        Td3Config(hidden=[8], normalize_obs=True),
    ],
)
def test_the_policy_network(config: SacConfig, rows: int) -> None:
    spec = env_spec(OBSERVATIONS, spaces.Box(-1, 1, (2,), np.float32))
    network = PolicyNetwork(spec, config, torch.Generator().manual_seed(0))
    set_statistics(network.encoder)
    obs = mixed_observations(rows)
    with torch.no_grad():
        wanted = network(tensors_of(obs))
    arrays = numpy_network(network)
    assert arrays is not None
    out, features, _ = arrays(obs)
    parameters = network.of_outputs(out, features)
    for name in ("mean", "std", "features"):
        torch_values = getattr(wanted, name).numpy()
        np.testing.assert_allclose(
            getattr(parameters, name),
            torch_values,
            rtol=1e-4,
            atol=1e-5 * np.abs(torch_values).max(),
        )
