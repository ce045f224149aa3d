"""Environments so small that the right values are known: a wrong target, discount or bootstrap shows at once."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

from border_cli.actors.sampler import Sampler
from border_cli.agents.dqn.agent import DqnAgent, make_agent
from border_cli.agents.dqn.config import DqnConfig
from border_cli.config.schema import BufferConfig, EnvConfig
from border_cli.envs.gym_env import GymEnv
from border_cli.replay.step_processor import NStepProcessor
from border_cli.replay.uniform import make_buffer

GAMMA = 0.5


class Probe(gymnasium.Env[np.ndarray, int]):
    """Base: one real observation, two actions."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.t = 0
        self.sign = float(self.np_random.choice([-1.0, 1.0]))
        return self.observe(), {}

    def observe(self) -> np.ndarray:
        return np.zeros(1, np.float32)


class ConstantReward(Probe):
    """Reward 1, one step."""

    def step(self, action: int) -> tuple[Any, ...]:
        return self.observe(), 1.0, True, False, {}


class RewardByObservation(Probe):
    """Reward is the observation, one step."""

    def observe(self) -> np.ndarray:
        return np.array([self.sign], np.float32)

    def step(self, action: int) -> tuple[Any, ...]:
        return self.observe(), self.sign, True, False, {}


class RewardByAction(Probe):
    """Action 1 gives 1, action 0 gives -1."""

    def step(self, action: int) -> tuple[Any, ...]:
        return self.observe(), 2.0 * action - 1.0, True, False, {}


class TwoSteps(Probe):
    """Observation 0 then 1; the reward 1 comes after the second step."""

    def observe(self) -> np.ndarray:
        return np.array([float(self.t)], np.float32)

    def step(self, action: int) -> tuple[Any, ...]:
        self.t += 1
        return self.observe() * (self.t < 2), float(self.t == 2), self.t == 2, False, {}


class Endless(Probe):
    """Reward 1 at every step, truncated after the first: the value is that of going on for ever."""

    def step(self, action: int) -> tuple[Any, ...]:
        return self.observe(), 1.0, False, True, {}


def trained(env_class: str, n_step: int) -> DqnAgent:
    torch.set_num_threads(1)
    env = GymEnv(EnvConfig(entry_point=f"{__name__}:{env_class}"), 2)
    config = DqnConfig(
        lr=3e-3,
        hidden=[32],
        batch_size=32,
        gamma=GAMMA,
        target_interval=20,
        epsilon_start=1.0,
        epsilon_final=1.0,
    )
    agent = make_agent(config, env.spec, seed=1)
    buffer = make_buffer(BufferConfig(capacity=2000), env.spec, seed=1)
    sampler = Sampler(env, agent, NStepProcessor(env.spec, 2, n_step, GAMMA), [1, 2])
    sampler.begin()
    for _ in range(200):
        buffer.push(items) if len((items := sampler.sample([0, 1], 0))["span"]) else None
    for _ in range(1500):
        agent.opt(buffer)
    return agent


def values(agent: DqnAgent, observation: float) -> list[float]:
    obs = {"obs": torch.tensor([[observation]])}
    with torch.no_grad():
        return [float(v) for v in agent._q_values(obs)[0]]


@pytest.mark.learning
@pytest.mark.parametrize("n_step", [1, 3])
@pytest.mark.parametrize(
    ("env_class", "expected"),
    [
        ("ConstantReward", {0.0: (1.0, 1.0)}),
        ("RewardByObservation", {1.0: (1.0, 1.0), -1.0: (-1.0, -1.0)}),
        ("RewardByAction", {0.0: (-1.0, 1.0)}),
        ("TwoSteps", {0.0: (GAMMA, GAMMA), 1.0: (1.0, 1.0)}),
        ("Endless", {0.0: (1 / (1 - GAMMA), 1 / (1 - GAMMA))}),
    ],
)
def test_values_within_five_percent(
    env_class: str, expected: dict[float, tuple[float, float]], n_step: int
) -> None:
    agent = trained(env_class, n_step)
    for observation, wanted in expected.items():
        assert values(agent, observation) == pytest.approx(wanted, rel=0.05), observation
