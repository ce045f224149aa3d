"""Targets and losses of the distributional heads, and the range of C51's atoms, against values computed by hand."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
import torch

from border_cli.agents.agent import NetworkAgent
from border_cli.agents.dqn.config import C51Config
from border_cli.agents.dqn.loss import CategoricalHead, QuantileHead, ScalarHead, estimated_support
from border_cli.agents.dqn.network import atom_places
from border_cli.agents.params import TensorBatch
from border_cli.agents.quantiles import midpoints, quantile_huber
from tests.faults.amounts import sampled
from tests.unit.test_dqn import full_agent

T = torch.tensor
THREE = CategoricalHead(torch.linspace(-1.0, 1.0, 3))
"""Atoms -1, 0, 1."""
NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("probabilities", "reward", "discount", "terminated", "expected"),
    [
        # An atom between two is shared by its distance: 0 → 0.25, -1 → -0.75; 1 → 1.25 is clipped to 1.
        ([0.0, 1.0, 0.0], 0.25, 1.0, False, [0.0, 0.75, 0.25]),
        ([1.0, 0.0, 0.0], 0.25, 1.0, False, [0.75, 0.25, 0.0]),
        ([0.2, 0.3, 0.5], 0.5, 0.5, False, [0.0, 0.2 + 0.15, 0.15 + 0.5]),
        # Values beyond the edges are clipped to the edges.
        ([0.2, 0.3, 0.5], 100.0, 1.0, False, [0, 0, 1]),
        ([0.2, 0.3, 0.5], -100.0, 1.0, False, [1, 0, 0]),
        # A return that is an atom keeps all its mass.
        ([0.5, 0.25, 0.25], 0.0, 1.0, True, [0, 1, 0]),
        ([0.5, 0.25, 0.25], 1.0, 1.0, True, [0, 0, 1]),
    ],
)
def test_the_projection_on_three_atoms_by_hand(
    probabilities: list[float], reward: float, discount: float, terminated: bool, expected: list[float]
) -> None:
    target = THREE.target(T([probabilities]).log(), T([reward]), T([discount]), T([terminated]))
    assert target[0].tolist() == pytest.approx(expected)


def test_clipped_probability_is_measured() -> None:
    logits = T([[0.2, 0.3, 0.5]]).log().expand(5, 3)
    reward, discount = T([0.25, -0.25, 3.0, 0.0, 3.0]), T([1.0, 1.0, 1.0, 1.0, 0.5])
    over = T([False, False, False, False, True])
    # 1 → 1.25; -1 → -1.25; all → 2 and more; none; at a terminal state the return is the reward
    clipped = THREE.share_clipped(logits, reward, discount, over)
    assert clipped.tolist() == pytest.approx([0.5, 0.2, 1.0, 0.0, 1.0])
    head = CategoricalHead(torch.linspace(-100.0, 0.0, 51))
    forever = head.share_clipped(torch.zeros(1, 51), T([-1.0]), T([0.99]), T([False]))
    assert forever.tolist() == [0.0]  # the lowest possible value, except for rounding


def test_the_projection_on_uneven_atoms_by_hand() -> None:
    head = CategoricalHead(T([0.0, 1.0, 3.0]))
    assert head.project(T([[0.5, 0.5, 0.0]]), T([[0.25, 1.5, 9.0]])).tolist() == [[0.375, 0.5, 0.125]]
    assert head.project(T([[0.25, 0.25, 0.5]]), T([[-1.0, 1.0, 9.0]])).tolist() == [[0.25, 0.25, 0.5]]


def test_atoms_beyond_an_open_end() -> None:
    """Three of ten, up to a distance of 10 ranges: 10·(e^(4k/3) - 1)/(e^4 - 1)."""
    far, near, nearest = 10.0, 10 * math.expm1(8 / 3) / math.expm1(4), 10 * math.expm1(4 / 3) / math.expm1(4)
    inner = [0.0, 1 / 3, 2 / 3, 1.0]
    assert atom_places(C51Config(atoms=10)) == pytest.approx(
        [-far, -near, -nearest, *inner, 1 + nearest, 1 + near, 1 + far]
    )
    assert atom_places(C51Config(atoms=10, v_min=-5.0)) == pytest.approx(
        [*(i / 6 for i in range(7)), 1 + nearest, 1 + near, 1 + far]
    )
    for ends in ({"v_min": 0.0, "v_max": 1.0}, {}):
        assert np.diff(atom_places(C51Config(atoms=2, **ends))).tolist() == [1.0]  # type: ignore[arg-type]
    assert atom_places(C51Config(v_min=0.0, v_max=9.0)) == pytest.approx(np.linspace(0.0, 1.0, 51).tolist())


def test_terminated_rows_ignore_infinite_outputs() -> None:
    for head, k in (
        (CategoricalHead(torch.linspace(-1.0, 1.0, 2)), 2),
        (QuantileHead(), 2),
        (ScalarHead("mse"), 1),
    ):
        outputs = T([[INF] * k])
        target = head.target(outputs, T([1.0]), T([0.9]), T([True]))
        assert head.target_values(target).tolist() == [1.0]


def test_cross_entropy_by_hand() -> None:
    head = CategoricalHead(torch.linspace(0.0, 1.0, 2))
    loss = head.loss(T([[0.0, 0.0]]), T([[0.25, 0.75]]), None)
    error = head.error(T([[0.0, 0.0]]), T([[0.25, 0.75]]))
    entropy = -(0.25 * math.log(0.25) + 0.75 * math.log(0.75))
    assert loss.item() == pytest.approx(math.log(2))
    assert error.item() == pytest.approx(math.log(2) - entropy, abs=1e-6)


@pytest.mark.parametrize(
    ("kappa", "first", "second"),
    [
        # u = 3 - 1 = 2 at τ 0.25: 0.25·(2 - 0.5); u = 0.5 - 1 = -0.5: |0.25 - 1|·0.125
        # u = 3 - 2 = 1 at τ 0.75: 0.75·0.5; u = 0.5 - 2 = -1.5: 0.25·(1.5 - 0.5)
        (1.0, [0.25 * 1.5, 0.75 * 0.125], [0.75 * 0.5, 0.25 * 1.0]),
        # (|u| - 1/4) outside ±1/2, and u² inside
        (0.5, [0.25 * 1.75, 0.75 * 0.25], [0.75 * 0.75, 0.25 * 1.25]),
    ],
)
def test_quantile_huber_by_hand(kappa: float, first: list[float], second: list[float]) -> None:
    quantiles, target = T([[1.0, 2.0]]), T([[3.0, 0.5]])
    expected = [pytest.approx(sum(first) / 2 + sum(second) / 2)]
    assert quantile_huber(quantiles, target, T([[0.25, 0.75]]), kappa).tolist() == expected
    # without drawn levels a head has the midpoints
    assert QuantileHead(kappa).loss(quantiles, target, None).tolist() == expected
    assert QuantileHead(kappa).error(quantiles, target).item() == pytest.approx(0.25)
    assert midpoints(4, T(0.0)).tolist() == [0.125, 0.375, 0.625, 0.875]


@pytest.mark.parametrize("kappa", [1.0, 0.3])
def test_the_gradient_of_quantile_huber_is_that_of_its_definition(kappa: float) -> None:
    generator = torch.Generator().manual_seed(0)
    quantiles, target, tau = (
        torch.rand(2, 3, n, dtype=torch.float64, generator=generator) for n in (4, 5, 4)
    )
    quantiles, target = 4 * quantiles, 4 * target  # differences on both sides of ±1
    quantiles.requires_grad_()
    torch.autograd.gradcheck(lambda q: quantile_huber(q, target, tau, kappa), (quantiles,))


@pytest.mark.parametrize(
    ("reward", "discount", "expected"),
    [
        ([-1.0, -1.0], [0.99, 0.99], (-100.0, 0.0)),  # -1 for ever: -1/(1 - 0.99)
        ([-2.97, -1.0], [0.97, 0.99], (-99.25, 0.0)),  # sums over three and one env steps: -3.97/0.04
        # the mean is 2, which gives 4, and there is a reward of 5
        ([1.0, 5.0, 0.0], [0.5, 0.5, 0.5], (0.0, 5.0)),
        ([0.0, 0.0], [0.99, 0.99], (-1.0, 1.0)),  # nothing is known
        ([1.0, 1.0, 1.0], [0.9, 0.9, 0.0], (0.0, 10.0)),  # the last one is terminated
        ([1e37] * 64, [0.99] * 64, (0.0, 1e39)),  # too large for float32
    ],
)
def test_the_range_of_returns_is_estimated_from_rewards(
    reward: list[float], discount: list[float], expected: tuple[float, float]
) -> None:
    assert estimated_support(T(reward), T(discount)) == pytest.approx(expected, rel=1e-4)


def c51(**changes: Any) -> NetworkAgent:
    torch.manual_seed(0)
    return full_agent(head="categorical", **changes)[0]


def batch_of(reward: Iterable[float]) -> TensorBatch:
    reward = T(list(reward))
    n = len(reward)
    obs, next_obs = ({"obs": torch.rand(n, 1)} for _ in range(2))
    over = torch.zeros(n, dtype=torch.bool)
    return TensorBatch(obs, torch.randint(9, (n,)), reward, torch.full((n,), 0.9), over, next_obs)


def support(agent: NetworkAgent) -> Any:
    """Return the range of the online network's atoms, after a check that the target network has the same."""
    networks = agent.algorithm.networks
    assert networks.online.support.tolist() == networks.target.support.tolist()
    return pytest.approx(networks.online.support.tolist(), rel=1e-3)


