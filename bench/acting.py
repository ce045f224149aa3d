"""Env steps per second of one actor process beside raw stepping of the same environment."""

from __future__ import annotations

import time

import gymnasium

from bench.report import Figure
from border_cli import parts
from border_cli.actors.manager import ActorManager
from border_cli.agents.dqn.config import DqnConfig
from border_cli.config.schema import ActorManagerConfig, EnvConfig, TrainConfig
from border_cli.core.items import item_columns
from border_cli.envs.gym_env import GymEnv

ENV_STEPS = 50_000
_ID = "CartPole-v1"


def measure(repetitions: int) -> list[Figure]:
    """Raw stepping, an actor with 1 and one with 16 environments, in turn."""
    raw: list[float] = []
    acted: dict[int, list[float]] = {1: [], 16: []}
    for _ in range(repetitions):
        raw.append(_raw_rate())
        for n_envs, rates in acted.items():
            rates.append(_actor_rate(n_envs))
    ratio = {n: [a / r for a, r in zip(rates, raw, strict=True)] for n, rates in acted.items()}
    return [
        Figure("raw stepping with random actions", raw, "env steps/s"),
        Figure("one actor, 1 environment", acted[1], "env steps/s"),
        Figure("one actor, 16 environments", acted[16], "env steps/s"),
        Figure("actor over raw stepping, 1 environment", ratio[1], ""),
        Figure("actor over raw stepping, 16 environments", ratio[16], ""),
    ]


def _raw_rate() -> float:
    env = gymnasium.make(_ID)
    env.reset(seed=0)
    env.action_space.seed(0)
    began = time.perf_counter()
    for _ in range(ENV_STEPS):
        _, _, terminated, truncated, _ = env.step(env.action_space.sample())
        if terminated or truncated:
            env.reset()
    rate = ENV_STEPS / (time.perf_counter() - began)
    env.close()
    return rate


def _actor_rate(n_envs: int) -> float:
    """Of the actor the command line starts: network, exploration, step processor, ring. Nothing learns."""
    config = TrainConfig(
        agent=DqnConfig(hidden=[256, 256], epsilon_final=1.0),  # random actions: episodes as in raw stepping
        env=EnvConfig(id=_ID),
        actor_manager=ActorManagerConfig(envs_per_actor=n_envs),
    )
    spec = GymEnv(config.env).spec
    manager = ActorManager(parts.actor_spec(config), item_columns(spec), 1, config.actor_manager)
    try:
        manager.start(parts.make_agent(config, spec).model_info())
        manager.grant([ENV_STEPS])
        return _steps_per_second(manager)
    finally:
        manager.stop()


def _steps_per_second(manager: ActorManager) -> float:
    """From the first chunk on, so that the start does not count."""
    began, arrived, counted = 0.0, 0, 0
    while arrived < ENV_STEPS:
        steps = sum(chunk.env_steps for chunk in manager.collect())
        if steps and not arrived:
            began = time.perf_counter()
        elif steps:
            counted += steps
        arrived += steps
        time.sleep(0.001)  # a learner that is busy with something else
    return counted / (time.perf_counter() - began)
