"""Probe environments with known values, which reveal a wrong target, discount or bootstrap."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

from border_cli.actors.sampler import Sampler
from border_cli.agents.agent import NetworkAgent
from border_cli.agents.dqn.agent import make_agent
from border_cli.agents.dqn.config import C51Config, DqnConfig, IqnConfig, QrDqnConfig, RainbowConfig
from border_cli.config.schema import BufferConfig, EnvConfig
from border_cli.core.protocols import ReplayBuffer
from border_cli.envs.group import GymEnv
from border_cli.replay.buffer import make_buffer
from border_cli.replay.config import PrioritizedConfig
from border_cli.replay.n_step import NStepProcessor
from tests.faults.amounts import sampled

GAMMA = 0.5


class Probe(gymnasium.Env[np.ndarray, int]):
    """Base class: an observation (1,), two actions."""

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


class TinySignal(Probe):
    """Reward is the sign of a component of 0.001 beside a random one of 1,000, one step."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float32)

    def observe(self) -> np.ndarray:
        return np.array([1000.0 * self.np_random.normal(), 0.001 * self.sign], np.float32)

    def step(self, action: int) -> tuple[Any, ...]:
        return self.observe(), self.sign, True, False, {}


class RewardByAction(Probe):
    """Action 1 gives 1, action 0 gives -1."""

    def step(self, action: int) -> tuple[Any, ...]:
        return self.observe(), 2.0 * action - 1.0, True, False, {}


class TwoSteps(Probe):
    """Observation 0, then 1. The second step has reward 1."""

    def observe(self) -> np.ndarray:
        return np.array([float(self.t)], np.float32)

    def step(self, action: int) -> tuple[Any, ...]:
        self.t += 1
        return self.observe() * (self.t < 2), float(self.t == 2), self.t == 2, False, {}


class Endless(Probe):
    """Reward 1 at every step, truncated after the first, so the value is that of an endless episode."""

    def step(self, action: int) -> tuple[Any, ...]:
        return self.observe(), 1.0, False, True, {}


class ActionOfBefore(Probe):
    """The second step's reward is 1 if the first step's action was 1, else -1."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        self.past = 0
        return super().reset(seed=seed, options=options)

    def observe(self) -> np.ndarray:
        return np.array([0.0 if self.t == 0 else 2.0 * self.past - 1.0], np.float32)

    def step(self, action: int) -> tuple[Any, ...]:
        self.t += 1
        self.past = action if self.t == 1 else self.past
        return self.observe(), (2.0 * self.past - 1.0) * (self.t == 2), self.t == 2, False, {}


SMALL: dict[str, Any] = {"lr": 3e-3, "hidden": [32], "batch_size": 32, "gamma": GAMMA, "target_interval": 20}
RANDOM: dict[str, Any] = {"epsilon_start": 1.0, "epsilon_final": 1.0}
CATEGORICAL: dict[str, Any] = {"atoms": 51, "v_min": -2.5, "v_max": 2.5}
VARIANTS: dict[str, DqnConfig] = {
    "dqn": DqnConfig(**SMALL, **RANDOM),
    "dqn, normalized": DqnConfig(**SMALL, **RANDOM, normalize_obs=True),
    "dqn, single, dueling": DqnConfig(**SMALL, **RANDOM, double=False, dueling=True),
    "c51": C51Config(**SMALL, **RANDOM, **CATEGORICAL),
    "qrdqn": QrDqnConfig(**SMALL, **RANDOM, quantiles=8),
    "iqn": IqnConfig(**SMALL, **RANDOM, quantiles=8, target_quantiles=8, act_quantiles=8, cosines=16),
    # Noisy layers alone would not try all actions within so few env steps, so all actions are random (ε = 1).
    "rainbow": RainbowConfig(**SMALL, **RANDOM, **CATEGORICAL, noisy_std=0.1, exploration="epsilon"),
}
PRIORITIZED = ("rainbow", "dqn, single, dueling")


def fill(env: GymEnv, agent: NetworkAgent, buffer: ReplayBuffer, n_step: int, steps: int) -> None:
    """Push the rows of `steps` env steps in each of two environments."""
    processor = NStepProcessor(env.spec, 2, n_step, GAMMA)
    sampler = Sampler(env, agent, processor, lambda env, episode: None if episode else env + 1)
    sampler.begin()
    for _ in range(steps):
        items = sampler.sample([0, 1], 0)
        if len(items["n_steps"]):
            buffer.push(items)


def trained(variant: str, env_class: str, n_step: int) -> NetworkAgent:
    torch.set_num_threads(1)
    env = GymEnv(EnvConfig(entry_point=f"{__name__}:{env_class}"), 2)
    agent = make_agent(VARIANTS[variant], env.spec, seed=1)
    config = BufferConfig(capacity=2000)
    if variant in PRIORITIZED:
        config = PrioritizedConfig(capacity=2000, beta_opt_steps=1500)
    buffer = make_buffer(config, env.spec, seed=1)
    fill(env, agent, buffer, n_step, 200)
    for _ in range(1500):
        agent.opt(buffer)
    return agent


def values(agent: NetworkAgent, *observation: float) -> list[float]:
    policy: Any = agent.policy
    return [float(v) for v in policy.action_values({"obs": np.array([observation], np.float32)})[0]]


EXPECTED: dict[str, dict[float, tuple[float, float]]] = {
    "ConstantReward": {0.0: (1.0, 1.0)},
    "RewardByObservation": {1.0: (1.0, 1.0), -1.0: (-1.0, -1.0)},
    "RewardByAction": {0.0: (-1.0, 1.0)},
    "ActionOfBefore": {0.0: (-GAMMA, GAMMA), 1.0: (1.0, 1.0), -1.0: (-1.0, -1.0)},
    "TwoSteps": {0.0: (GAMMA, GAMMA), 1.0: (1.0, 1.0)},
    "Endless": {0.0: (1 / (1 - GAMMA), 1 / (1 - GAMMA))},
}
N_STEPS = {"dqn": (1, 3), "rainbow": (3,)}
CASES = [(variant, env, n) for variant in VARIANTS for env in EXPECTED for n in N_STEPS.get(variant, (1,))]


@pytest.mark.learning
@pytest.mark.parametrize(("variant", "env_class", "n_step"), sampled(CASES, len(EXPECTED)))
def test_values_within_five_percent(variant: str, env_class: str, n_step: int) -> None:
    agent = trained(variant, env_class, n_step)
    for observation, wanted in EXPECTED[env_class].items():
        assert values(agent, observation) == pytest.approx(wanted, rel=0.05), observation


@pytest.mark.learning
def test_only_with_normalised_observations_a_component_of_a_small_scale_is_learned() -> None:
    errors = {}
    for variant in ("dqn", "dqn, normalized"):
        agent = trained(variant, "TinySignal", 1)
        found = [values(agent, large, 0.001 * sign)[0] for sign in (1, -1) for large in (-500.0, 0.0, 500.0)]
        errors[variant] = float(np.abs(np.array(found) - ([1.0] * 3 + [-1.0] * 3)).max())
    assert errors["dqn"] > 0.5 and errors["dqn, normalized"] < 0.1, errors