def values(agent: NetworkAgent) -> np.ndarray:
    observations = {"obs": np.linspace(0, 1, 9, dtype=np.float32)[:, None]}
    return agent.policy.action_values(observations)  # type: ignore[attr-defined,no-any-return]


def learn(agent: NetworkAgent, rewards: Iterable[float]) -> list[float]:
    """Do an opt step with a batch of each reward. Returns the mean value after each."""
    history = []
    for number, reward in enumerate(rewards, 1):
        batch = batch_of([reward] * 32)
        agent.algorithm.adapt(batch, number)
        agent.algorithm.opt_step(batch, number)
        agent.algorithm.update_targets(number)
        history.append(float(values(agent).mean()))
    return history


LEARNING: dict[str, Any] = {"hidden": [32], "lr": 3e-3, "target_interval": 5}


@pytest.mark.parametrize("kind", sampled([{"dueling": True}, {}, {"noisy": True}], 3), ids=str)
def test_learned_values_do_not_jump_when_returns_leave_the_estimated_range(kind: dict[str, bool]) -> None:
    """Rewards of -1 at first, of -4 later: the value falls from -10, the end of the range, to -40."""
    agent = c51(**LEARNING, **kind)
    history = learn(agent, [-1.0] * 150 + [-4.0] * 450)
    assert support(agent) == [-10.0, 0.0]
    atoms = agent.policy.atoms  # type: ignore[attr-defined]
    assert (atoms[0], atoms[-1]) == pytest.approx((-110.0, 100.0), rel=1e-4)
    assert history[149] == pytest.approx(-10.0, abs=3.0)
    assert history[-1] == pytest.approx(-40.0, abs=4.0)
    assert np.abs(np.diff(history[20:])).max() < 0.01 * 210.0


