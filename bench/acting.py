"""Env steps per second of one actor process beside raw stepping of its environment; of Atari games beside ALE's own."""

from __future__ import annotations

import time

import gymnasium
import numpy as np

from bench.report import Figure
from border_cli import build
from border_cli.actors.manager import ActorManager
from border_cli.agents.dqn.config import DqnConfig
from border_cli.config.schema import ActorManagerConfig, EnvConfig, TrainConfig
from border_cli.core.types import item_columns
from border_cli.envs.group import GymEnv

ENV_STEPS = 50_000
GAME_STEPS = 400
_ID = "CartPole-v1"


def measure(repetitions: int) -> list[Figure]:
    """Measure raw stepping, an actor with 1 environment and one with 16, in turn."""
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
        *_games(repetitions),
    ]


def _games(repetitions: int) -> list[Figure]:
    """Measure eight games of Pong in one process, by threads of ALE and by gymnasium, in turn."""
    rates: dict[bool, list[float]] = {False: [], True: []}
    for _ in range(repetitions):
        for native, found in rates.items():
            found.append(_game_rate(native))
    ratio = [a / b for a, b in zip(rates[True], rates[False], strict=True)]
    return [
        Figure("8 games of Pong, preprocessed by gymnasium", rates[False], "env steps/s"),
        Figure("8 games of Pong, in ALE's threads", rates[True], "env steps/s"),
        Figure("ALE's threads over gymnasium", ratio, ""),
    ]


def _game_rate(native: bool) -> float:
    n_envs = 8
    config = EnvConfig(id="ALE/Pong-v5", preprocess="atari", fire_reset=True, frame_stack=4)
    env = GymEnv(config, n_envs, native=native)
    for i in range(n_envs):
        env.reset(i, seed=i)
    action = np.random.default_rng(0).integers(0, env.spec.action.n, (GAME_STEPS, n_envs))
    began = time.perf_counter()
    for now in action:
        env.step(range(n_envs), now)  # no game ends within so few env steps
    rate = GAME_STEPS * n_envs / (time.perf_counter() - began)
    env.close()
    return rate


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
    """Return the env steps/s of an actor with network, exploration, step processor and ring. The learner only collects."""
    config = TrainConfig(
        agent=DqnConfig(
            hidden=[256, 256], epsilon_final=1.0
        ),  # random actions, so that episodes are as long as in raw stepping
        env=EnvConfig(id=_ID),
        actor_manager=ActorManagerConfig(envs_per_actor=n_envs),
    )
    spec = GymEnv(config.env).spec
    manager = ActorManager(build.actor_spec(config), item_columns(spec), 1, config.actor_manager)
    try:
        manager.start(build.make_agent(config, spec).model_info())
        manager.grant([ENV_STEPS])
        return _steps_per_second(manager)
    finally:
        manager.stop()


def _steps_per_second(manager: ActorManager) -> float:
    """Return env steps/s from the first chunk on, without the start of the process."""
    began, arrived, counted = 0.0, 0, 0
    while arrived < ENV_STEPS:
        steps = sum(chunk.env_steps for chunk in manager.collect())
        if steps and not arrived:
            began = time.perf_counter()
        elif steps:
            counted += steps
        arrived += steps
        time.sleep(0.001)  # the learner is busy in between
    return counted / (time.perf_counter() - began)
