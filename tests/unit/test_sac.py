"""The actor-critic agents against values by hand, and densities against integrals."""

from __future__ import annotations

import json
import math
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch

from border_cli.agents.algorithm import td_target
from border_cli.agents.sac.agent import (
    StateDependentNoise,
    critic_losses,
    make_agent,
    make_policy,
    sample_action,
    smooth_action,
)
from border_cli.agents.sac.config import SacConfig, Td3Config, TqcConfig
from border_cli.agents.sac.network import ActionParameters, Critics, PolicyNetwork, TanhBijector
from border_cli.core.errors import IncompatibleStateError
from border_cli.core.spaces import ActionSpec, Array, EnvSpec, ObsLeaf, ObsSpec

T = torch.tensor


def spec(low: tuple[float, ...] = (-2.0,), high: tuple[float, ...] = (2.0,)) -> EnvSpec:
    action = ActionSpec("box", shape=(len(low),), low=low, high=high, dtype="float32")
    return EnvSpec(ObsSpec((ObsLeaf("obs", (), "box", (3,), "float32"),)), action)


def bounds(low: tuple[float, ...], high: tuple[float, ...]) -> TanhBijector:
    return TanhBijector(spec(low, high).action)


@pytest.mark.parametrize(
    ("low", "high", "mean", "std"), [(-1.0, 1.0, 0.0, 1.0), (0.0, 0.1, 0.7, 0.3), (5.0, 25.0, -1.5, 0.8)]
)
def test_densities_integrate_to_the_share_of_draws(low: float, high: float, mean: float, std: float) -> None:
    """The integral is 1 over the box, and the share of draws over its left part."""
    b = bounds((low,), (high,))
    edges = torch.linspace(low, high, 400_001, dtype=torch.float64)[1:-1]
    u = torch.atanh((edges - (low + high) / 2) / ((high - low) / 2)).unsqueeze(1)
    density = b.log_prob(u, T([mean], dtype=torch.float64), T([std], dtype=torch.float64)).exp()
    density /= (high - low) / 2  # per unit of the box, not of [-1, 1]
    assert torch.trapezoid(density, edges).item() == pytest.approx(1.0, abs=1e-3)
    middle = low + 0.4 * (high - low)
    left = edges < middle
    draws = b.squash(mean + std * torch.randn(200_000, 1, generator=torch.Generator().manual_seed(0)))
    share = (draws < middle).float().mean().item()
    assert torch.trapezoid(density[left], edges[left]).item() == pytest.approx(share, abs=5e-3)


def test_density_and_gradient_are_finite_far_from_the_mean() -> None:
    u = T([[50.0], [-50.0]], requires_grad=True)
    density = bounds((-1.0,), (1.0,)).log_prob(u, T([[0.0]]), T([[1.0]]))
    density.sum().backward()
    assert density.isfinite().all()
    assert u.grad is not None and u.grad.isfinite().all()


def test_scaled_actions_lie_in_their_box_and_round_trip() -> None:
    b = bounds((-2.0, 0.0), (4.0, 0.5))
    assert b.scale(T([[0.0, 0.0], [1.0, -1.0]])).tolist() == [[1.0, 0.25], [4.0, 0.0]]
    assert b.unscale(b.scale(T([0.3, -0.7]))).tolist() == pytest.approx([0.3, -0.7])
    # bounds as wide as float32, and equal bounds
    wide = bounds((-3e38, 1.0), (3e38, 1.0))
    assert wide.scale(T([1.0, 1.0])).isfinite().all()
    assert wide.unscale(wide.scale(T([0.5, 0.5]))).tolist() == pytest.approx([0.5, 0.0])


def test_terminated_rows_ignore_infinite_values() -> None:
    assert td_target(T([[math.inf]]) - T([[math.inf]]), T([1.0]), T([0.5]), T([True])).item() == 1.0


def test_smoothing_by_hand() -> None:
    b = bounds((-2.0,), (2.0,))
    parameters = ActionParameters(T([[0.0], [0.0], [3.0]]), torch.ones(3, 1), torch.zeros(3, 1))
    noise = T([[1.0], [9.0], [9.0]])
    # 2·0.2·1, 2·0.5 at the clip of the noise, 2 at the bound
    assert smooth_action(b, parameters, noise, 0.2, 0.5)[:, 0].tolist() == pytest.approx([0.4, 1.0, 2.0])


