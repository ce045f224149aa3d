"""Env steps per second of one actor beside raw stepping of the same environments."""

from __future__ import annotations

import time
from dataclasses import dataclass

from bench.report import Figure
from border_cli import compose
from border_cli.actors.manager import ActorManager
from border_cli.config.resolve import steps_natively
from border_cli.config.schema import TrainConfig
from border_cli.envs.atari import NativeGame
from border_cli.envs.group import GymEnv
from border_cli.envs.make import make_gym
from border_cli.run import factories


@dataclass(frozen=True)
class Case:
    """An agent in an environment. env_steps: of each measurement · targets: least actor over raw, by environments."""

    name: str
    overrides: str
    env_steps: int
    targets: dict[int, float | None]


CASES = (
    # Random actions, so that episodes are as long as in raw stepping; the network computes their values all the same.
    Case(
        "CartPole, DQN 256-256",
        "agent=dqn env=cartpole preset=none agent.hidden=[256,256] agent.epsilon_final=1.0",
        50_000,
        {1: 0.12, 16: 0.4},
    ),
    Case(
        "HalfCheetah, SAC 256-256",
        "agent=sac env=halfcheetah agent.hidden=[256,256] agent.random_env_steps=0",
        16_000,
        {1: None, 4: None, 8: None, 16: 0.85, 64: None},
    ),
    # With several environments, ALE's own threads step the games.
    Case(
        "Pong, DQN with Nature's network",
        "agent=dqn env=pong agent.epsilon_final=1.0",
        2_000,
        {1: None, 8: 0.6},
    ),
)


def measure(repetitions: int, cases: tuple[Case, ...] = CASES) -> list[Figure]:
    """Measure raw stepping and an actor with as many environments, in turn."""
    return [figure for case in cases for figure in _ratios(case, repetitions)]


def _ratios(case: Case, repetitions: int) -> list[Figure]:
    figures = []
    for n_envs, target in case.targets.items():
        config = compose(*case.overrides.split(), f"actor_manager.envs_per_actor={n_envs}")
        raw, acted = [], []
        for _ in range(repetitions):
            raw.append(_raw_rate(config, case.env_steps))
            acted.append(_actor_rate(config, case.env_steps))
        what = f"{case.name}, {n_envs} environment{'s' * (n_envs > 1)}"
        figures += [
            Figure(f"{what}: raw stepping", raw, "env steps/s"),
            Figure(f"{what}: one actor", acted, "env steps/s"),
            Figure(
                f"{what}: actor over raw stepping",
                [a / r for a, r in zip(acted, raw, strict=True)],
                "",
                "" if target is None else f"at least {target}",
            ),
        ]
    return figures


def _raw_rate(config: TrainConfig, env_steps: int) -> float:
    """Return the env steps/s of the bare environments with random actions, which are drawn before."""
    n_envs = config.actor_manager.envs_per_actor
    native = steps_natively(config)
    envs = [make_gym(config.env, base=NativeGame(config.env) if native else None) for _ in range(n_envs)]
    for i, env in enumerate(envs):
        env.reset(seed=i)
    envs[0].action_space.seed(0)
    actions = [envs[0].action_space.sample() for _ in range(env_steps // n_envs)]
    began = time.perf_counter()
    for action in actions:
        for env in envs:
            if native:
                env.unwrapped.send(action)
        for env in envs:
            _, _, terminated, truncated, _ = env.step(action)
            if terminated or truncated:
                env.reset()
    rate = len(actions) * n_envs / (time.perf_counter() - began)
    for env in envs:
        env.close()
    return rate


def _actor_rate(config: TrainConfig, env_steps: int) -> float:
    """Return the env steps/s of an actor with network, exploration, step processor and ring. The learner only collects."""
    spec = GymEnv(config.env).spec
    columns = factories.run_columns(config, spec)
    manager = ActorManager(factories.actor_spec(config), columns, 1, config.actor_manager)
    try:
        manager.start(factories.make_agent(config, spec).model_info())
        manager.grant([env_steps], 0)
        return _steps_per_second(manager, env_steps)
    finally:
        manager.stop()


def _steps_per_second(manager: ActorManager, env_steps: int) -> float:
    """Return env steps/s from the first chunk on, without the start of the process."""
    began, arrived, counted = 0.0, 0, 0
    while arrived < env_steps:
        steps = sum(chunk.env_steps for chunk in manager.collect())
        if steps and not arrived:
            began = time.perf_counter()
        elif steps:
            counted += steps
        arrived += steps
        time.sleep(0.001)  # the learner is busy in between
    return counted / (time.perf_counter() - began)
