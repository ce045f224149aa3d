"""DQN's opt step, exploration and records against values computed by hand."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
import torch

from border_cli.actors.sampler import RowProcessor
from border_cli.agents.agent import NetworkAgent
from border_cli.agents.dqn.agent import (
    NO_STEP_NOISE,
    DqnAlgorithm,
    StepNoise,
    make_agent,
    make_policy,
)
from border_cli.agents.dqn.config import DqnConfig
from border_cli.agents.dqn.network import NO_NOISE, Noise
from border_cli.agents.params import LearnerState, TensorBatch
from border_cli.config.schema import BufferConfig
from border_cli.core.errors import UsageError
from border_cli.core.spaces import ActionSpec, EnvSpec, ObsLeaf, ObsSpec
from border_cli.replay.buffer import Returns, RowReplayBuffer, make_buffer
from tests.fakes import processed
from tests.learners import sums
from tests.unit.test_step_processor import SPEC, step

T = torch.tensor


class Linear(torch.nn.Module):
    """Q(s, a) = w_a · s plus the noise of the action, and plus the level τ if quantiles are drawn."""

    noise_size = 0

    def __init__(self) -> None:
        super().__init__()
        self.w = torch.nn.Parameter(T([2.0, 1.0]))

    def forward(self, obs: dict[str, torch.Tensor], noise: Noise = NO_NOISE) -> torch.Tensor:
        q = (obs["obs"] * self.w).unsqueeze(-1)
        if noise.normal is not None:
            q = q + noise.normal[:, None]
        return q if noise.tau is None else q + noise.tau.unsqueeze(1)


# s = 1, a = 0, r = 1, s' = 2, γ = 0.5
BATCH = TensorBatch({"obs": T([[1.0]])}, T([0]), T([1.0]), T([0.5]), T([False]), {"obs": T([[2.0]])})


def after_opt_step(
    config: DqnConfig,
    target_weights: tuple[float, float] = (2.0, 1.0),
    batch: TensorBatch = BATCH,
    noise: StepNoise = NO_STEP_NOISE,
) -> tuple[LearnerState, list[float]]:
    """Do an opt step of `Linear`. Returns the state, and loss, Q, target and gradient norm."""
    algorithm = of_linear(config, target_weights, "mask" in batch.obs)
    algorithm.step(batch, noise, 1.0, 0)
    return algorithm.state, sums(algorithm)


def of_linear(
    config: DqnConfig, target_weights: tuple[float, float] = (2.0, 1.0), masked: bool = False
) -> DqnAlgorithm:
    """Return the algorithm of `Linear`. masked: the observation has the leaf "mask"."""
    obs = (ObsLeaf("obs", (), "box", (1,), "float32"),)
    mask = (ObsLeaf("mask", ("action_mask",), "multi_binary", (2,), "int8"),) if masked else ()
    spec = EnvSpec(ObsSpec((*obs, *mask)), ActionSpec("discrete", n=2))
    algorithm = DqnAlgorithm(config, spec, 0, {"online": Linear()}, torch.device("cpu"))
    algorithm.state.targets["target"].copy_(T(target_weights))
    return algorithm


@pytest.mark.parametrize(
    ("loss", "max_grad_norm", "recorded", "moment"),
    [
        ("mse", None, (1.0, 2.0, 3.0, 2.0), -0.2),  # (2 - 3)²; its gradient is 2·(2 - 3)·s = -2
        ("huber", None, (0.5, 2.0, 3.0, 1.0), -0.1),
        ("huber", 0.25, (0.5, 2.0, 3.0, 1.0), -0.025),  # the recorded norm is that before clipping
    ],
)
def test_loss_gradient_and_parameters_by_hand(
    loss: str, max_grad_norm: float | None, recorded: tuple[float, ...], moment: float
) -> None:
    """Q = 2, target = 1 + 0.5·max(4, 2) = 3. Adam's first step is lr against the gradient's sign."""
    state, scalars = after_opt_step(DqnConfig(loss=loss, lr=0.1, max_grad_norm=max_grad_norm))
    assert scalars == pytest.approx(recorded)
    assert state.nets["online"].params.tolist() == pytest.approx([2.1, 1.0], abs=1e-6)
    assert state.nets["online"].exp_avg.tolist() == pytest.approx([moment, 0.0], rel=1e-4)
    assert state.targets["target"].tolist() == [2.0, 1.0]


OVER = dataclasses.replace(BATCH, terminated=T([True]), next_obs={"obs": T([[math.inf]])})


@pytest.mark.parametrize(
    ("double", "batch", "forbidden", "target"),
    [
        (False, BATCH, [], 1 + 0.5 * 6),  # the best of the target network's values 2 and 6
        (
            True,
            BATCH,
            [],
            1 + 0.5 * 2,
        ),  # the target network's value of the best of the online network's 4 and 2
        (False, BATCH, [1], 1 + 0.5 * 2),
        (True, BATCH, [0], 1 + 0.5 * 6),
        (True, OVER, [], 1.0),
    ],
    ids=["single", "double", "single, masked", "double, masked", "terminated"],
)
def test_targets_by_hand(double: bool, batch: TensorBatch, forbidden: list[int], target: float) -> None:
    """Online weights are 2, 1 and target weights 1, 3. In s no action is forbidden."""
    allowed = torch.ones(1, 2)
    next_allowed = allowed.clone()
    next_allowed[0, forbidden] = 0
    batch = dataclasses.replace(
        batch, obs=batch.obs | {"mask": allowed}, next_obs=batch.next_obs | {"mask": next_allowed}
    )
    _, scalars = after_opt_step(DqnConfig(double=double, loss="mse"), (1.0, 3.0), batch)
    assert scalars[:3] == pytest.approx([(target - 2) ** 2, 2.0, target])


def test_an_implicit_quantile_step_uses_the_drawn_levels_by_hand() -> None:
    """θ = 2.1, 2.9 at τ = 0.1, 0.9; of s' = 2 the target's best action has 6 + 0.5: y = 1 + 0.5·6.5 = 4.25.

    Huber's losses of 2.15 and 1.35 are 1.65 and 0.85.
    """
    config = DqnConfig(head="implicit_quantile", double=False)
    levels = StepNoise(Noise(T([[0.1, 0.9]])), Noise(T([[0.5]])))
    _, scalars = after_opt_step(config, (1.0, 3.0), noise=levels)
    assert scalars[:3] == pytest.approx([0.1 * 1.65 + 0.9 * 0.85, 2.5, 4.25])


MUNCHAUSEN: dict[str, Any] = {"munchausen": 0.5, "munchausen_tau": 0.5, "loss": "mse"}
LOG_PI = np.log([1.0, np.e**4]) - np.log(1.0 + np.e**4)
"""In s = 1 the target network's values are 1 and 3, which the temperature 0.5 makes 2 and 6."""
NEXT_LOG_PI = np.log([1.0, np.e**8]) - np.log(1.0 + np.e**8)
"""In s' = 2 they are 2 and 6."""
SOFT = float((np.exp(NEXT_LOG_PI) * ([2.0, 6.0] - 0.5 * NEXT_LOG_PI)).sum())


