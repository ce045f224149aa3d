"""Several discrete actions at once: acting, targets, loss and errors of the value-based agents by hand; exports."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

from border_cli.agents import numpy_policy
from border_cli.agents.dqn.agent import make_agent
from border_cli.agents.dqn.config import C51Config, DqnConfig, IqnConfig, QrDqnConfig, RainbowConfig
from border_cli.agents.dsac.config import DsacConfig
from border_cli.agents.params import TensorBatch
from border_cli.core.errors import UsageError
from border_cli.core.spaces import decode_actions
from border_cli.core.types import Batch
from border_cli.envs.gym_spaces import env_spec
from border_cli.export.write import ExportedPolicy, write_policy
from tests.kinds import AGENTS
from tests.learners import OneBatchBuffer, opt_step, sums

SPEC = env_spec(spaces.Box(-1, 1, (1,), np.float32), spaces.MultiDiscrete([2, 3], start=[5, -1]))
CONFIG: dict[str, Any] = {"hidden": [], "double": False, "loss": "mse"}


class Combination(gymnasium.Env[Any, Any]):
    """Gives 1 for each of three actions that is right: it depends on the observation, which is one of four."""

    observation_space = spaces.Discrete(4)
    action_space = spaces.MultiDiscrete([3, 4, 5])

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[int, dict[str, Any]]:
        super().reset(seed=seed)
        self.t, self.shown = 0, int(self.np_random.integers(4))
        return self.shown, {}

    def step(self, action: Any) -> tuple[int, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action)
        right = [self.shown % 3, 3 - self.shown, self.shown + 1]
        reward = float(np.sum(np.asarray(action) == right))
        self.t, self.shown = self.t + 1, int(self.np_random.integers(4))
        return self.shown, reward, self.t == 10, False, {}


def with_values(*values: float) -> Any:
    """An agent whose six outputs, three for each of the two actions, are observation times these; two of three are real
    for the first action."""
    agent = make_agent(DqnConfig(**CONFIG), SPEC, 0)
    networks: Any = agent.algorithm.networks
    with torch.no_grad():
        for network in (networks["online"], networks["target"]):
            network.layers[0].weight[:, 0] = torch.tensor(values)
            network.layers[0].bias[:] = 0.0
    return agent


def test_each_action_is_chosen_among_its_own_values() -> None:
    agent = with_values(1.0, 2.0, 9.0, 3.0, 5.0, 4.0)  # 9: there is no third value of the first action
    agent.eval()
    obs = {"obs": np.array([[1.0], [-1.0]], np.float32)}
    chosen = agent.sample(obs)
    assert chosen.tolist() == [[1, 1], [0, 0]]
    assert [a.tolist() for a in decode_actions(SPEC.action, chosen)] == [[6, 0], [5, -1]]
    values = agent.policy.action_values(obs)
    assert values.shape == (2, 2, 3) and values[0].tolist() == [[1.0, 2.0, -np.inf], [3.0, 5.0, 4.0]]


def test_targets_and_errors_by_hand() -> None:
    agent = with_values(1.0, 2.0, 9.0, 3.0, 5.0, 4.0)
    batch = TensorBatch(
        {"obs": torch.tensor([[1.0], [0.5]])}, torch.tensor([[0, 2], [1, 0]]), torch.tensor([1.0, 2.0]),
        torch.tensor([0.5, 0.0]), torch.tensor([False, True]), {"obs": torch.tensor([[2.0], [2.0]])},
        torch.tensor([1.0, 3.0]),
    )  # fmt: skip
    # next values 4 and 10, mean 7: target 1 + 0.5·7 = 4.5; terminated: 2. Values: 1 and 4; 1 and 1.5
    errors = opt_step(agent.algorithm, batch, 1)
    assert errors.tolist() == pytest.approx([(3.5 + 0.5) / 2, (1.0 + 0.5) / 2])
    assert sums(agent.algorithm)[0] == pytest.approx((3.5**2 + 0.5**2 + 3 * (1.0 + 0.25)) / 4)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::torch.jit.TracerWarning")
@pytest.mark.parametrize(
    "config", [DqnConfig(dueling=True), C51Config(), QrDqnConfig(quantiles=4), DsacConfig()]
)
def test_exported_policies_act_as_ours(tmp_path: Path, config: DqnConfig | DsacConfig) -> None:
    policy: Any = AGENTS[config.type].load().make_agent(config, SPEC, 3).policy
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        policy.params.copy_(0.3 * torch.randn(policy.params.shape, generator=generator))
    policy.eval()
    shown = np.linspace(-1, 1, 64, dtype=np.float32)[:, None]
    expected = np.array(decode_actions(SPEC.action, policy.sample({"obs": shown})))
    assert len(np.unique(expected, axis=0)) > 1
    write_policy(policy, SPEC, tmp_path, "numpy", "title")
    exported = numpy_policy.load(tmp_path)
    np.testing.assert_array_equal(exported(shown), expected)
    assert exported(shown[3]).tolist() == expected[3].tolist()
    with torch.no_grad():
        module = ExportedPolicy(policy, SPEC)
        np.testing.assert_array_equal(module(torch.from_numpy(shown)), expected)
        traced = torch.jit.trace(module, torch.from_numpy(shown[:2]), check_trace=False)  # as for ONNX
        np.testing.assert_array_equal(traced(torch.from_numpy(shown)), expected)


@pytest.mark.parametrize(
    "config",
    [
        C51Config(hidden=[8], batch_size=4),
        RainbowConfig(hidden=[8], batch_size=4),
        IqnConfig(hidden=[8], batch_size=4),
        QrDqnConfig(hidden=[8], batch_size=4),
    ],
)
def test_every_head_learns_and_records(config: DqnConfig) -> None:
    agent = make_agent(config, SPEC, 0)
    rng = np.random.default_rng(0)
    obs, next_obs = ({"obs": rng.normal(size=(4, 1)).astype(np.float32)} for _ in range(2))
    numbers = rng.normal(size=4).astype(np.float32), np.full(4, 0.9, np.float32), np.zeros(4, bool)
    batch = Batch(obs, rng.integers(0, 2, (4, 2)), *numbers, next_obs, np.arange(4), np.ones(4, np.float32))
    buffer: Any = OneBatchBuffer(batch)
    record = agent.opt(buffer, record=True)
    assert record is not None and np.isfinite(list(record.values.values())).all()
    assert buffer.errors[0].shape == (4,)


def test_values_and_quantiles_are_of_each_action() -> None:
    policy: Any = make_agent(QrDqnConfig(quantiles=4), SPEC, 0).policy
    obs = {"obs": np.linspace(-1, 1, 5, dtype=np.float32)[:, None]}
    quantiles = policy.action_quantiles(obs)
    assert quantiles.shape == (5, 2, 3, 4)
    np.testing.assert_allclose(quantiles.mean(-1)[:, 1], policy.action_values(obs)[:, 1], rtol=1e-5)


def test_dueling_subtracts_the_mean_of_each_action() -> None:
    agent = make_agent(DqnConfig(hidden=[4], dueling=True), SPEC, 0)
    network: Any = agent.policy.network
    obs = {"obs": torch.tensor([[0.3]])}
    features = network.features(obs)
    value, advantage = network.value[-1](features), network.advantage[-1](features).view(2, 3)
    wanted = value + advantage - advantage.mean(1, keepdim=True)
    torch.testing.assert_close(network(obs)[:, :, 0], wanted)
    np.testing.assert_allclose(
        agent.policy.action_values({"obs": obs["obs"].numpy()})[0, 1], wanted[1].detach(), rtol=1e-5
    )


def test_a_memory_is_refused() -> None:
    with pytest.raises(UsageError, match="several discrete actions at once"):
        make_agent(DqnConfig(gru=4), SPEC, 0)
