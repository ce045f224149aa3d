"""What the programs of the peers share: their arguments, the published hyperparameters, and the evaluations they print.

A program runs in its peer's environment, as `python PROGRAM.py JSON`, and prints a JSON line per evaluation and one at
its end. It imports nothing of this project.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np


@dataclass(frozen=True)
class Task:
    """What to train. eval_interval: in opt steps, 0 for no evaluations. hidden: [units] of each layer.

    max_seconds: of training, None for no limit.
    """

    agent: str
    env_id: str
    seed: int
    hidden: list[int]
    max_env_steps: int
    eval_interval: int
    episodes: int
    device: str = "cpu"
    max_seconds: float | None = None


@dataclass(frozen=True)
class DqnValues:
    """Hyperparameters of RL Baselines3 Zoo 2.9 for DQN. Intervals are in env steps."""

    lr: float
    batch_size: int
    capacity: int
    learning_starts: int
    target_interval: int
    train_interval: int
    opt_steps: int
    epsilon_fraction: float
    epsilon_final: float
    gamma: float = 0.99


ZOO_DQN = {
    "CartPole-v1": DqnValues(2.3e-3, 64, 100_000, 1_000, 10, 256, 128, 0.16, 0.04),
    "Acrobot-v1": DqnValues(6.3e-4, 128, 50_000, 0, 250, 4, 4, 0.12, 0.1),
    "LunarLander-v3": DqnValues(6.3e-4, 128, 50_000, 0, 250, 4, 4, 0.12, 0.1),
    # A smaller replay and a shorter warm-up than the published ones: they only measure speed.
    **dict.fromkeys(
        ("ALE/Pong-v5", "ALE/Breakout-v5"), DqnValues(1e-4, 32, 20_000, 2_000, 1_000, 4, 1, 0.1, 0.01)
    ),
}


def task_from_command_line() -> Task:
    """Read the only argument."""
    return Task(**json.loads(sys.argv[1]))


class Evaluator:
    """Evaluates a greedy policy every `eval_interval` opt steps, on environments of its own.

    act: maps observations (n, …) to actions (n, …).
    """

    def __init__(self, task: Task, act: Callable[[np.ndarray], np.ndarray]) -> None:
        self._task = task
        self._act = act
        self._eval_s = 0.0
        self._evaluated = 0
        self._first: tuple[int, float] | None = None

    def after_training(self, opt_steps: int, env_steps: int) -> None:
        """Evaluate if an evaluation is due after `opt_steps`. Call it after each env step or burst of opt steps."""
        if opt_steps and self._first is None:
            self._first = opt_steps, time.perf_counter()
        interval = self._task.eval_interval
        if interval and opt_steps // interval > self._evaluated:
            self._evaluated = opt_steps // interval
            began = time.perf_counter()
            score = self._mean_return()
            self._eval_s += time.perf_counter() - began
            _print(opt_steps=opt_steps, env_steps=env_steps, return_mean=score, eval_s=self._eval_s)

    def end(self, opt_steps: int) -> None:
        """Print the opt steps per second since the first one, without evaluations."""
        if self._first is None:
            raise SystemExit("no opt step was done")
        first, began = self._first
        _print(opt_steps_per_s=(opt_steps - first) / (time.perf_counter() - began - self._eval_s))

    def _mean_return(self) -> float:
        task = self._task
        envs = [gym.make(task.env_id) for _ in range(task.episodes)]
        observations = np.stack([env.reset(seed=10_000 + i)[0] for i, env in enumerate(envs)])
        returns = np.zeros(len(envs))
        running = np.ones(len(envs), bool)
        while running.any():
            actions = self._act(observations[running])
            for i, action in zip(np.flatnonzero(running), actions, strict=True):
                observations[i], reward, terminated, truncated, _ = envs[i].step(action)
                returns[i] += float(reward)
                running[i] = not (terminated or truncated)
        for env in envs:
            env.close()
        return float(returns.mean())


def _print(**record: Any) -> None:
    print(json.dumps(record), flush=True)
