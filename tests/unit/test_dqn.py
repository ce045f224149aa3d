"""DQN against values computed by hand."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import torch

from border_cli.agents.agent import NetworkAgent
from border_cli.agents.dqn.agent import EpsilonSchedule, epsilon_greedy, epsilon_schedule, make_agent
from border_cli.agents.dqn.config import DqnConfig
from border_cli.agents.dqn.loss import (
    DqnNetworks,
    DqnState,
    ScalarHead,
    StepNoise,
    estimated_support,
    make_head,
    opt_step,
    td_target,
)
from border_cli.agents.dqn.network import NO_NOISE, Noise
from border_cli.agents.nets import Encoder
from border_cli.agents.params import FlatParams, TensorBatch
from border_cli.config.schema import BufferConfig
from border_cli.core.spaces import ObsLeaf, ObsSpec
from border_cli.replay.buffer import make_buffer
from border_cli.replay.n_step import NStepProcessor
from tests.faults.amounts import sampled
from tests.rows import processed
from tests.unit.test_step_processor import SPEC, step

T = torch.tensor
HEAD = ScalarHead("huber")


@pytest.mark.parametrize(
    ("outputs", "q_select", "terminated", "target"),
    [
        ([1.0, 3.0], [1.0, 3.0], False, 0.5 + 0.9 * 3.0),  # the best action of the target network
        ([1.0, 3.0], [7.0, 2.0], False, 0.5 + 0.9 * 1.0),  # double: the action chosen by the online network
        ([math.inf, 3.0], [math.inf, 3.0], True, 0.5),  # no bootstrap after termination
    ],
)
def test_td_target_by_hand(
    outputs: list[float], q_select: list[float], terminated: bool, target: float
) -> None:
    y = td_target(HEAD, T([outputs]).unsqueeze(-1), T([q_select]), T([0.5]), T([0.9]), T([terminated]))
    assert y.tolist() == [[pytest.approx(target)]]


class Table(torch.nn.Module):
    """Q(s, a) = w_a · s."""

    def __init__(self) -> None:
        super().__init__()
        self.w = torch.nn.Parameter(T([2.0, 1.0]))

    def forward(self, obs: dict[str, torch.Tensor], noise: Noise = NO_NOISE) -> torch.Tensor:
        return (obs["obs"] * self.w).unsqueeze(-1)


# s = 1, a = 0, r = 1, s' = 2, γ = 0.5
BATCH = TensorBatch({"obs": T([[1.0]])}, T([0]), T([1.0]), T([0.5]), T([False]), {"obs": T([[2.0]])})


def one_step(config: DqnConfig) -> tuple[DqnState, list[float]]:
    """Q = 2, target = 1 + 0.5·max(4, 2) = 3, error -1."""
    net = FlatParams(Table())
    state = DqnState.init(net.init())
    opt_step(DqnNetworks.bind(net, state), ScalarHead(config.loss), config, state, BATCH)
    return state, state.stats.sums.tolist()


def test_one_opt_step_by_hand() -> None:
    state, (loss, q, target, norm) = one_step(DqnConfig(loss="mse", lr=0.1, max_grad_norm=None))
    # (2 - 3)² = 1; its gradient with respect to w_0 is 2·(2 - 3)·1 = -2; Adam's first step is lr against its sign
    assert (loss, q, target, norm) == pytest.approx((1.0, 2.0, 3.0, 2.0))
    assert state.online.params.tolist() == pytest.approx([2.1, 1.0], abs=1e-6)
    assert state.target.tolist() == [2.0, 1.0]
    assert state.online.exp_avg.tolist() == pytest.approx([-0.2, 0.0])


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


def test_huber_and_clipping_by_hand() -> None:
    _, (loss, _, _, norm) = one_step(DqnConfig(loss="huber", max_grad_norm=None))
    assert (loss, norm) == pytest.approx((0.5, 1.0))
    state, (_, _, _, norm) = one_step(DqnConfig(loss="huber", max_grad_norm=0.25))
    assert norm == pytest.approx(1.0)  # the recorded norm is that before clipping
    assert state.online.exp_avg.tolist() == pytest.approx([-0.025, 0.0], rel=1e-4)


@pytest.mark.parametrize(
    ("double", "forbidden", "target"),
    [
        (False, None, 1 + 0.5 * 6),  # the best action by the target network's values 2 and 6
        (
            True,
            None,
            1 + 0.5 * 2,
        ),  # the best action by the online network's values 4 and 2, with the target network's value
        (False, 1, 1 + 0.5 * 2),
        (True, 0, 1 + 0.5 * 6),
    ],
)
def test_an_opt_step_uses_the_right_network_by_hand(
    double: bool, forbidden: int | None, target: float
) -> None:
    """Online weights are 2, 1 and target weights 1, 3 at s' = 2. In s no action is forbidden."""
    net = FlatParams(Table())
    state = DqnState.init(net.init())
    state.target.copy_(T([1.0, 3.0]))
    mask = T([[1, 1]])
    if forbidden is not None:
        mask[0, forbidden] = 0
    free = BATCH.obs | {"mask": T([[1, 1]])}
    batch = dataclasses.replace(BATCH, obs=free, next_obs=BATCH.next_obs | {"mask": mask})
    config = DqnConfig(double=double, loss="mse")
    opt_step(DqnNetworks.bind(net, state), ScalarHead("mse"), config, state, batch, mask="mask")
    loss, q, found, _ = state.stats.sums.tolist()
    assert (loss, q, found) == pytest.approx(((target - 2) ** 2, 2.0, target))