def test_until_a_reward_comes_the_value_is_zero_and_what_was_learned_is_not_stretched() -> None:
    agent = c51(**LEARNING)
    learn(agent, [0.0] * 100)
    assert support(agent) == [-1.0, 1.0]
    before = values(agent)
    assert np.abs(before).max() < 0.1
    agent.algorithm.adapt(batch_of([0.0] * 31 + [8.0]), 101)
    assert support(agent) == [0.0, 8.0]
    assert np.abs(values(agent) - before).max() < 0.01 * 168.0


@pytest.mark.parametrize(
    ("typed", "reward", "expected"),
    [
        ({}, [1.0], [0.0, 10.0]),
        ({"v_min": -5.0}, [1.0], [-5.0, 10.0]),
        ({"v_max": 3.0}, [1.0], [0.0, 3.0]),
        ({"v_min": 0.0, "v_max": 9.0}, [1.0], [0.0, 9.0]),
        # estimates like the initial range
        ({}, [1.0, -1.0, 0.0], [-1.0, 1.0]),
        ({"v_min": -1.0}, [1.0, -1.0, 0.0], [-1.0, 1.0]),
    ],
)
def test_open_ends_are_set_once(typed: dict[str, float], reward: list[float], expected: list[float]) -> None:
    agent = c51(**typed)
    initial = agent.algorithm.state.online.params.clone()
    agent.algorithm.adapt(batch_of(reward), 1)
    assert support(agent) == expected
    params = agent.algorithm.state.online.params.clone()
    assert len(typed) < 2 or torch.equal(params, initial)
    for number in (101, 201):
        agent.algorithm.adapt(batch_of([800.0]), number)
        assert torch.equal(agent.algorithm.state.online.params, params)


def test_a_range_that_would_be_empty_or_infinite_is_not_used() -> None:
    below_every_reward, huge = c51(v_max=-8.0), c51()
    params = below_every_reward.algorithm.state.online.params.clone()
    for number in (1, 101):  # what is learned in this range stays
        below_every_reward.algorithm.adapt(batch_of([1.0]), number)
        assert torch.equal(below_every_reward.algorithm.state.online.params, params)
    huge.algorithm.adapt(batch_of([1e37] * 64), 1)
    assert (support(below_every_reward), support(huge)) == ([-9.0, -8.0], [-1.0, 1.0])


def test_values_outside_the_atoms_get_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    for v_max, warnings in ((0.5, 1), (20.0, 0)):  # every reward is 1
        agent, buffer = full_agent(head="categorical", v_min=-0.5, v_max=v_max)
        caplog.clear()
        shares = [agent.opt(buffer, record=True).values["agent/target_clipped"] for _ in range(3)]
        assert shares == pytest.approx([warnings] * 3)
        assert len(caplog.records) == warnings


@pytest.mark.parametrize("parts", ["policy", "all"])
@pytest.mark.parametrize(
    ("typed", "expected"), [({"v_min": 0.0, "v_max": 500.0}, [0.0, 500.0]), ({}, [0.0, 10.0])]
)
def test_a_typed_range_stays_when_the_weights_of_another_run_are_taken(
    parts: str, typed: dict[str, float], expected: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    saved, fresh = c51(), c51(**typed)
    saved.algorithm.adapt(batch_of([1.0]), 1)
    fresh.sync_model(saved.model_info())
    if parts == "all":
        assert fresh.load_networks(saved.state().arrays) == []
    assert support(fresh) == expected
    assert ("they are stretched until they are learned again" in caplog.text) == bool(typed)
