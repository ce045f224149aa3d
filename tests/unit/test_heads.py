"""Targets and losses of the distributional heads, and the range of C51's atoms, against values computed by hand."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
import torch

from border_cli.agents.agent import NetworkAgent
from border_cli.agents.dqn.config import C51Config, atoms_of
from border_cli.agents.dqn.heads import CategoricalHead, QuantileHead, ScalarHead
from border_cli.agents.params import TensorBatch
from border_cli.agents.quantiles import midpoints, quantile_huber
from border_cli.core.errors import UsageError
from tests.faults.amounts import sampled
from tests.learners import opt_step
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


def c51(**changes: Any) -> NetworkAgent:
    torch.manual_seed(0)
    return full_agent(head="categorical", **changes)[0]


def batch_of(reward: Iterable[float]) -> TensorBatch:
    reward = T(list(reward))
    n = len(reward)
    obs, next_obs = ({"obs": torch.rand(n, 1)} for _ in range(2))
    over = torch.zeros(n, dtype=torch.bool)
    return TensorBatch(obs, torch.randint(9, (n,)), reward, torch.full((n,), 0.9), over, next_obs)


def values(agent: NetworkAgent) -> np.ndarray:
    observations = {"obs": np.linspace(0, 1, 9, dtype=np.float32)[:, None]}
    return agent.policy.action_values(observations)  # type: ignore[attr-defined,no-any-return]


def learn(agent: NetworkAgent, rewards: Iterable[float]) -> list[float]:
    """Do an opt step with a batch of each reward. Returns the mean value after each."""
    history = []
    for number, reward in enumerate(rewards, 1):
        batch = batch_of([reward] * 32)
        opt_step(agent.algorithm, batch, number)
        agent.algorithm.update_targets(number)
        history.append(float(values(agent).mean()))
    return history


LEARNING: dict[str, Any] = {"hidden": [32], "lr": 3e-3, "target_interval": 5}


def atoms(**changes: Any) -> np.ndarray:
    return atoms_of(C51Config(**changes)).astype(np.float64)


def test_between_typed_ends_the_atoms_are_evenly_spaced() -> None:
    assert atoms(v_min=-10.0, v_max=10.0) == pytest.approx(np.linspace(-10, 10, 51))
    assert atoms(v_min=0.0, v_max=2.0, atoms=3).tolist() == [0.0, 1.0, 2.0]


def test_without_a_range_the_atoms_are_evenly_spaced_by_symlog() -> None:
    free = atoms()
    assert len(free) == 201 and free[100] == 0.0
    assert (free == -free[::-1]).all()
    assert free[[101, 110, 200]] == pytest.approx([math.e**0.1 - 1, math.e - 1, math.e**10 - 1], rel=1e-5)


@pytest.mark.parametrize(
    ("typed", "first", "last"), [({"v_min": -5.0}, -5.0, 22_025), ({"v_max": 3.0}, -22_025, 3.0)]
)
def test_a_typed_end_is_the_outer_atom(typed: dict[str, float], first: float, last: float) -> None:
    free = atoms(**typed)
    assert free[[0, -1]] == pytest.approx([first, last], rel=1e-4)
    assert np.diff(np.sign(free) * np.log1p(np.abs(free))) == pytest.approx(
        (math.log1p(abs(last)) * np.sign(last) - math.log1p(abs(first)) * np.sign(first)) / 200, rel=1e-3
    )


@pytest.mark.parametrize(
    "typed",
    [
        *({"v_min": 1e8, "v_max": 1e8 + 1}, {"v_min": -1e40, "v_max": 1e40}, {"v_min": 22025.4}),
        *({"v_min": 1.0, "v_max": 1.0}, {"v_max": -30_000.0}, {"v_max": 1e40}),
    ],
)
def test_ends_between_which_atoms_do_not_rise_are_refused(typed: dict[str, float]) -> None:
    with pytest.raises(UsageError, match="are not increasing float32 numbers"):
        C51Config(**typed).validate()  # type: ignore[arg-type]
    C51Config(v_min=-30_000.0, v_max=0.0).validate()


@pytest.mark.parametrize("kind", sampled([{"dueling": True}, {}, {"noisy": True}], 3), ids=str)
def test_values_begin_near_zero_and_follow_returns_of_any_size_without_a_jump(kind: dict[str, bool]) -> None:
    """Rewards of -1 at first, of -10 later: the value falls from -10 to -100."""
    agent = c51(**LEARNING, **kind)
    assert np.abs(values(agent)).max() < 1.0
    history = learn(agent, [-1.0] * 200 + [-10.0] * 500)
    assert history[199] == pytest.approx(-10.0, abs=3.0)
    assert history[-1] == pytest.approx(-100.0, abs=10.0)
    assert np.diff(history[20:]).max() < 1.0  # no way back up


def test_values_outside_the_atoms_get_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    for v_max, warnings in ((0.5, 1), (20.0, 0)):  # every reward is 1
        agent, buffer = full_agent(head="categorical", v_min=-0.5, v_max=v_max)
        caplog.clear()
        shares = [agent.opt(buffer, record=True).values["agent/target_clipped"] for _ in range(3)]
        assert shares == pytest.approx([warnings] * 3)
        assert len(caplog.records) == warnings
