"""Forbidden actions are neither chosen nor used in targets."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from border_cli import load
from border_cli.actors.sampler import RowProcessor
from border_cli.agents.dqn.agent import make_agent
from border_cli.agents.dqn.config import DqnConfig, RainbowConfig
from border_cli.config.schema import BufferConfig, EnvConfig
from border_cli.core.errors import UsageError
from border_cli.envs.group import GymEnv
from border_cli.envs.gym_spaces import env_spec
from border_cli.envs.try_env import try_env
from border_cli.replay.buffer import make_buffer
from tests.fakes import sampler_of
from tests.trained import describe, save_model

N = 4


class Masked(gymnasium.Env[Any, Any]):
    """Allows the actions t and t + 1 modulo 4 at time t; any other raises. where: "info" or "obs"."""

    def __init__(self, where: str = "info") -> None:
        plain = spaces.Box(0.0, 10.0, (1,), np.float32)
        self._where = where
        self.action_space = spaces.Discrete(N)
        self.observation_space = (
            spaces.Dict(x=plain, action_mask=spaces.Box(0, 1, (N,), np.int8)) if where == "obs" else plain
        )

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.t = 0
        return self.observe(), self.info()

    def mask(self) -> np.ndarray:
        mask = np.zeros(N, np.int8)
        mask[[self.t % N, (self.t + 1) % N]] = 1
        return mask

    def observe(self) -> Any:
        x = np.array([self.t], np.float32)
        return {"x": x, "action_mask": self.mask()} if self._where == "obs" else x

    def info(self) -> dict[str, Any]:
        if self._where == "wrong info":
            return {"action_mask": self.mask()[1:]}
        return {"action_mask": self.mask()} if self._where == "info" else {}

    def step(self, action: int) -> tuple[Any, ...]:
        if not self.mask()[action]:
            raise AssertionError(f"action {action} at time {self.t}")
        self.t += 1
        return self.observe(), 1.0, self.t == 8, False, self.info()


def config(where: str) -> EnvConfig:
    mask = "info" if where == "info" else "none"
    return EnvConfig(entry_point=f"{__name__}:Masked", kwargs={"where": where}, action_mask=mask)


@pytest.mark.parametrize(
    ("where", "agent"),
    [
        ("info", DqnConfig(hidden=[8], batch_size=16, epsilon_start=1.0, epsilon_final=0.5)),
        ("info", DqnConfig(hidden=[8], batch_size=16, eval_epsilon=0.5)),
        ("obs", RainbowConfig(hidden=[8], batch_size=16, atoms=5)),
    ],
    ids=["random", "evaluation", "noisy"],
)
def test_only_allowed_actions_are_chosen(where: str, agent: DqnConfig) -> None:
    env = GymEnv(config(where), 2)
    assert env.spec.mask == "obs.action_mask"
    assert [leaf.name for leaf in env.spec.inputs.leaves] == ["obs.obs" if where == "info" else "obs.x"]
    learner = make_agent(agent, env.spec, 0)
    buffer = make_buffer(BufferConfig(capacity=500), env.spec, 0)
    sampler = sampler_of(env, learner, RowProcessor(env.spec, 2))
    for t in range(200):  # the environment raises on a forbidden action
        if t == 100:
            learner.eval()
        items = sampler.sample([0, 1], t)
        buffer.push(items)
        if len(buffer) >= 16:
            learner.opt(buffer)


@pytest.mark.parametrize(
    ("mask", "problem"),
    [
        (spaces.Box(0, 1, (N,), np.float32), None),
        (spaces.MultiBinary(N + 1), "has shape (5,) and dtype uint8"),
    ],
)
def test_a_mask_in_an_observation_is_used_or_refused(mask: spaces.Space[Any], problem: str | None) -> None:
    space = spaces.Dict(x=spaces.Box(0.0, 1.0, (1,)), action_mask=mask)
    if problem is None:
        spec = env_spec(space, spaces.Discrete(N))
        assert (spec.mask, [leaf.name for leaf in spec.inputs.leaves]) == ("obs.action_mask", ["obs.x"])
    else:
        with pytest.raises(UsageError, match=re.escape(problem)):
            env_spec(space, spaces.Discrete(N))
    assert env_spec(space, spaces.Box(0.0, 1.0, (N,))).mask is None  # of real actions there is none


def test_the_mask_is_detected_and_a_loaded_model_requires_one(tmp_path: Path) -> None:
    env = config("info")
    assert try_env(dataclasses.replace(env, action_mask="auto")).action_mask == "info"
    model = load(save_model(tmp_path, describe(env, GymEnv(env).spec), 1))
    observation = np.zeros(1, np.float32)
    for mask in np.eye(N, dtype=np.int8):
        assert model.sample(observation, action_mask=mask) == int(mask.argmax())
    assert model.sample(observation, action_mask=None) in range(N)
    with pytest.raises(ValueError, match="was trained with masks: give action_mask="):
        model.sample(observation)
    with pytest.raises(ValueError, match="allows no action"):
        model.sample(observation, action_mask=np.zeros(N))


def test_invalid_masks_are_refused() -> None:
    with pytest.raises(UsageError, match="would stack the action_mask"):
        GymEnv(dataclasses.replace(config("obs"), frame_stack=3))
    assert GymEnv(dataclasses.replace(config("info"), frame_stack=3)).spec.mask == "obs.action_mask"
    with pytest.raises(UsageError, match="only one of a finite number of actions"):
        GymEnv(EnvConfig(id="Pendulum-v1", action_mask="info"))
    wrong = EnvConfig(entry_point=f"{__name__}:Masked", kwargs={"where": "wrong info"})
    with pytest.raises(UsageError, match=r"has shape \(3,\), and there are 4 actions"):
        try_env(wrong)
    assert try_env(dataclasses.replace(wrong, action_mask="none")).action_mask == "none"