def test_critic_losses_by_hand() -> None:
    values = T([[[1.0]], [[4.0]]])
    assert critic_losses(values, T([[2.0]])).tolist() == [0.5 * 1 + 0.5 * 4]
    # Quantiles 0 and 1 at the levels 1/4 and 3/4, samples 0.5 and 2: |τ - 1[u < 0]|·huber(u)
    first = (0.25 * 0.125 + 0.25 * 1.5) / 2
    second = (0.25 * 0.125 + 0.75 * 0.5) / 2
    quantiles = T([[[0.0, 1.0]]])
    assert critic_losses(quantiles, T([[0.5, 2.0]])).tolist() == pytest.approx([first + second])


def small(cls: type[SacConfig] = SacConfig, **changes: Any) -> SacConfig:
    return cls(**({"hidden": [8], "batch_size": 4, "random_env_steps": 0} | changes))


def obs(n: int = 1) -> dict[str, Array]:
    return {"obs": np.random.default_rng(0).normal(size=(n, 3)).astype(np.float32)}


def tensors(n: int = 1) -> dict[str, torch.Tensor]:
    return {"obs": torch.from_numpy(obs(n)["obs"])}


def test_state_dependent_deviation_by_hand() -> None:
    c = small(exploration="state_dependent", hidden=[2], log_std_start=math.log(0.5))
    net = PolicyNetwork(spec(), c, torch.Generator().manual_seed(0))
    output = net(tensors(5))
    expected = 0.5 * output.features.square().sum(1).sqrt()
    assert output.std[:, 0].tolist() == pytest.approx(expected.tolist(), rel=1e-4, abs=1e-5)
    with torch.no_grad():
        net.out.bias.fill_(100.0)
    assert net(tensors(1)).mean.item() == 2.0


@pytest.mark.parametrize("first", [None, 1])
def test_normalised_critics_with_dropout_are_those_of_plain_torch(first: int | None) -> None:
    config, rng = (
        small(norm="layer", critic_hidden=[8, 4], critics=3, critic_dropout=0.5),
        torch.Generator().manual_seed(1),
    )
    critics, n = Critics(spec(), config, rng), first or 3
    factors = 2.0 * torch.bernoulli(torch.full((3, 5, 12), 0.5), generator=rng)
    with torch.no_grad():
        for parameter in critics.parameters():
            parameter.normal_(generator=rng)
    values, action = critics(tensors(5), T([[0.5]]).expand(5, 1), first, dropout=factors), T([[0.25]])
    for i in range(n):
        x = torch.cat([tensors(5)["obs"], action.expand(5, 1)], 1)
        for j, kept in enumerate(factors[i].split([8, 4], 1)):
            norm = torch.nn.LayerNorm(kept.shape[1])
            norm.load_state_dict(
                {"weight": critics.layer_norms[j].scale[i, 0], "bias": critics.layer_norms[j].shift[i, 0]}
            )
            x = torch.relu(norm((x @ critics.layers[j].weight[i] + critics.layers[j].bias[i]) * kept))
        assert torch.allclose(
            values[i], x @ critics.layers[2].weight[i] + critics.layers[2].bias[i], atol=1e-5
        )
    assert values.shape == (n, 5, 1)


def test_layer_normalisation_is_of_the_critics_alone_and_keeps_the_targets() -> None:
    names = {
        name.replace(".params", "") for name in make_agent(small(norm="layer"), spec(), 0).algorithm.tensors()
    }
    assert {name.split(".")[0] for name in names if "layer_norms" in name} == {"critics", "critics_target"}


def test_state_dependent_noise_is_a_fixed_function_for_an_episode_and_part_of_the_state() -> None:
    policy, restored = (
        make_policy(small(exploration="state_dependent"), spec(), 0, incarnation=incarnation)
        for incarnation in (0, 1)
    )
    first = policy.sample(obs(2), 10, [0, 1])
    assert (policy.sample(obs(2), 10, [0, 1]) == first).all()  # same states, same actions
    state = json.loads(json.dumps(policy.generator_state()))
    policy.begin_episode(0)
    after = policy.sample(obs(2), 10, [0, 1])
    assert (after[0] != first[0]).any() and (after[1] == first[1]).all()
    restored.load_generator_state(state)
    assert (restored.sample(obs(1), 10, [1]) == policy.sample(obs(1), 10, [1])).all()
    restored.begin_episode(0)
    assert (restored.sample(obs(2), 10, [0, 1]) == after).all()
    with pytest.raises(IncompatibleStateError):
        restored.load_generator_state(state | {"noise": {"0": ["x"]}})


