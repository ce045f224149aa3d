"""Probe environments with continuous actions, known values and a known best action."""

from __future__ import annotations

from itertools import product
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

from border_cli.agents.agent import NetworkAgent
from border_cli.agents.sac.agent import make_agent
from border_cli.agents.sac.config import SacConfig, Td3Config, TqcConfig
from border_cli.config.schema import BufferConfig, EnvConfig
from border_cli.envs.group import GymEnv
from border_cli.replay.buffer import make_buffer
from tests.faults.amounts import sampled
from tests.learning import test_probes as probes

GAMMA = probes.GAMMA
CONFIGS = {"sac": SacConfig, "td3": Td3Config, "tqc": TqcConfig}
pytestmark = pytest.mark.learning


class Continuous:
    """An action between -1 and 3."""

    action_space = gymnasium.spaces.Box(-1.0, 3.0, (1,), np.float32)


class ConstantReward(Continuous, probes.ConstantReward):
    pass


class RewardByObservation(Continuous, probes.RewardByObservation):
    pass


class TwoSteps(Continuous, probes.TwoSteps):
    pass


class Endless(Continuous, probes.Endless):
    pass


class RewardByAction(Continuous, probes.Probe):
    """The reward is 2 - (action - 1.5)²."""

    def step(self, action: Any) -> tuple[Any, ...]:
        return self.observe(), 2.0 - float(action[0] - 1.5) ** 2, True, False, {}


class ActionOfBefore(Continuous, probes.Probe):
    """The second step's reward is 2 - (first action - 0.5)² / 2."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        self.past = 0.0
        return super().reset(seed=seed, options=options)

    def observe(self) -> np.ndarray:
        return np.array([-1.0 if self.t == 0 else (self.past + 1) / 4], np.float32)

    def step(self, action: Any) -> tuple[Any, ...]:
        self.t += 1
        reward = 0.0 if self.t == 1 else 2.0 - 0.5 * (self.past - 0.5) ** 2
        self.past = float(action[0]) if self.t == 1 else self.past
        return self.observe(), reward, self.t == 2, False, {}


def trained(agent: str, env_class: str) -> NetworkAgent:
    torch.set_num_threads(1)
    env = GymEnv(EnvConfig(entry_point=f"{__name__}:{env_class}"), 2)
    small: dict[str, Any] = {
        "lr": 2e-3,
        "hidden": [64, 64],
        "batch_size": 64,
        "gamma": GAMMA,
        "target_tau": 0.05,
    }
    if agent != "td3":
        small["entropy_coef"] = 0.0  # otherwise the values would include entropy
    config = CONFIGS[agent](**small, random_env_steps=10**9)
    if agent == "tqc":
        config.quantiles, config.drop_quantiles = 3, 0  # dropping atoms would bias the values
    learner = make_agent(config, env.spec, seed=1)
    buffer = make_buffer(BufferConfig(capacity=4000), env.spec, seed=1)
    probes.fill(env, learner, buffer, n_step=1, steps=800)
    for _ in range(2000):
        learner.opt(buffer)
    learner.eval()
    return learner


def value(agent: NetworkAgent, observation: float) -> float:
    """Return the value of the policy's action."""
    obs = {"obs": np.array([[observation]], np.float32)}
    action = torch.from_numpy(agent.sample(obs))
    with torch.no_grad():
        critics: Any = agent.algorithm.networks.critics
        return float(critics({"obs": torch.from_numpy(obs["obs"])}, action).mean())


EXPECTED = {
    "ConstantReward": {0.0: 1.0},
    "RewardByObservation": {1.0: 1.0, -1.0: -1.0},
    "RewardByAction": {0.0: 2.0},
    "TwoSteps": {0.0: GAMMA, 1.0: 1.0},
    "ActionOfBefore": {-1.0: 2.0 * GAMMA},
    "Endless": {0.0: 1 / (1 - GAMMA)},
}


@pytest.mark.parametrize(("env_class", "agent"), sampled([*product(EXPECTED, CONFIGS)], 2 * len(CONFIGS)))
def test_values_within_five_percent(agent: str, env_class: str) -> None:
    learner = trained(agent, env_class)
    for observation, wanted in EXPECTED[env_class].items():
        assert value(learner, observation) == pytest.approx(wanted, rel=0.05), observation
    best = {"RewardByAction": (0.0, 1.5), "ActionOfBefore": (-1.0, 0.5)}
    if env_class in best:
        observation, action = best[env_class]
        obs = {"obs": np.array([[observation]], np.float32)}
        assert learner.sample(obs).item() == pytest.approx(action, abs=0.2)