@pytest.mark.parametrize(
    ("action", "clip", "batch", "forbidden", "target"),
    [
        (0, -9.0, BATCH, [], 1 + 0.5 * 0.5 * LOG_PI[0] + 0.5 * SOFT),
        (1, -9.0, BATCH, [], 1 + 0.5 * 0.5 * LOG_PI[1] + 0.5 * SOFT),
        (0, -1.5, BATCH, [], 1 + 0.5 * -1.5 + 0.5 * SOFT),  # 0.5·ln π is -2.009
        (0, -1.5, BATCH, [1], 1 + 0.5 * -1.5 + 0.5 * 2),  # one action is left, with log-probability 0
        (0, -1.5, BATCH, [0, 1], 1 + 0.5 * -1.5 + 0.5 * (4 + 0.5 * math.log(2))),  # both count as free
        (1, 0.0, OVER, [], 1.0),
    ],
    ids=["worse action", "best action", "clipped", "masked", "all masked", "terminated"],
)
def test_munchausen_targets_by_hand(
    action: int, clip: float, batch: TensorBatch, forbidden: list[int], target: float
) -> None:
    """Online weights are 2, 1 and target weights 1, 3."""
    allowed = torch.ones(1, 2)
    next_allowed = allowed.clone()
    next_allowed[0, forbidden] = 0
    obs, next_obs = batch.obs | {"mask": allowed}, batch.next_obs | {"mask": next_allowed}
    batch = dataclasses.replace(batch, action=T([action]), obs=obs, next_obs=next_obs)
    config = DqnConfig(**MUNCHAUSEN, munchausen_clip=clip)
    _, scalars = after_opt_step(config, (1.0, 3.0), batch)
    assert scalars[2] == pytest.approx(target, rel=1e-5)


def test_munchausen_targets_of_quantiles_by_hand() -> None:
    """The policy in s' is that of the means 2.5 and 6.5 of the target's quantiles, each of which has a target."""
    config = DqnConfig(**MUNCHAUSEN, head="implicit_quantile")
    tau, drawn = T([[0.1, 0.9]]), T([[0.25, 0.75]])
    algorithm = of_linear(config, (1.0, 3.0))
    with torch.no_grad():
        target = algorithm.targets(BATCH, StepNoise(Noise(tau), Noise(drawn)))
    bonus = max(0.5 * LOG_PI[0], -1.0)
    soft = [
        float((np.exp(NEXT_LOG_PI) * ([2.0 + d, 6.0 + d] - 0.5 * NEXT_LOG_PI)).sum()) for d in (0.25, 0.75)
    ]
    assert target[0].tolist() == pytest.approx([1 + 0.5 * bonus + 0.5 * value for value in soft], rel=1e-5)


