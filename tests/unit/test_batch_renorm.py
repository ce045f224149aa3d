"""Batch renormalisation by hand, and the opt step of CrossQ."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from border_cli.agents.batch_renorm import BatchRenorm, BatchStats
from border_cli.agents.params import TensorBatch
from border_cli.agents.sac.agent import make_agent
from border_cli.agents.sac.config import CrossqConfig
from tests.learners import opt_step, sums
from tests.unit.test_sac import T, small, spec

EPS = 1e-3
ROWS = T([[1.0], [5.0]])
"""Mean 3, variance 4."""


def layer(mean: float = 0.0, variance: float = 1.0, weight: float = 1.0, bias: float = 0.0) -> BatchRenorm:
    norm = BatchRenorm(1)
    with torch.no_grad():
        norm.mean.fill_(mean)
        norm.variance.fill_(variance)
        norm.weight.fill_(weight)
        norm.bias.fill_(bias)
    return norm


def test_it_acts_by_the_running_statistics() -> None:
    norm = layer(mean=1.0, variance=4.0, weight=3.0, bias=0.5)
    std = math.sqrt(4.0 + EPS)
    assert norm(ROWS)[:, 0].tolist() == pytest.approx([0.5, 3.0 * 4.0 / std + 0.5])


def test_at_first_the_statistics_of_the_batch_alone_normalise_it() -> None:
    norm = layer(mean=10.0)
    z = 2.0 / math.sqrt(4.0 + EPS)
    assert norm(ROWS, BatchStats(T(99_999.0)))[:, 0].tolist() == pytest.approx([-z, z])


@pytest.mark.parametrize(
    ("mean", "variance", "r", "d"),
    [
        (2.0, 1.0, math.sqrt((4 + EPS) / (1 + EPS)), 1.0 / math.sqrt(1 + EPS)),
        (-9.0, 1.0, math.sqrt((4 + EPS) / (1 + EPS)), 5.0),  # 12 standard deviations away
        (3.0, 0.0, 3.0, 0.0),  # far narrower than the batch
    ],
)
def test_later_running_statistics_correct_it(mean: float, variance: float, r: float, d: float) -> None:
    norm = layer(mean=mean, variance=variance)
    z = 2.0 / math.sqrt(4.0 + EPS)
    assert norm(ROWS, BatchStats(T(1e5)))[:, 0].tolist() == pytest.approx([-z * r + d, z * r + d])


def test_the_running_statistics_move_by_a_hundredth_unless_the_opt_step_is_skipped() -> None:
    norm, stats = layer(mean=1.0, variance=2.0), BatchStats(T(0.0))
    norm(ROWS, stats)
    assert (norm.mean.item(), norm.variance.item()) == (1.0, 2.0)
    stats.apply(T(1.0))
    assert (norm.mean.item(), norm.variance.item()) == (1.0, 2.0)
    stats.apply(T(0.0))
    assert (norm.mean.item(), norm.variance.item()) == pytest.approx((1.02, 2.02))


def test_stacked_critics_have_statistics_of_their_own() -> None:
    norm, stats = BatchRenorm(2, 1, 1), BatchStats(T(0.0))
    norm(torch.stack([ROWS, 3 * ROWS]), stats)
    stats.apply(T(0.0))
    assert norm.mean.flatten().tolist() == pytest.approx([0.03, 0.09])
    assert norm(ROWS.expand(1, -1, -1)).shape == (1, 2, 1)  # the first critic alone


# -- the opt step ----------------------------------------------------------------


def agent(**changes: Any) -> Any:
    return make_agent(small(CrossqConfig, hidden=[8], policy_interval=1, **changes), spec(), 0)


def batch(n: int = 16) -> TensorBatch:
    rng = torch.Generator().manual_seed(1)
    obs, next_obs = ({"obs": torch.randn(n, 3, generator=rng)} for _ in range(2))
    action, terminated = torch.rand(n, 1, generator=rng), torch.zeros(n, dtype=torch.bool)
    return TensorBatch(obs, action, torch.ones(n), torch.full((n,), 0.9), terminated, next_obs)


def test_there_are_no_target_networks_and_beta1_is_one_half() -> None:
    tensors = agent().algorithm.tensors()
    assert not [name for name in tensors if "target" in name]
    assert {state.beta1 for state in agent().algorithm.state.nets.values()} == {0.5}


def test_current_and_next_actions_are_one_batch_of_the_critics() -> None:
    """The running statistics after one opt step are a hundredth of those of both halves together."""
    learner, rows = agent(entropy_coef=0.0), batch()
    networks, noise = learner.algorithm.networks, learner.algorithm.noise(16)
    with torch.no_grad():
        bijector = learner.algorithm.bijector
        parameters = networks["policy"](rows.next_obs)  # by its running statistics
        next_action = bijector.squash(parameters.mean + parameters.std * noise.next_action)
        actions = bijector.unscale(torch.cat([rows.action, next_action]))
    inputs = torch.cat([torch.cat([rows.obs["obs"], rows.next_obs["obs"]]), actions], 1)
    learner.algorithm.step(rows, noise, 1.0, 1)
    for critic in range(2):
        means = networks["critics"].norms[0].mean[critic, 0].tolist()
        assert means == pytest.approx((0.01 * inputs.mean(0)).tolist(), rel=1e-4, abs=1e-6)
    means = networks["policy"].norms[0].mean.tolist()
    assert means == pytest.approx((0.01 * rows.obs["obs"].mean(0)).tolist(), rel=1e-4, abs=1e-6)


def test_its_first_loss_by_hand() -> None:
    """Critics with zero weights give their bias b: the target is 1 + 0.9·min b, the loss Σ (b - target)²/2."""
    learner = agent(entropy_coef=0.0)
    tensors: dict[str, Tensor] = learner.algorithm.tensors()
    tensors["critics.params.layers.1.weight"].zero_()
    tensors["critics.params.layers.1.bias"].copy_(T([2.0, 4.0]).view(2, 1, 1))
    algorithm = learner.algorithm
    algorithm.step(batch(), algorithm.noise(16), 1.0, 1)
    target = 1 + 0.9 * 2.0
    loss, _, q_mean, target_mean, *_ = sums(algorithm)
    expected = ((2 - target) ** 2 + (4 - target) ** 2) / 2, 3.0, target
    assert (loss, q_mean, target_mean) == pytest.approx(expected, rel=1e-5)


def test_it_acts_alike_in_numpy_and_in_torch() -> None:
    learner, rows = agent(), batch()
    for number in range(1, 4):
        opt_step(learner.algorithm, rows, number)
    learner.eval()
    with torch.no_grad():
        expected = learner.policy.decide(rows.obs)[0].numpy()
    assert np.allclose(learner.sample({"obs": rows.obs["obs"].numpy()}), expected, atol=1e-6)