class Levels(Table):
    """Quantiles Q(s, a) = w_a · s + τ, with a drawn τ, or 0.5 in greedy acting."""

    def forward(self, obs: dict[str, torch.Tensor], noise: Noise = NO_NOISE) -> torch.Tensor:
        tau = T([[0.5]]) if noise.tau is None else noise.tau
        return super().forward(obs) + tau.unsqueeze(1)


def test_an_implicit_quantile_step_uses_the_drawn_levels_by_hand() -> None:
    """θ = 2.1, 2.9 at τ = 0.1, 0.9; of s' = 2 the target's best action has 6 + 0.5: y = 1 + 0.5·6.5 = 4.25.

    Huber's losses of 2.15 and 1.35 are 1.65 and 0.85.
    """
    net = FlatParams(Levels())
    state = DqnState.init(net.init())
    state.target.copy_(T([1.0, 3.0]))
    config = DqnConfig(head="implicit_quantile", double=False)
    noise = StepNoise(Noise(T([[0.1, 0.9]])), Noise(T([[0.5]])))
    opt_step(DqnNetworks.bind(net, state), make_head(config), config, state, BATCH, noise)
    loss, q, target, _ = state.stats.sums.tolist()
    assert (loss, q, target) == pytest.approx((0.1 * 1.65 + 0.9 * 0.85, 2.5, 4.25))


class Noisy(Table):
    """Q(s, a) = w_a · s + noise of the action."""

    def forward(self, obs: dict[str, torch.Tensor], noise: Noise = NO_NOISE) -> torch.Tensor:
        assert noise.normal is not None
        return super().forward(obs) + noise.normal[:, None]


def test_each_pass_of_an_opt_step_has_its_own_noise_by_hand() -> None:
    """Q = 2 + 0.5; of s' = 2 the online network selects action 1, 2 + 10 over 4; y = 1 + 0.5·(6 + 0.2) = 4.1."""
    net = FlatParams(Noisy())
    state = DqnState.init(net.init())
    state.target.copy_(T([1.0, 3.0]))
    drawn = (Noise(normal=T(normal)) for normal in ([0.5, 0.0], [0.1, 0.2], [0.0, 10.0]))
    config = DqnConfig(loss="mse")
    opt_step(DqnNetworks.bind(net, state), HEAD, config, state, BATCH, StepNoise(*drawn))
    _, q, target, _ = state.stats.sums.tolist()
    assert (q, target) == pytest.approx((2.5, 4.1))


