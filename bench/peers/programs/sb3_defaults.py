"""stable-baselines3 with the default values of DQN or SAC. Prints one JSON line: the trained model's returns, greedy.

It runs in stable-baselines3's environment, as `python sb3_defaults.py JSON`. The task has agent, env_id, seed,
max_env_steps, episodes, cut (env steps after which an episode of the evaluation ends) and imports.
"""

from __future__ import annotations

import importlib
import json
import sys
import time
from importlib.metadata import version

import gymnasium as gym
import numpy as np
from stable_baselines3 import DQN, SAC
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm

POINTS = 20
"""Of the curve."""
EVAL_SEED = 1_000_000


class CurveCallback(BaseCallback):
    """Notes the mean return of the last 100 training episodes, POINTS times."""

    def __init__(self, interval: int) -> None:
        super().__init__()
        self._interval = interval
        self.curve: list[list[float]] = []

    def _on_step(self) -> bool:
        if self.num_timesteps % self._interval == 0 and self.model.ep_info_buffer:
            mean = float(np.mean([info["r"] for info in self.model.ep_info_buffer]))
            self.curve.append([self.num_timesteps, round(mean, 3)])
        return True


def evaluate(model: OffPolicyAlgorithm, env: gym.Env, episodes: int, cut: int) -> list[float]:
    """Return the return of each episode, with the greedy policy."""
    returns = []
    for i in range(episodes):
        observation, _ = env.reset(seed=EVAL_SEED + i)
        total = 0.0
        for _ in range(cut):
            action, _ = model.predict(observation, deterministic=True)
            # An action of a Discrete space is an array without dimensions; FrozenLake and Taxi need a number.
            observation, reward, terminated, truncated, _ = env.step(action if action.ndim else action.item())
            total += float(reward)
            if terminated or truncated:
                break
        returns.append(round(total, 4))
    return returns


def main() -> None:
    """Train and evaluate as the command line says."""
    task = json.loads(sys.argv[1])
    for name in task["imports"]:
        module, _, function = name.partition(":")
        imported = importlib.import_module(module)
        if function:
            getattr(imported, function)()
    algorithm = {"dqn": DQN, "sac": SAC}[task["agent"]]
    model = algorithm("MlpPolicy", gym.make(task["env_id"]), seed=task["seed"], device="cpu")
    callback = CurveCallback(task["max_env_steps"] // POINTS)
    began = time.perf_counter()
    model.learn(task["max_env_steps"], callback=callback)
    seconds = time.perf_counter() - began
    returns = evaluate(model, gym.make(task["env_id"]), task["episodes"], task["cut"])
    result = {
        "seconds": round(seconds, 1),
        "env_steps": model.num_timesteps,
        "opt_steps": model._n_updates,
        "returns": returns,
        "curve": callback.curve,
        "versions": {name: version(name) for name in ("stable-baselines3", "torch", "gymnasium")},
    }
    print(json.dumps(result))


main()