@pytest.mark.parametrize("settings", [{"head": "categorical"}, {"gru": 4}])
def test_munchausen_targets_are_refused_where_they_are_not_defined(settings: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=r"agent\.munchausen is not for"):
        DqnConfig(munchausen=0.9, **settings).validate()


def test_each_pass_of_an_opt_step_has_its_own_noise_by_hand() -> None:
    """Q = 2 + 0.5; of s' = 2 the online network selects action 1, 2 + 10 over 4; y = 1 + 0.5·(6 + 0.2) = 4.1."""
    noise = StepNoise(*(Noise(normal=T(values)) for values in ([0.5, 0.0], [0.1, 0.2], [0.0, 10.0])))
    _, scalars = after_opt_step(DqnConfig(loss="mse"), (1.0, 3.0), noise=noise)
    assert scalars[1:3] == pytest.approx([2.5, 4.1])


@pytest.mark.parametrize(
    ("schedule", "scales"),
    [
        ("constant", [1.0, 1.0, 1.0, 1.0]),
        ("linear", [1.0, 0.8, 0.6, 0.2]),  # from 1 to 0.2 in 4 opt steps, in equal parts
        ("cosine", [1.0, 0.2 + 0.8 * (1 + math.sqrt(0.5)) / 2, 0.6, 0.2]),
    ],
)
def test_learning_rate_schedules_by_hand(schedule: str, scales: list[float]) -> None:
    config = DqnConfig(lr_schedule=schedule, lr_final=0.2, lr_opt_steps=4)
    assert [config.lr_scale(number) for number in (1, 2, 3, 5)] == pytest.approx(scales)
    assert config.lr_scale(100) == pytest.approx(scales[-1])


def test_epsilon_follows_global_env_steps() -> None:
    config = DqnConfig(epsilon_start=1.0, epsilon_final=0.2, epsilon_env_steps=100)
    epsilon = make_policy(config, SPEC, 0)._epsilon
    assert [epsilon(n) for n in (0, 50, 100, 10_000)] == pytest.approx([1.0, 0.6, 0.2, 0.2])


@pytest.mark.parametrize(
    ("values", "epsilon", "shares"),
    [
        ([1.0, 0.0], 0.3, [0.85, 0.15]),
        ([5.0, -np.inf, 1.0], 0.4, [0.8, 0.0, 0.2]),
        ([-np.inf, 3.0, 2.0], 0.4, [0.0, 0.8, 0.2]),
    ],
)
def test_exploration_is_uniform_and_allowed(values: list[float], epsilon: float, shares: list[float]) -> None:
    rows = np.tile(np.array([values, values[::-1]], np.float32), (20_000, 1))
    actions = make_policy(DqnConfig(), SPEC, 0)._chosen(rows, epsilon, np.random.default_rng(0))
    for row, expected in enumerate((shares, shares[::-1])):
        counts = np.bincount(actions[row::2], minlength=len(values))
        assert counts / 20_000 == pytest.approx(expected, abs=0.02)


# -- the agent ----------------------------------------------------------


def full_agent(**changes: Any) -> tuple[NetworkAgent, RowReplayBuffer]:
    """Return an agent with small networks, and a replay of five episodes of nine env steps with reward 1."""
    config = DqnConfig(**{"hidden": [8], "batch_size": 4, **changes})
    buffer = make_buffer(BufferConfig(capacity=100), SPEC, 0, returns=Returns(0.9))
    processor = RowProcessor(SPEC, 1)
    for t in range(45):
        buffer.push(processed(processor, step(t % 9, 1.0, terminated=t % 9 == 8)))
    return make_agent(config, SPEC, seed=5), buffer


@pytest.mark.parametrize("tau", [0.25, 1.0])
def test_targets_move_by_target_tau_every_target_interval(tau: float) -> None:
    agent, buffer = full_agent(target_interval=3, target_tau=tau)
    before = agent.algorithm.state.targets["target"].clone()
    for n in range(1, 4):
        agent.opt(buffer)
        assert torch.equal(agent.algorithm.state.targets["target"], before) == (n < 3)
    expected = before + tau * (agent.algorithm.state.nets["online"].params - before)
    assert torch.allclose(agent.algorithm.state.targets["target"], expected, atol=1e-7)


def test_recorded_metrics_are_means_since_the_last_record() -> None:
    (each, buffer), (rare, same_buffer) = full_agent(lr=0.1), full_agent(lr=0.1)
    singles = [each.opt(buffer, record=True).values for _ in range(3)]
    for _ in range(2):
        rare.opt(same_buffer)
    means = rare.opt(same_buffer, record=True).values
    assert set(means) >= {"agent/loss", "agent/q_mean", "agent/grad_norm"}
    for name, mean in means.items():
        assert mean == pytest.approx(sum(values[name] for values in singles) / 3), name
    assert singles[0] != singles[1]
    assert sums(rare.algorithm) == [0.0] * 4