def test_the_standard_deviations_of_noisy_layers_learn() -> None:
    agent, buffer = full_agent(noisy=True, hidden=[8, 8])
    agent.opt(buffer)
    tensors = agent.algorithm.tensors()
    moments = [tensor for name, tensor in tensors.items() if "exp_avg." in name and name.endswith("_std")]
    assert len(moments) == 4 and all(moment.abs().max() > 0 for moment in moments)


def test_epsilon_follows_global_env_steps() -> None:
    epsilon = EpsilonSchedule(1.0, 0.2, 100)
    assert [epsilon(n) for n in (0, 50, 100, 10_000)] == pytest.approx([1.0, 0.6, 0.2, 0.2])


@pytest.mark.parametrize(
    ("alpha", "actor", "n_actors", "power"),
    [(7.0, 0, 8, 1.0), (7.0, 7, 8, 8.0), (7.0, 0, 1, 1.0), (None, 3, 8, 1.0)],
)
def test_the_epsilon_ladder_of_ape_x(alpha: float | None, actor: int, n_actors: int, power: float) -> None:
    assert epsilon_schedule(DqnConfig(epsilon_ladder=alpha), actor, n_actors).power == power


def test_exploration_rate_and_stream() -> None:
    values = np.tile([1.0, 0.0], (100_000, 1))
    assert np.mean(epsilon_greedy(values, 0.3, np.random.default_rng(0), masked=False)) == pytest.approx(
        0.15, abs=0.01
    )
    rng = np.random.default_rng(0)
    epsilon_greedy(values, 0.0, rng, masked=False)
    assert rng.random() == np.random.default_rng(0).random()  # greedy acting draws no random number


def full_agent(**changes: object) -> tuple[NetworkAgent, object]:
    config = DqnConfig(**{"hidden": [8], "batch_size": 4, **changes})  # type: ignore[arg-type]
    buffer, processor = make_buffer(BufferConfig(capacity=100), SPEC, 0), NStepProcessor(SPEC, 1, 1, 0.9)
    for t in range(45):
        buffer.push(processed(processor, step(t % 9, 1.0, terminated=t % 9 == 8)))
    return make_agent(config, SPEC, seed=5), buffer


@pytest.mark.parametrize("tau", [0.25, 1.0])
def test_targets_move_by_target_tau_every_target_interval(tau: float) -> None:
    agent, buffer = full_agent(target_interval=3, target_tau=tau)
    before = agent.algorithm.state.target.clone()
    for n in range(1, 4):
        agent.opt(buffer)
        assert torch.equal(agent.algorithm.state.target, before) == (n < 3)
    expected = before + tau * (agent.algorithm.state.online.params - before)
    assert torch.allclose(agent.algorithm.state.target, expected, atol=1e-7)


def test_recorded_metrics_are_means_since_the_last_record() -> None:
    (each, one), (rare, other) = full_agent(lr=0.1), full_agent(lr=0.1)
    records = [each.opt(one, record=True) for _ in range(3)]
    rare.opt(other)
    rare.opt(other)
    together = rare.opt(other, record=True)
    assert together is not None and set(together.values) >= {"agent/loss", "agent/q_mean", "agent/grad_norm"}
    for name, mean in together.values.items():
        singles = [record.values[name] for record in records if record is not None]
        assert mean == pytest.approx(sum(singles) / 3), name
    assert records[0] != records[1]
    assert rare.algorithm.stats.sums.tolist() == [0.0] * 4


