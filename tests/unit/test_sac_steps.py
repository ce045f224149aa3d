"""Whole opt steps of the actor-critic family, against values computed by hand."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from border_cli.agents.batches import TensorBatch
from border_cli.agents.sac.agent import make_agent
from border_cli.agents.sac.config import SacConfig, Td3Config, TqcConfig
from border_cli.agents.sac.loss import (
    SCALARS,
    StepDraws,
    opt_step,
    update_targets,
)
from border_cli.core.state import State
from tests.unit.test_sac import NO, T, small, spec


def batch(n: int = 4, weight: torch.Tensor | None = None) -> TensorBatch:
    rng = torch.Generator().manual_seed(1)
    return TensorBatch(
        {"obs": torch.randn(n, 3, generator=rng)}, torch.rand(n, 1, generator=rng), torch.ones(n),
        torch.full((n,), 0.9), torch.zeros(n, dtype=torch.bool), {"obs": torch.randn(n, 3, generator=rng)}, weight,
    )  # fmt: skip


def linear_rule(cls: type[SacConfig], policy: list[float], critics: Any, target: Any, **changes: Any) -> Any:
    """A rule whose networks see the action alone.

    policy: what its network gives · critics, target: (n, k, 2) constant and slope by the action scaled to [-1, 1].
    """
    rule = make_agent(small(cls, hidden=[], **changes), spec(), 0)._rule
    for label, (net, vector) in rule.vectors().items():
        views = net.views(vector)
        if label in ("policy", "policy_target"):
            vector.zero_()
            views["out.bias"].copy_(T(policy))
        if label in ("critics", "critics_target"):
            wanted = T(critics if label == "critics" else target)
            vector.zero_()
            views["layers.0.bias"].copy_(wanted[:, None, :, 0])
            views["layers.0.weight"][:, -1, :] = wanted[..., 1]
    return rule


def one_row() -> TensorBatch:
    """The action is 0.5 of half the range; the reward is 1 and the discount 0.9."""
    one = {"obs": T([[0.3, -0.2, 0.1]])}
    return TensorBatch(one, T([[1.0]]), T([1.0]), T([0.9]), NO, one)


def step_of(rule: Any, z: float, next_z: float) -> dict[str, float]:
    """What an opt step with these normal numbers, for the action and for the next one, yields."""
    draws = StepDraws(T([[z]]), T([[next_z]]))
    opt_step(rule._networks, rule._rules, rule.state, one_row(), draws)
    return dict(zip(SCALARS, rule.outcome.sums.tolist(), strict=True))


def log_prob(mean: float, std: float, z: float) -> float:
    """Of an action scaled to [-1, 1]."""
    u = mean + std * z
    return -(z**2) / 2 - math.log(std) - math.log(2 * math.pi) / 2 - math.log(1 - math.tanh(u) ** 2)


ONLINE, TARGET = [[[1.0, 2.0]], [[3.0, 1.0]]], [[[5.0, 1.0]], [[4.0, 2.0]]]


def test_an_opt_step_of_sac_by_hand() -> None:
    rule = linear_rule(SacConfig, [0.3, math.log(0.5)], ONLINE, TARGET, entropy_coef=0.2)
    found = step_of(rule, 1.0, -0.4)
    later = min(5 + math.tanh(0.1), 4 + 2 * math.tanh(0.1)) - 0.2 * log_prob(0.3, 0.5, -0.4)
    y, entropy = 1 + 0.9 * later, -log_prob(0.3, 0.5, 1.0)
    assert found["target_mean"] == pytest.approx(y, rel=1e-5)
    assert found["q_mean"] == pytest.approx((2.0 + 3.5) / 2)
    assert found["critic_loss"] == pytest.approx(0.5 * (2.0 - y) ** 2 + 0.5 * (3.5 - y) ** 2, rel=1e-5)
    assert found["entropy"] == pytest.approx(entropy, rel=1e-5)
    assert found["policy_loss"] == pytest.approx(-0.2 * entropy - (1 + 2 * math.tanh(0.8)), rel=1e-5)


def test_an_opt_step_of_td3_by_hand() -> None:
    rule = linear_rule(Td3Config, [0.2], ONLINE, TARGET, target_noise_clip=0.1)
    net, vector = rule.vectors()["policy_target"]
    net.views(vector)["out.bias"].fill_(0.5)
    found = step_of(
        rule, 9.0, 3.0
    )  # no noise on the policy's own action, and 0.2·3 clipped to 0.1 on the next
    y = 1 + 0.9 * (4 + 2 * (math.tanh(0.5) + 0.1))
    assert found["target_mean"] == pytest.approx(y, rel=1e-5)
    assert found["critic_loss"] == pytest.approx(0.5 * (2.0 - y) ** 2 + 0.5 * (3.5 - y) ** 2, rel=1e-5)
    assert found["policy_loss"] == pytest.approx(-(1 + 2 * math.tanh(0.2)), rel=1e-5)
    assert (found["entropy"], found["entropy_coef"]) == (0.0, 0.0)


def test_an_opt_step_of_tqc_by_hand() -> None:
    online = [[[1.0, 0.0], [2.0, 0.0], [3.0, 0.0]], [[5.0, 0.0], [6.0, 0.0], [7.0, 0.0]]]
    target = [[[1.0, 0.0], [5.0, 0.0], [3.0, 0.0]], [[9.0, 0.0], [2.0, 0.0], [4.0, 0.0]]]
    changes = {"quantiles": 3, "drop_quantiles": 1, "entropy_coef": 0.2}
    rule = linear_rule(TqcConfig, [0.3, math.log(0.5)], online, target, **changes)
    found = step_of(rule, 1.0, -0.4)
    y = 1 + 0.9 * ((1 + 2 + 3 + 4) / 4 - 0.2 * log_prob(0.3, 0.5, -0.4))
    assert found["target_mean"] == pytest.approx(y, rel=1e-5)
    assert found["q_mean"] == pytest.approx(4.0)
    assert found["policy_loss"] == pytest.approx(0.2 * log_prob(0.3, 0.5, 1.0) - 4.0, rel=1e-5)


@pytest.mark.parametrize(("beyond", "sign"), [(-0.1, -1), (0.1, 1)])
def test_a_learnt_coefficient_compares_the_policys_entropy_with_the_wanted_one(
    beyond: float, sign: int
) -> None:
    wanted = -log_prob(0.3, 0.5, 1.0) + beyond
    rule = linear_rule(SacConfig, [0.3, math.log(0.5)], ONLINE, TARGET, target_entropy=wanted, lr=0.01)
    step_of(rule, 1.0, -0.4)
    assert rule.state.coef.weights.item() == pytest.approx(sign * 0.01, rel=1e-3)


@pytest.mark.parametrize("number", [1, 2])
def test_the_policys_means_are_over_the_opt_steps_that_changed_it(number: int) -> None:
    agent = make_agent(small(Td3Config), spec(), 0)
    rule = agent._rule
    steps = range(1, 4) if number == 1 else range(2, 5)  # one of three is even, or two
    for n in steps:
        rule.opt_step(batch(), n)
    sums, _ = rule.outcome.read()
    totals = dict(zip(SCALARS, sums, strict=True))
    assert rule.counts()["policy_steps"].item() == number
    found = rule.means(sums, 3)
    assert found["policy_loss"] == pytest.approx(totals["policy_loss"] / number)
    assert found["critic_loss"] == pytest.approx(totals["critic_loss"] / 3)
    assert rule.counts()["policy_steps"].item() == 0
    rule.opt_step(batch(), 1)
    assert not {"policy_loss", "entropy"} & set(rule.means(rule.outcome.read()[0], 1))


def test_a_checkpoint_that_did_not_count_the_policys_steps_is_gone_on_from() -> None:
    """Its sums were scaled to stand for all opt steps."""
    agent = make_agent(small(Td3Config), spec(), 0)
    for number in (1, 2, 3):
        agent._rule.opt_step(batch(), number)
    state = agent.state()
    values = {name: value for name, value in state.values.items() if name != "policy_steps"}
    other = make_agent(small(Td3Config), spec(), 1)
    other.load_state(State(state.arrays, values | {"unread": 3}))
    assert other._rule.counts()["policy_steps"].item() == 3
    other.load_state(State(state.arrays, dict(state.values)))
    assert other._rule.counts()["policy_steps"].item() == 1


def test_targets_move_by_target_tau() -> None:
    rule = make_agent(small(target_tau=0.25), spec(), 0)._rule
    rule.state.critics.weights += 1.0
    before = rule.state.critics_target.clone()
    rule.update_targets(1)
    assert torch.allclose(rule.state.critics_target - before, T(0.25))


def vectors(rule: Any) -> dict[str, list[float]]:
    return {label: vector.tolist() for label, (_, vector) in rule.vectors().items()}


def test_the_policy_and_the_targets_of_td3_change_every_second_opt_step() -> None:
    rule = make_agent(small(Td3Config), spec(), 0)._rule
    for number, changed in ((1, {"critics"}), (2, {"critics", "policy", "critics_target", "policy_target"})):
        before = vectors(rule)
        rule.opt_step(batch(), number)
        rule.update_targets(number)
        after = vectors(rule)
        assert {label for label in after if after[label] != before[label] and "adam" not in label} == changed


@pytest.mark.parametrize("cls", [SacConfig, Td3Config, TqcConfig])
def test_e1_a_bad_step_changes_nothing(cls: type[SacConfig]) -> None:
    rule = make_agent(small(cls), spec(), 0)._rule
    before, bad = vectors(rule), batch()
    bad.reward[2], bad.weight = math.nan, torch.ones(4)
    errors = rule.opt_step(bad, 2)
    assert vectors(rule) == before
    assert rule.outcome.skipped_in_a_row.item() == 1
    assert errors.isnan().tolist() == [False, False, True, False]


def test_a_learnt_coefficient_falls_while_there_is_more_entropy_than_wanted() -> None:
    for target, sign in ((-100.0, -1), (100.0, 1)):
        rule = make_agent(small(target_entropy=target, lr=0.01), spec(), 0)._rule
        rule.opt_step(batch(), 1)
        # Adam's first step is the step size, against the sign of the gradient
        assert rule.state.coef.weights.item() == pytest.approx(sign * 0.01, rel=1e-3)


def test_the_wanted_entropy_follows_from_the_action_space() -> None:
    rule = make_agent(small(), spec((-2.0, 0.0), (2.0, 1.0)), 0)._rule
    assert rule._rules.target_entropy == -2.0


def test_a_fixed_coefficient_is_no_weight() -> None:
    agent = make_agent(small(entropy_coef=0.1), spec(), 0)
    assert not any(name.startswith("coef") for name in agent.state().arrays)
    rule = agent._rule
    rule.opt_step(batch(), 1)
    index = SCALARS.index("entropy_coef")
    assert rule.outcome.sums[index].item() == pytest.approx(0.1)


def test_targets_move_by_their_share() -> None:
    rule = make_agent(small(Td3Config), spec(), 0)._rule
    rule.state.critics.weights += 1.0
    before = rule.state.critics_target.clone()
    update_targets(rule.state, 0.25)
    assert torch.allclose(rule.state.critics_target - before, T(0.25))


def test_importance_weights_weigh_the_rows() -> None:
    """A row of weight 0 is as if it were not there, but for the number that is divided by."""
    moments = []
    for weight, n in ((T([2.0, 0.0]), 2), (None, 1)):
        rule, whole = make_agent(small(Td3Config), spec(), 0)._rule, batch(2)
        part = TensorBatch(
            {"obs": whole.obs["obs"][:n]}, whole.action[:n], whole.reward[:n], whole.discount[:n],
            torch.ones(n, dtype=torch.bool), {"obs": whole.next_obs["obs"][:n]}, weight,
        )  # fmt: skip
        rule.opt_step(part, 1)
        moments.append(rule.state.critics.mean)
    assert torch.allclose(*moments, atol=1e-7)


def test_a_coefficient_that_has_become_nothing_can_grow_again() -> None:
    rule = make_agent(small(target_entropy=100.0, lr=0.01), spec(), 0)._rule
    rule.state.coef.weights.fill_(-150.0)
    rule.opt_step(batch(), 1)
    assert rule.outcome.skipped_in_a_row.item() == 0
    assert rule.state.coef.weights.item() > -150.0
