"""Networks computed by numpy, for acting, give what torch gives."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pytest
import torch
from gymnasium import spaces

from border_cli.agents.dqn.agent import DqnPolicy, make_agent, make_policy
from border_cli.agents.dqn.config import DqnConfig
from border_cli.agents.dqn.network import NO_NOISE, Noise, QArrays, QNetwork
from border_cli.agents.nets import Encoder, to_tensors
from border_cli.agents.sac.config import SacConfig, Td3Config
from border_cli.agents.sac.network import PolicyArrays, PolicyNetwork
from border_cli.envs.gym_spaces import env_spec

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


def observations(rows: int) -> dict[str, Any]:
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
    assert QArrays.allowed(network)
    arrays, obs = QArrays(network), observations(rows)
    before = {name: rows.copy() for name, rows in obs.items()}
    normal = torch.randn(network.noise_size, generator=generator) if network.noise_size else None
    for noise in (NO_NOISE, Noise(normal=normal)):
        with torch.no_grad():
            wanted = network(to_tensors(obs, CPU), noise).numpy()
        q = arrays(obs, None if noise.normal is None else noise.normal.numpy())
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
    obs = observations(rows)
    with torch.no_grad():
        wanted = network(to_tensors(obs, CPU))
    for part, name in zip(PolicyArrays(network)(obs), ("mean", "std", "features"), strict=True):
        torch_values = getattr(wanted, name).numpy()
        np.testing.assert_allclose(part, torch_values, rtol=1e-4, atol=1e-5 * np.abs(torch_values).max())


def test_images_and_implicit_quantiles_are_left_to_torch() -> None:
    image = env_spec(spaces.Box(0, 255, (12, 12, 3), np.uint8), spaces.Discrete(2))
    vector = env_spec(spaces.Box(-1, 1, (2,), np.float32), spaces.Discrete(2))
    generator = torch.Generator().manual_seed(0)
    assert not QArrays.allowed(QNetwork(image, DqnConfig(), generator))
    assert not QArrays.allowed(QNetwork(vector, DqnConfig(head="implicit_quantile"), generator))