def test_a_falling_learning_rate_is_recorded() -> None:
    agent, buffer = full_agent(lr=0.5, lr_schedule="linear", lr_opt_steps=4)
    records = [agent.opt(buffer, record=True) for _ in range(3)]
    assert [record.values["agent/lr"] for record in records] == [0.5, 0.375, 0.25]
    constant, buffer = full_agent()
    assert "agent/lr" not in constant.opt(buffer, record=True).values


def test_values_outside_the_atoms_get_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    for v_max, warnings in ((0.5, 1), (20.0, 0)):  # every reward is 1
        agent, buffer = full_agent(head="categorical", v_min=-0.5, v_max=v_max)
        caplog.clear()
        shares = [agent.opt(buffer, record=True).values["agent/target_clipped"] for _ in range(3)]
        assert shares == pytest.approx([warnings] * 3)
        assert len(caplog.records) == warnings
    agent, buffer = full_agent()
    assert "agent/target_clipped" not in agent.opt(buffer, record=True).values


def batch_of(reward: list[float]) -> TensorBatch:
    n = len(reward)
    return TensorBatch(
        {"obs": torch.rand(n, 1)}, torch.randint(9, (n,)), T(reward), torch.full((n,), 0.9),
        torch.zeros(n, dtype=torch.bool), {"obs": torch.rand(n, 1)},
    )  # fmt: skip


def values(agent: NetworkAgent) -> torch.Tensor:
    return torch.from_numpy(
        agent.policy.action_values({"obs": np.linspace(0, 1, 9, dtype=np.float32)[:, None]})
    )  # type: ignore[attr-defined]


@pytest.mark.parametrize("kind", sampled([{"dueling": True}, {}, {"noisy": True}], 3), ids=str)
def test_learned_values_do_not_jump_when_returns_leave_the_estimated_range(kind: dict[str, bool]) -> None:
    """Rewards of -1 at first, of -4 later: the value falls from -10, the end of the range, to -40."""
    torch.manual_seed(0)
    agent, _ = full_agent(head="categorical", hidden=[32], lr=3e-3, target_interval=10, **kind)
    history = []
    for number in range(1, 1200):
        batch = batch_of([-1.0 if number < 300 else -4.0] * 32)
        agent.algorithm.adapt(batch, number)
        agent.algorithm.opt_step(batch, number)
        agent.algorithm.update_targets(number)
        history.append(values(agent).mean().item())
    online, target = agent.algorithm.networks.online.support, agent.algorithm.networks.target.support
    assert online.tolist() == target.tolist() == pytest.approx([-10.0, 0.0], rel=1e-4)
    atoms = agent.policy.atoms  # type: ignore[attr-defined]
    assert (atoms[0], atoms[-1]) == pytest.approx((-110.0, 100.0), rel=1e-4)
    assert history[298] == pytest.approx(-10.0, abs=1.0)
    assert history[-1] == pytest.approx(-40.0, abs=2.0)
    assert np.abs(np.diff(history[20:])).max() < 0.01 * 210.0


def test_until_a_reward_comes_the_value_is_zero_and_what_was_learned_is_not_stretched() -> None:
    torch.manual_seed(0)
    agent, _ = full_agent(head="categorical", hidden=[32], lr=3e-3, target_interval=10)
    for number in range(1, 101):
        batch = batch_of([0.0] * 32)
        agent.algorithm.adapt(batch, number)
        agent.algorithm.opt_step(batch, number)
        agent.algorithm.update_targets(number)
    assert agent.algorithm.networks.online.support.tolist() == [-1.0, 1.0]
    before = values(agent)
    assert before.abs().max() < 0.1
    agent.algorithm.adapt(batch_of([0.0] * 31 + [8.0]), 101)
    assert agent.algorithm.networks.online.support.tolist() == pytest.approx([0.0, 8.0], rel=1e-4)
    assert (values(agent) - before).abs().max() < 0.01 * 168.0
    agent.algorithm.adapt(batch_of([800.0] * 32), 201)
    assert agent.algorithm.networks.online.support.tolist() == pytest.approx([0.0, 8.0], rel=1e-4), (
        "it is set once"
    )


