"""DQN against values computed by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from border_cli.agents.batches import TensorBatch
from border_cli.agents.dqn.agent import make_agent, make_policy
from border_cli.agents.dqn.config import DqnConfig
from border_cli.agents.dqn.explorer import EpsilonSchedule, explore, ladder_power
from border_cli.agents.dqn.heads import ScalarHead
from border_cli.agents.dqn.loss import DqnNetworks, DqnState, opt_step, td_target, update_target
from border_cli.agents.dqn.network import NO_DRAWS, Draws
from border_cli.agents.encoding import Encoder
from border_cli.agents.flat import FlatModule
from border_cli.agents.learner import Learner
from border_cli.config.schema import BufferConfig
from border_cli.core.errors import UsageError
from border_cli.core.spaces import ActionSpec, EnvSpec, ObsLeaf, ObsSpec
from border_cli.replay.step_processor import NStepProcessor
from border_cli.replay.uniform import make_buffer
from tests.unit.test_step_processor import SPEC, step

T = torch.tensor
HEAD = ScalarHead("huber")


def test_target_takes_the_target_networks_best() -> None:
    y = td_target(HEAD, T([[[1.0], [3.0]]]), T([[1.0, 3.0]]), T([0.5]), T([0.9]), T([False]))
    assert y[0].tolist() == pytest.approx([0.5 + 0.9 * 3.0])


def test_double_target_takes_the_online_networks_choice() -> None:
    y = td_target(HEAD, T([[[1.0], [3.0]]]), T([[7.0, 2.0]]), T([0.5]), T([0.9]), T([False]))
    assert y[0].tolist() == pytest.approx([0.5 + 0.9 * 1.0])


def test_no_bootstrapping_where_terminated_even_from_infinity() -> None:
    infinite = float("inf")
    y = td_target(HEAD, T([[[infinite], [3.0]]]), T([[infinite, 3.0]]), T([0.5]), T([0.9]), T([True]))
    assert y.tolist() == [[0.5]]


class Table(torch.nn.Module):
    """Q(s, a) = w_a · s."""

    def __init__(self) -> None:
        super().__init__()
        self.w = torch.nn.Parameter(T([2.0, 1.0]))

    def forward(self, obs: dict[str, torch.Tensor], draws: Draws = NO_DRAWS) -> torch.Tensor:
        return (obs["obs"] * self.w).unsqueeze(-1)


def one_step(config: DqnConfig) -> tuple[DqnState, list[float]]:
    """s = 1, a = 0, r = 1, s' = 2, γ = 0.5: Q = 2, target = 1 + 0.5·max(4, 2) = 3, error -1."""
    net = FlatModule(Table())
    state = DqnState.fresh(net.initial())
    batch = TensorBatch({"obs": T([[1.0]])}, T([0]), T([1.0]), T([0.5]), T([False]), {"obs": T([[2.0]])})
    opt_step(DqnNetworks.over(net, state), ScalarHead(config.loss), config, state, batch)
    return state, state.outcome.sums.tolist()


def test_one_opt_step_by_hand() -> None:
    state, (loss, q, target, norm) = one_step(DqnConfig(loss="mse", lr=0.1, max_grad_norm=None))
    # (2 - 3)² = 1; its gradient with respect to w_0 is 2·(2 - 3)·1 = -2; Adam's first step is lr against its sign
    assert (loss, q, target, norm) == pytest.approx((1.0, 2.0, 3.0, 2.0))
    assert state.online.weights.tolist() == pytest.approx([2.1, 1.0], abs=1e-6)
    assert state.target.tolist() == [2.0, 1.0]
    assert state.online.mean.tolist() == pytest.approx([-0.2, 0.0])


def test_huber_and_clipping_by_hand() -> None:
    _, (loss, _, _, norm) = one_step(DqnConfig(loss="huber", max_grad_norm=None))
    assert (loss, norm) == pytest.approx((0.5, 1.0))
    state, (_, _, _, norm) = one_step(DqnConfig(loss="huber", max_grad_norm=0.25))
    assert norm == pytest.approx(1.0)  # what is recorded is the norm before clipping
    assert state.online.mean.tolist() == pytest.approx([-0.025, 0.0], rel=1e-4)


def test_target_update_hard_and_soft() -> None:
    state = DqnState.fresh(T([0.0, 0.0]))
    state.online.weights += 1.0
    update_target(state, 0.25)
    assert state.target.tolist() == [0.25, 0.25]
    update_target(state, 1.0)
    assert state.target.tolist() == [1.0, 1.0]