def test_state_dependent_noise_is_new_after_some_env_steps() -> None:
    rng = np.random.default_rng(0)
    of_two = StateDependentNoise((3, 1)).sample([0, 1], rng)
    assert (of_two[0] != of_two[1]).any()
    noise = StateDependentNoise((3, 1), interval=3)
    drawn = [noise.sample([0], rng) for _ in range(4)]
    noise.load_state(json.loads(json.dumps(noise.state())))
    drawn += [noise.sample([0], rng) for _ in range(3)]
    changes = [bool((a != b).any()) for a, b in pairwise(drawn)]
    assert changes == [False, False, True, False, False, True]


@pytest.mark.parametrize("cls", [SacConfig, Td3Config, TqcConfig])
def test_acting_is_random_then_by_the_policy_and_by_its_mean_in_evaluation(
    cls: type[SacConfig],
) -> None:
    policy = make_policy(small(cls, random_env_steps=100), spec((-2.0,), (6.0,)), 0)
    uniform = policy.sample(obs(4000), 99)
    assert (uniform.min(), uniform.max(), uniform.mean()) == pytest.approx((-2.0, 6.0, 2.0), abs=0.1)
    policy.eval()
    best = policy.sample(obs(4000), 0)
    policy.train()
    noisy = policy.sample(obs(4000), 100) - best
    assert 0.01 < noisy.std() < 4
    assert (policy.sample(obs(4000), 100) != best).any()


def constant_policy(config: SacConfig, out: list[float]) -> Any:
    """Return a policy with the same output in every state, and actions between -4 and 4."""
    policy = make_policy(config, spec((-4.0,), (4.0,)), 0)
    arrays = policy.model_info().arrays
    arrays["out.weight"][...] = 0.0
    arrays["out.bias"][...] = out
    return policy


def test_the_deviation_of_gaussian_noise_and_of_a_gaussian_policy() -> None:
    noise = constant_policy(small(Td3Config, noise_std=0.1), [0.0]).sample(obs(40_000), 10)
    assert noise.std() == pytest.approx(0.1 * 4, rel=0.03)  # in units of half the range
    u = np.arctanh(constant_policy(small(), [0.3, math.log(0.5)]).sample(obs(40_000), 10) / 4)
    assert (u.mean(), u.std()) == (pytest.approx(0.3, abs=0.01), pytest.approx(0.5, rel=0.03))


def test_state_dependent_noise_has_the_standard_deviation_of_its_density() -> None:
    config = small(exploration="state_dependent", log_std_start=-1.0)
    policy = constant_policy(config, [0.3])
    drawn = []
    for _ in range(1000):
        policy.begin_episode(0)
        drawn.append(math.atanh(policy.sample(obs(), 10, [0]).item() / 4))
    net = PolicyNetwork(spec((-4.0,), (4.0,)), config, torch.Generator())
    net.load_state_dict({name: torch.from_numpy(array) for name, array in policy.model_info().arrays.items()})
    std = net(tensors()).std.item()
    assert np.std(drawn) == pytest.approx(std, rel=0.05)
    assert np.mean(drawn) == pytest.approx(0.3, abs=0.05 + 2 * std / 30)


def test_a_component_with_equal_bounds_has_no_part_in_densities() -> None:
    expected = bounds((-2.0,), (2.0,)).log_prob(T([[0.3]]), T([[0.1]]), T([[0.5]])).item()
    for std in (0.1, 5.0):
        density = bounds((-2.0, 3.0), (2.0, 3.0)).log_prob(T([[0.3, 0.7]]), T([[0.1, 0.0]]), T([[0.5, std]]))
        assert density.item() == pytest.approx(expected)
    for low, target_entropy in ((3.0, -1.0), (0.0, -2.0)):
        algorithm: Any = make_agent(small(), spec((-2.0, low), (2.0, 3.0)), 0).algorithm
        assert algorithm.target_entropy == target_entropy


def test_the_size_of_the_action_box_does_not_change_the_entropy() -> None:
    """The log-probability is that of actions scaled to [-1, 1], so the size of the box has no effect."""
    parameters, noise = ActionParameters(T([[0.3, -0.2]]), T([[0.5, 2.0]]), T([[0.0]])), T([[1.0, -0.4]])
    # N(0.3, 0.5²) at 0.8 and N(-0.2, 2²) at -1.0, divided by the derivatives of tanh
    by_hand = sum(
        -(z**2) / 2 - math.log(std) - math.log(2 * math.pi) / 2 - math.log(1 - math.tanh(u) ** 2)
        for z, std, u in ((1.0, 0.5, 0.8), (-0.4, 2.0, -1.0))
    )
    for box in (bounds((-0.4, 0.0), (0.4, 0.1)), bounds((-1.0, -1.0), (1.0, 1.0))):
        assert sample_action(box, parameters, noise)[1].item() == pytest.approx(by_hand, rel=1e-5)
