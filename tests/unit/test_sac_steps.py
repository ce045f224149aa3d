"""Complete opt steps of the actor-critic agents against values by hand."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch

from border_cli.agents.actor_critic import SCALARS
from border_cli.agents.params import TensorBatch
from border_cli.agents.sac.agent import StepNoise, make_agent
from border_cli.agents.sac.config import SacConfig, Td3Config, TqcConfig
from tests.learners import opt_step, sums
from tests.unit.test_sac import T, small, spec


def batch(n: int = 4, weight: torch.Tensor | None = None) -> TensorBatch:
    rng = torch.Generator().manual_seed(1)
    return TensorBatch(
        {"obs": torch.randn(n, 3, generator=rng)}, torch.rand(n, 1, generator=rng), torch.ones(n),
        torch.full((n,), 0.9), torch.zeros(n, dtype=torch.bool), {"obs": torch.randn(n, 3, generator=rng)}, weight,
    )  # fmt: skip


def linear_algorithm(
    cls: type[SacConfig], policy: list[float], critics: Any, target: Any, **changes: Any
) -> Any:
    """Return an algorithm whose networks use only the action.

    policy: output of the policy network · critics, target: (n, k, 2) constant and slope over the action in [-1, 1].
    """
    algorithm = make_agent(small(cls, hidden=[], critics=len(critics), **changes), spec(), 0).algorithm
    tensors = algorithm.tensors()
    for label in ("policy.params", "policy_target"):
        if f"{label}.out.bias" in tensors:
            tensors[f"{label}.out.weight"].zero_()
            tensors[f"{label}.out.bias"].copy_(T(policy))
    for label, wanted in (("critics.params", T(critics)), ("critics_target", T(target))):
        tensors[f"{label}.layers.0.weight"].zero_()
        tensors[f"{label}.layers.0.weight"][:, -1, :] = wanted[..., 1]
        tensors[f"{label}.layers.0.bias"].copy_(wanted[:, None, :, 0])
    return algorithm


OBS = {"obs": T([[0.3, -0.2, 0.1]])}
ROW = TensorBatch(OBS, T([[1.0]]), T([1.0]), T([0.9]), T([False]), OBS)
"""Action 0.5 in units of half the range, reward 1, discount 0.9."""


def step_of(algorithm: Any, z: float, next_z: float, **others: Any) -> dict[str, float]:
    """Run an opt step with these standard normal numbers for the action and the next action, and other random numbers."""
    noise = StepNoise(T([[z]]), T([[next_z]]), **others)
    algorithm.step(ROW, noise, 1.0, 1)
    return dict(zip(SCALARS, sums(algorithm), strict=True))


def log_prob(mean: float, std: float, z: float) -> float:
    """Return the log-density of an action in [-1, 1]."""
    u = mean + std * z
    return -(z**2) / 2 - math.log(std) - math.log(2 * math.pi) / 2 - math.log(1 - math.tanh(u) ** 2)


def policy_gradient(algorithm: Any) -> list[float]:
    """Return the gradient of the first opt step by the biases of the policy's output: Adam's average is 0.1 of it."""
    return [10.0 * x for x in algorithm.tensors()["policy.exp_avg.out.bias"].tolist()]


def slopes(loss: Callable[[float, float], float], mean: float, log_std: float) -> list[float]:
    """Return central differences by the mean and the logarithm of the standard deviation."""
    h = 1e-5
    by_mean = (loss(mean + h, log_std) - loss(mean - h, log_std)) / (2 * h)
    return [by_mean, (loss(mean, log_std + h) - loss(mean, log_std - h)) / (2 * h)]


ONLINE, TARGET = [[[1.0, 2.0]], [[3.0, 1.0]]], [[[5.0, 1.0]], [[4.0, 2.0]]]


def test_an_opt_step_of_sac_by_hand() -> None:
    algorithm = linear_algorithm(SacConfig, [0.3, math.log(0.5)], ONLINE, TARGET, entropy_coef=0.2)
    scalars = step_of(algorithm, 1.0, -0.4)
    later = min(5 + math.tanh(0.1), 4 + 2 * math.tanh(0.1)) - 0.2 * log_prob(0.3, 0.5, -0.4)
    y, entropy = 1 + 0.9 * later, -log_prob(0.3, 0.5, 1.0)
    assert scalars["target_mean"] == pytest.approx(y, rel=1e-5)
    assert scalars["q_mean"] == pytest.approx((2.0 + 3.5) / 2)
    assert scalars["critic_loss"] == pytest.approx(0.5 * (2.0 - y) ** 2 + 0.5 * (3.5 - y) ** 2, rel=1e-5)
    assert scalars["entropy"] == pytest.approx(entropy, rel=1e-5)
    assert scalars["policy_loss"] == pytest.approx(-0.2 * entropy - (1 + 2 * math.tanh(0.8)), rel=1e-5)

    def loss(mean: float, log_std: float) -> float:
        std = math.exp(log_std)
        return 0.2 * log_prob(mean, std, 1.0) - (1 + 2 * math.tanh(mean + std))

    assert policy_gradient(algorithm) == pytest.approx(slopes(loss, 0.3, math.log(0.5)), rel=1e-4)


def test_an_opt_step_of_td3_by_hand() -> None:
    algorithm = linear_algorithm(Td3Config, [0.2], ONLINE, TARGET, target_noise_clip=0.1)
    algorithm.tensors()["policy_target.out.bias"].fill_(0.5)
    # no noise on the action of the policy, and 0.2·3 clipped to 0.1 on the next action
    scalars = step_of(algorithm, 9.0, 3.0)
    y = 1 + 0.9 * (4 + 2 * (math.tanh(0.5) + 0.1))
    assert scalars["target_mean"] == pytest.approx(y, rel=1e-5)
    assert scalars["critic_loss"] == pytest.approx(0.5 * (2.0 - y) ** 2 + 0.5 * (3.5 - y) ** 2, rel=1e-5)
    assert scalars["policy_loss"] == pytest.approx(-(1 + 2 * math.tanh(0.2)), rel=1e-5)
    assert policy_gradient(algorithm) == pytest.approx([-2 * (1 - math.tanh(0.2) ** 2)], rel=1e-5)
    assert (scalars["entropy"], scalars["entropy_coef"]) == (0.0, 0.0)


def test_an_opt_step_of_tqc_by_hand() -> None:
    online = [[[1.0, 0.0], [2.0, 0.0], [3.0, 0.0]], [[5.0, 0.0], [6.0, 0.0], [7.0, 0.0]]]
    target = [[[1.0, 0.0], [5.0, 0.0], [3.0, 0.0]], [[9.0, 0.0], [2.0, 0.0], [4.0, 0.0]]]
    changes = {"quantiles": 3, "drop_quantiles": 1, "entropy_coef": 0.2}
    algorithm = linear_algorithm(TqcConfig, [0.3, math.log(0.5)], online, target, **changes)
    scalars = step_of(algorithm, 1.0, -0.4)
    y = 1 + 0.9 * ((1 + 2 + 3 + 4) / 4 - 0.2 * log_prob(0.3, 0.5, -0.4))
    assert scalars["target_mean"] == pytest.approx(y, rel=1e-5)
    assert scalars["q_mean"] == pytest.approx(4.0)
    assert scalars["policy_loss"] == pytest.approx(0.2 * log_prob(0.3, 0.5, 1.0) - 4.0, rel=1e-5)
    expected = slopes(lambda mean, log_std: 0.2 * log_prob(mean, math.exp(log_std), 1.0), 0.3, math.log(0.5))
    assert policy_gradient(algorithm) == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize(("subset", "least"), [([0, 2], 2.0), ([1, 0], 4.0), ([1], 5.0)])
def test_a_subset_of_critics_decides_the_target_and_all_of_them_the_policy(
    subset: list[int], least: float
) -> None:
    online = [[[1.0, 2.0]], [[3.0, 1.0]], [[8.0, -4.0]]]
    target = [[[4.0, 0.0]], [[5.0, 0.0]], [[2.0, 0.0]]]
    changes = {"critic_subset": len(subset)}
    algorithm = linear_algorithm(SacConfig, [0.3, math.log(0.5)], online, target, entropy_coef=0.2, **changes)
    scalars = step_of(algorithm, 1.0, -0.4, subset=T(subset))
    later = least - 0.2 * log_prob(0.3, 0.5, -0.4)
    assert scalars["target_mean"] == pytest.approx(1 + 0.9 * later, rel=1e-5)
    q = (1 + 3 + 8) / 3 + (2 + 1 - 4) / 3 * math.tanh(0.8)
    assert scalars["policy_loss"] == pytest.approx(0.2 * log_prob(0.3, 0.5, 1.0) - q, rel=1e-5)
    algorithm = linear_algorithm(Td3Config, [0.2], online, target, **changes)
    q = (1 + 3 + 8) / 3 + (2 + 1 - 4) / 3 * math.tanh(0.2)
    assert step_of(algorithm, 0.0, 0.0, subset=T(subset))["policy_loss"] == pytest.approx(-q, rel=1e-5)


def test_each_opt_step_draws_other_critics_and_other_units() -> None:
    config = small(critics=4, critic_subset=2, critic_dropout=0.25, critic_hidden=[8, 16])
    algorithm = make_agent(config, spec(), 0).algorithm
    noises = [algorithm.noise(4) for _ in range(300)]
    pairs = Counter(tuple(sorted(noise.subset.tolist())) for noise in noises)
    assert len(pairs) == 6 and min(pairs.values()) > 300 / 6 / 2  # of different critics, all about as often
    factors = torch.stack([torch.stack([noise.dropout, noise.next_dropout]) for noise in noises])
    assert factors.shape == (300, 2, 4, 4, 24) and set(factors.unique().tolist()) == {0.0, T(4 / 3).item()}
    assert factors.mean().item() == pytest.approx(1.0, abs=0.01)
    assert len(torch.unique(factors.flatten(2), dim=1)[0]) == 2 and (factors[0] != factors[1]).any()


@pytest.mark.parametrize("dropped", ["dropout", "next_dropout"])
def test_units_of_the_critics_are_dropped_in_all_three_losses(dropped: str) -> None:
    """A critic without hidden units gives the bias of its last layer."""
    learner = make_agent(small(critic_dropout=0.5, entropy_coef=0.0), spec(), 0)
    tensors = learner.algorithm.tensors()
    for name in ("critics.params", "critics_target"):
        tensors[f"{name}.layers.1.bias"].copy_(T([2.0, 4.0]).view(2, 1, 1))
    factors: dict[str, Any] = dict.fromkeys(("dropout", "next_dropout"), torch.ones(2, 1, 8))
    scalars = step_of(learner.algorithm, 1.0, 0.0, **factors | {dropped: torch.zeros(2, 1, 8)})
    are_online = scalars["q_mean"] == pytest.approx(3.0), scalars["policy_loss"] == pytest.approx(-2.0)
    assert are_online == (dropped == "dropout",) * 2
    assert (scalars["target_mean"] == pytest.approx(1 + 0.9 * 2.0)) is (dropped == "next_dropout")


@pytest.mark.parametrize(("beyond", "sign"), [(-0.1, -1), (0.1, 1)])
def test_a_learned_coefficient_moves_the_entropy_to_its_target(beyond: float, sign: int) -> None:
    wanted = -log_prob(0.3, 0.5, 1.0) + beyond
    changes = {"target_entropy": wanted, "lr": 0.01}
    algorithm = linear_algorithm(SacConfig, [0.3, math.log(0.5)], ONLINE, TARGET, **changes)
    step_of(algorithm, 1.0, -0.4)
    assert algorithm.state.nets["alpha"].params.item() == pytest.approx(sign * 0.01, rel=1e-3)


@pytest.mark.parametrize("number", [1, 2])
def test_policy_metrics_are_means_over_opt_steps_that_update_the_policy(number: int) -> None:
    algorithm = make_agent(small(Td3Config), spec(), 0).algorithm
    for n in range(number, number + 3):  # one or two of three opt steps have an even number
        opt_step(algorithm, batch(), n)
    totals = dict(zip(SCALARS, sums(algorithm), strict=True))
    means = dict(zip(SCALARS, algorithm.state.stats.read()[0], strict=True))
    assert means["policy_loss"] == pytest.approx(totals["policy_loss"] / number)
    assert means["critic_loss"] == pytest.approx(totals["critic_loss"] / 3)
    opt_step(algorithm, batch(), 1)
    means = dict(zip(SCALARS, algorithm.state.stats.read()[0], strict=True))
    assert {name for name, mean in means.items() if mean is None} == {"policy_loss", "entropy"}


def test_the_policy_and_the_targets_of_td3_change_every_second_opt_step() -> None:
    algorithm = make_agent(small(Td3Config, target_tau=0.25), spec(), 0).algorithm
    for number, changed in ((1, {"critics"}), (2, {"critics", "policy", "critics_target", "policy_target"})):
        before = {name: tensor.clone() for name, tensor in algorithm.tensors().items()}
        opt_step(algorithm, batch(), number)
        algorithm.update_targets(number)
        after = algorithm.tensors()
        networks = {name.partition(".")[0] for name in after if not torch.equal(after[name], before[name])}
        assert networks - {"stats"} == changed
    algorithm.state.nets["critics"].params += 1.0
    before = algorithm.state.targets["critics_target"].clone()
    algorithm.update_targets(2)
    moved = 0.25 * (algorithm.state.nets["critics"].params - before)
    assert torch.allclose(algorithm.state.targets["critics_target"] - before, moved)


def test_importance_weights_scale_the_rows() -> None:
    """A row of weight 0 has no effect except on the divisor of the mean."""
    moments = []
    for weight, n in ((T([2.0, 0.0]), 2), (None, 1)):
        algorithm, whole = make_agent(small(Td3Config), spec(), 0).algorithm, batch(2)
        part = TensorBatch(
            {"obs": whole.obs["obs"][:n]}, whole.action[:n], whole.reward[:n], whole.discount[:n],
            torch.ones(n, dtype=torch.bool), {"obs": whole.next_obs["obs"][:n]}, weight,
        )  # fmt: skip
        opt_step(algorithm, part, 1)
        moments.append(algorithm.state.nets["critics"].exp_avg)
    assert torch.allclose(*moments, atol=1e-7)


def test_a_coefficient_near_zero_can_grow_again() -> None:
    algorithm = make_agent(small(target_entropy=100.0, lr=0.01), spec(), 0).algorithm
    algorithm.state.nets["alpha"].params.fill_(-150.0)
    opt_step(algorithm, batch(), 1)
    assert algorithm.state.stats.skipped_in_a_row.item() == 0
    assert algorithm.state.nets["alpha"].params.item() > -150.0