def test_epsilon_follows_global_env_steps() -> None:
    epsilon = EpsilonSchedule(1.0, 0.2, 100)
    assert [epsilon(n) for n in (0, 50, 100, 10_000)] == pytest.approx([1.0, 0.6, 0.2, 0.2])


def test_ladder() -> None:
    assert [ladder_power(7.0, i, 8) for i in (0, 7)] == [1.0, 8.0]
    assert ladder_power(7.0, 0, 1) == 1.0
    assert ladder_power(None, 3, 8) == 1.0


def test_exploration_rate_and_stream() -> None:
    values = np.tile([1.0, 0.0], (100_000, 1))
    acts = explore(values, 0.3, np.random.default_rng(0))
    assert np.mean(acts) == pytest.approx(0.15, abs=0.01)
    rng = np.random.default_rng(0)
    explore(values, 0.0, rng)
    assert rng.random() == np.random.default_rng(0).random()  # greedy acting draws nothing


def full_agent(**changes: object) -> tuple[Learner, object]:
    config = DqnConfig(hidden=[8], batch_size=4, **changes)  # type: ignore[arg-type]
    buffer, processor = make_buffer(BufferConfig(capacity=100), SPEC, 0), NStepProcessor(SPEC, 1, 1, 0.9)
    for t in range(45):
        buffer.push(processor.process(step(t % 9, 1.0, terminated=t % 9 == 8)))
    return make_agent(config, SPEC, seed=5), buffer


def test_target_interval_counts_opt_steps() -> None:
    agent, buffer = full_agent(target_interval=3)
    before = agent._rule.state.target.clone()
    for n in range(1, 4):
        agent.opt(buffer)
        assert torch.equal(agent._rule.state.target, before) == (n < 3)
    assert torch.equal(agent._rule.state.target, agent._rule.state.online.weights)


def test_state_goes_there_and_back() -> None:
    agent, buffer = full_agent()
    for _ in range(5):
        agent.opt(buffer)
    saved = agent.state()
    copies = {name: array.copy() for name, array in saved.arrays.items()}
    other, _ = full_agent()
    other.load_state(type(saved)(copies, saved.values))
    there, back = agent.state(), other.state()
    assert there.values == back.values
    assert all((array == back.arrays[name]).all() for name, array in there.arrays.items())
    assert other.opt_steps == 5
    copies.popitem()
    with pytest.raises(ValueError, match="saved state"):
        other.load_state(type(saved)(copies, saved.values))


def test_model_reaches_a_policy() -> None:
    agent, buffer = full_agent()
    agent.opt(buffer)
    agent.eval()
    policy = make_policy(DqnConfig(hidden=[8]), SPEC, seed=9)
    policy.eval()
    policy.sync_model(agent.model_info())
    obs = {"obs": np.linspace(-5, 5, 50, dtype=np.float32)[:, None]}
    assert (policy.sample(obs) == agent.sample(obs)).all()
    assert policy.version == 1


def test_same_seed_same_agent() -> None:
    weights = [full_agent()[0]._rule.state.online.weights for _ in range(2)]
    assert torch.equal(*weights)


def test_records_are_means_since_the_last_one() -> None:
    agent, buffer = full_agent()
    agent.opt(buffer)
    agent.opt(buffer)
    sums = agent._rule.outcome.sums.tolist()
    agent._rule.outcome.sums.zero_()
    agent._rule.outcome.sums.add_(T(sums))
    record = agent.opt(buffer, record=True)
    assert record is not None and set(record.values) >= {"agent/loss", "agent/q_mean"}
    assert agent._rule.outcome.sums.tolist() == [0.0] * 4


def test_atoms_that_are_too_narrow_are_told_once(caplog: pytest.LogCaptureFixture) -> None:
    for v_max, told in ((0.5, 1), (20.0, 0)):  # every reward is 1
        agent, buffer = full_agent(head="categorical", v_min=-0.5, v_max=v_max)
        caplog.clear()
        shares = [agent.opt(buffer, record=True).values["agent/target_beyond"] for _ in range(3)]
        assert shares == pytest.approx([told] * 3)
        assert len(caplog.records) == told
    agent, buffer = full_agent()
    assert "agent/target_beyond" not in agent.opt(buffer, record=True).values


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
    assert spec.features == 6


def test_continuous_actions_are_refused() -> None:
    spec = EnvSpec(SPEC.obs, ActionSpec("box", shape=(1,), low=(-1.0,), high=(1.0,), dtype="float32"))
    with pytest.raises(UsageError, match="Discrete action space"):
        make_agent(DqnConfig(), spec, 0)
