"""SAC for discrete actions: acting, targets and losses by hand."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from border_cli.agents.actor_critic import SCALARS
from border_cli.agents.dsac.agent import log_probabilities, make_agent
from border_cli.agents.dsac.config import DsacConfig
from border_cli.agents.params import TensorBatch
from border_cli.core.errors import UsageError
from border_cli.core.spaces import ActionSpec, EnvSpec, ObsLeaf, ObsSpec
from tests.learners import opt_step, sums

T = torch.tensor
OBS = ObsLeaf("obs", (), "box", (1,), "float32")
SPEC = EnvSpec(ObsSpec((OBS,)), ActionSpec("discrete", n=2))
ROW = {"obs": T([[0.0]])}
BATCH = TensorBatch(ROW, T([1]), T([1.0]), T([0.9]), T([False]), ROW)
"""Action 1, reward 1, discount 0.9; the next observation is the same."""
LOGITS, Q, Q_TARGET = (0.0, math.log(3.0)), ((1.0, 2.0), (3.0, 0.5)), ((4.0, 5.0), (6.0, 2.0))
"""Probabilities 1/4 and 3/4; values of two critics and of their targets: the smaller ones are 4 and 2."""
P = (0.25, 0.75)
LOG_P = tuple(map(math.log, P))
ENTROPY = -sum(p * log_p for p, log_p in zip(P, LOG_P, strict=True))


def agent(**changes: Any) -> Any:
    """Return an agent whose outputs are the constants above, whatever the observation."""
    learner = make_agent(DsacConfig(**{"hidden": [], "batch_size": 1, **changes}), SPEC, 0)
    tensors: dict[str, Tensor] = learner.algorithm.tensors()
    for name, values in (
        ("policy.params.out", T(LOGITS)),
        ("critics.params.layers.0", T(Q).unsqueeze(1)),
        ("critics_target.layers.0", T(Q_TARGET).unsqueeze(1)),
    ):
        tensors[f"{name}.weight"].zero_()
        tensors[f"{name}.bias"].copy_(values)
    return learner


def stepped(learner: Any, batch: TensorBatch = BATCH) -> dict[str, float]:
    opt_step(learner.algorithm, batch, 1)
    return dict(zip(SCALARS, sums(learner.algorithm), strict=True))


@pytest.mark.parametrize("alpha", [0.0, 0.2])
def test_an_opt_step_by_hand(alpha: float) -> None:
    value = sum(p * (q - alpha * log_p) for p, q, log_p in zip(P, (4.0, 2.0), LOG_P, strict=True))
    target = 1.0 + 0.9 * value
    expected = {
        "critic_loss": ((2.0 - target) ** 2 + (0.5 - target) ** 2) / 2,
        "policy_loss": sum(p * (alpha * log_p - q) for p, q, log_p in zip(P, (1.0, 0.5), LOG_P, strict=True)),
        "q_mean": 1.25,
        "target_mean": target,
        "entropy_coef": alpha,
        "entropy": ENTROPY,
    }
    scalars = stepped(agent(entropy_coef=alpha))
    assert {name: scalars[name] for name in expected} == pytest.approx(expected, rel=1e-5)


def test_the_gradient_of_the_policy_is_that_of_its_loss() -> None:
    learner, alpha = agent(entropy_coef=0.2), 0.2
    stepped(learner)

    def loss(logit: float) -> float:
        total = math.exp(LOGITS[0]) + math.exp(logit)
        p = math.exp(LOGITS[0]) / total, math.exp(logit) / total
        return sum(x * (alpha * math.log(x) - q) for x, q in zip(p, (1.0, 0.5), strict=True))

    slope = (loss(LOGITS[1] + 1e-5) - loss(LOGITS[1] - 1e-5)) / 2e-5
    first_moment = learner.algorithm.tensors()["policy.exp_avg.out.bias"][1].item()
    assert 10.0 * first_moment == pytest.approx(slope, rel=1e-3)  # Adam's average is 0.1 of it


def test_the_reward_alone_counts_where_terminated_and_weights_give_errors() -> None:
    over = replace(BATCH, terminated=T([True]), discount=T([0.0]), weight=T([0.5]))
    learner = agent(entropy_coef=0.0)
    errors = opt_step(learner.algorithm, over, 1)
    scalars = dict(zip(SCALARS, sums(learner.algorithm), strict=True))
    assert (scalars["target_mean"], scalars["critic_loss"]) == pytest.approx((1.0, 0.5 * (1.0 + 0.25) / 2))
    assert errors.tolist() == pytest.approx([0.75])  # the mean of 1 and 0.5


@pytest.mark.parametrize(("share", "rises"), [(1.0, True), (0.5, False)])
def test_the_entropy_coefficient_rises_while_the_entropy_is_below_its_target(
    share: float, rises: bool
) -> None:
    learner = agent(target_entropy=share)  # the entropy is 0.81 of log 2
    stepped(learner)
    assert (learner.algorithm.tensors()["alpha.params.log"].item() > 0.0) is rises


def test_actions_are_drawn_by_their_probabilities_after_uniform_ones() -> None:
    learner, obs = agent(random_env_steps=100), {"obs": np.zeros((20_000, 1), np.float32)}
    assert learner.sample(obs, 99).mean() == pytest.approx(0.5, abs=0.02)
    assert learner.sample(obs, 100).mean() == pytest.approx(0.75, abs=0.02)
    learner.eval()
    assert (learner.sample(obs) == 1).all()


def test_a_forbidden_action_has_no_probability_and_no_part_in_the_entropy() -> None:
    mask = ObsLeaf("mask", ("action_mask",), "multi_binary", (3,), "int8")
    spec = EnvSpec(ObsSpec((OBS, mask)), ActionSpec("discrete", n=3))
    log_p = log_probabilities(T([[0.0, 0.0, 9.0]]), {"mask": T([[1, 1, 0]])}, spec)
    p = log_p.exp()
    assert p.tolist() == [[0.5, 0.5, 0.0]]
    assert -(p * log_p).sum().item() == pytest.approx(math.log(2.0))


def test_two_actions_at_once_by_hand() -> None:
    """The first has two values, the second three. The outputs 9.0 of the first would be its third value."""
    spec = EnvSpec(
        ObsSpec((OBS,)), ActionSpec("multi_discrete", 3, shape=(2,), low=(0.0, 0.0), high=(1.0, 2.0))
    )
    learner: Any = make_agent(DsacConfig(hidden=[], batch_size=1, critics=1, entropy_coef=0.2), spec, 0)
    tensors: dict[str, Tensor] = learner.algorithm.tensors()
    for name, values in (
        ("policy.params.out", T([*LOGITS, 9.0, 0.0, 0.0, 0.0])),
        ("critics.params.layers.0", T([[[1.0, 0.5, 9.0, 3.0, 6.0, 9.0]]])),
        ("critics_target.layers.0", T([[[4.0, 2.0, 9.0, 1.0, 2.0, 3.0]]])),
    ):
        tensors[f"{name}.weight"].zero_()
        tensors[f"{name}.bias"].copy_(values)
    batch = TensorBatch(ROW, T([[1, 0]]), T([1.0]), T([0.9]), T([False]), ROW, weight=T([1.0]))
    # soft values of the next state: 1/4·4 + 3/4·2 = 2.5 and 2, plus 0.2 times the entropies; their mean bootstraps
    entropies = ENTROPY, math.log(3.0)
    target = 1.0 + 0.9 * (2.5 + 0.2 * entropies[0] + 2.0 + 0.2 * entropies[1]) / 2
    of_policy = -(0.25 * 1.0 + 0.75 * 0.5) - 6.0 - 0.2 * sum(entropies)
    errors = opt_step(learner.algorithm, batch, 1)
    scalars = dict(zip(SCALARS, sums(learner.algorithm), strict=True))
    expected = {
        "critic_loss": ((0.5 - target) ** 2 + (3.0 - target) ** 2) / 4,
        "policy_loss": of_policy / 2,
        "target_mean": target,
        "entropy": sum(entropies) / 2,
    }
    assert {name: scalars[name] for name in expected} == pytest.approx(expected, rel=1e-5)
    assert errors.tolist() == pytest.approx([(target - 0.5 + abs(target - 3.0)) / 2])
    learner.eval()
    assert learner.sample({"obs": np.zeros((2, 1), np.float32)})[:, 0].tolist() == [1, 1]


def test_the_target_entropy_of_several_actions_is_the_mean_of_theirs() -> None:
    """A policy of uniform actions has the largest entropy: no coefficient has to rise for the whole of it."""
    spec = EnvSpec(
        ObsSpec((OBS,)), ActionSpec("multi_discrete", 3, shape=(2,), low=(0.0, 0.0), high=(1.0, 2.0))
    )
    for share, falls in ((0.99, True), (1.0, False)):
        learner: Any = make_agent(DsacConfig(hidden=[], batch_size=1, target_entropy=share), spec, 0)
        tensors: dict[str, Tensor] = learner.algorithm.tensors()
        for part in ("weight", "bias"):
            tensors[f"policy.params.out.{part}"].zero_()
        batch = TensorBatch(ROW, T([[1, 0]]), T([1.0]), T([0.9]), T([False]), ROW)
        opt_step(learner.algorithm, batch, 1)
        assert (tensors["alpha.params.log"].item() < -1e-6) is falls


def test_a_box_of_actions_is_refused() -> None:
    box = EnvSpec(SPEC.obs, ActionSpec("box", low=(-1.0,), high=(1.0,), shape=(1,)))
    with pytest.raises(UsageError, match="chooses among discrete actions"):
        make_agent(DsacConfig(), box, 0)
