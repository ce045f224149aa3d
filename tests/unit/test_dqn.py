"""DQN against values computed by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from border_cli.agents.batches import TensorBatch
from border_cli.agents.dqn.agent import make_agent, make_policy
from border_cli.agents.dqn.config import DqnConfig
from border_cli.agents.dqn.explorer import EpsilonSchedule, explore, ladder_power
from border_cli.agents.dqn.heads import ScalarHead, make_head
from border_cli.agents.dqn.loss import DqnNetworks, DqnState, StepDraws, opt_step, td_target, update_target
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


@pytest.mark.parametrize(
    ("double", "forbidden", "target"),
    [
        (False, None, 1 + 0.5 * 6),  # the target network's best action by its own values, 2 and 6
        (True, None, 1 + 0.5 * 2),  # the online network's, 4 and 2, valued by the target network
        (False, 1, 1 + 0.5 * 2),
        (True, 0, 1 + 0.5 * 6),
    ],
)
def test_an_opt_step_asks_the_right_network_by_hand(
    double: bool, forbidden: int | None, target: float
) -> None:
    """Online weights 2, 1 and target weights 1, 3 at s' = 2; in the present state no action is forbidden."""
    net = FlatModule(Table())
    state = DqnState.fresh(net.initial())
    state.target.copy_(T([1.0, 3.0]))
    free, mask = T([[1, 1]]), T([[1, 1]])
    if forbidden is not None:
        mask[0, forbidden] = 0
    batch = TensorBatch(
        {"obs": T([[1.0]]), "mask": free}, T([0]), T([1.0]), T([0.5]), T([False]),
        {"obs": T([[2.0]]), "mask": mask},
    )  # fmt: skip
    config = DqnConfig(double=double, loss="mse")
    opt_step(DqnNetworks.over(net, state), ScalarHead("mse"), config, state, batch, mask="mask")
    loss, q, found, _ = state.outcome.sums.tolist()
    assert (loss, q, found) == pytest.approx(((target - 2) ** 2, 2.0, target))


class Levels(Table):
    """Quantiles Q(s, a) = w_a · s + τ, where τ is drawn; 0.5 where it is not."""

    def forward(self, obs: dict[str, torch.Tensor], draws: Draws = NO_DRAWS) -> torch.Tensor:
        tau = T([[0.5]]) if draws.tau is None else draws.tau
        return super().forward(obs) + tau.unsqueeze(1)


def test_an_implicit_quantile_step_is_at_the_levels_that_were_drawn_by_hand() -> None:
    """θ = 2.1, 2.9 at τ = 0.1, 0.9; of s' = 2 the target's best action has 6 + 0.5: y = 1 + 0.5·6.5 = 4.25.

    Huber's losses of 2.15 and 1.35 are 1.65 and 0.85.
    """
    net = FlatModule(Levels())
    state = DqnState.fresh(net.initial())
    state.target.copy_(T([1.0, 3.0]))
    config = DqnConfig(head="implicit_quantile", double=False)
    batch = TensorBatch({"obs": T([[1.0]])}, T([0]), T([1.0]), T([0.5]), T([False]), {"obs": T([[2.0]])})
    draws = StepDraws(Draws(T([[0.1, 0.9]])), Draws(T([[0.5]])))
    opt_step(DqnNetworks.over(net, state), make_head(config), config, state, batch, draws)
    loss, q, target, _ = state.outcome.sums.tolist()
    assert (loss, q, target) == pytest.approx((0.1 * 1.65 + 0.9 * 0.85, 2.5, 4.25))


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


def test_targets_move_by_target_tau() -> None:
    agent, buffer = full_agent(target_interval=1, target_tau=0.25)
    before = agent._rule.state.target.clone()
    agent.opt(buffer)
    expected = before + 0.25 * (agent._rule.state.online.weights - before)
    assert torch.allclose(agent._rule.state.target, expected, atol=1e-7)
    assert not torch.equal(expected, before)


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
    assert rare._rule.outcome.sums.tolist() == [0.0] * 4


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


def test_continuous_actions_are_refused() -> None:
    spec = EnvSpec(SPEC.obs, ActionSpec("box", shape=(1,), low=(-1.0,), high=(1.0,), dtype="float32"))
    with pytest.raises(UsageError, match="Discrete action space"):
        make_agent(DqnConfig(), spec, 0)