@pytest.mark.parametrize("given", [{}, {"v_min": -1.0}])
def test_an_estimate_like_the_initial_range_is_set_once_too(given: dict[str, float]) -> None:
    agent, _ = full_agent(head="categorical", **given)
    agent.algorithm.adapt(batch_of([1.0, -1.0] + [0.0] * 30), 1)
    before = agent.algorithm.state.online.params.clone()
    agent.algorithm.adapt(batch_of([1.0] * 32), 101)
    assert torch.equal(agent.algorithm.state.online.params, before)


def test_a_given_side_of_the_range_stays() -> None:
    for given, expected in (
        ({"v_min": -5.0}, [-5.0, 10.0]),
        ({"v_max": 3.0}, [0.0, 3.0]),
        ({"v_max": -8.0}, [-9.0, -8.0]),  # below every reward
        ({"v_min": -0.1}, [-0.1, 10.0]),  # not exact in float32
    ):
        agent, buffer = full_agent(head="categorical", **given)
        agent.opt(buffer)
        assert agent.algorithm.networks.online.support.tolist() == pytest.approx(expected, rel=1e-3)


def test_with_a_typed_range_only_opt_steps_change_the_network() -> None:
    agent, _ = full_agent(head="categorical", v_min=0.0, v_max=9.0)
    before = agent.algorithm.state.online.params.clone()
    for number in (1, 101, 201):
        agent.algorithm.adapt(batch_of([1.0] * 4), number)
    assert torch.equal(agent.algorithm.state.online.params, before)


@pytest.mark.parametrize("parts", ["policy", "all"])
def test_a_typed_range_stays_when_the_weights_of_another_run_are_taken(
    parts: str, caplog: pytest.LogCaptureFixture
) -> None:
    first, buffer = full_agent(head="categorical")
    first.opt(buffer)
    saved = first.state().arrays
    for given, expected in (({"v_min": 0.0, "v_max": 500.0}, [0.0, 500.0]), ({}, [0.0, 10.0])):
        caplog.clear()
        second, _ = full_agent(head="categorical", **given)
        second.sync_model(first.model_info())
        if parts == "all":
            assert second.load_networks(saved) == []
        for network in (second.algorithm.networks.online, second.algorithm.networks.target):
            assert network.support.tolist() == pytest.approx(expected, rel=1e-3)
        assert ("they are stretched until they are learned again" in caplog.text) == bool(given)


def test_huge_rewards_do_not_make_an_infinite_range() -> None:
    reward = torch.full((64,), 1e37)
    low, high = estimated_support(reward, torch.full((64,), 0.99))
    assert (low, high) == (0.0, pytest.approx(1e39))
    agent, _ = full_agent(head="categorical")
    one = {"obs": torch.ones(64, 1)}
    action, whole = torch.zeros(64, dtype=torch.int64), torch.zeros(64, dtype=torch.bool)
    agent.algorithm.adapt(TensorBatch(one, action, reward, torch.full((64,), 0.99), whole, one), 1)
    assert agent.algorithm.networks.online.support.tolist() == [-1.0, 1.0]


def test_encoding_by_hand() -> None:
    spec = ObsSpec(
        (
            ObsLeaf("obs.a", ("a",), "box", (2,), "uint8", 0.0, 255.0),
            ObsLeaf("obs.b", ("b",), "discrete", (), "int64", categories=(3,), start=(1,)),
            ObsLeaf("obs.c", ("c",), "box", (1,), "float32", -1.0, 1.0),
        )
    )
    obs = {"obs.a": T([[0, 255]], dtype=torch.uint8), "obs.b": T([2]), "obs.c": T([[-0.5]])}
    assert Encoder(spec, [], torch.Generator())(obs).tolist() == [[0.0, 1.0, 0.0, 0.0, 1.0, -0.5]]
