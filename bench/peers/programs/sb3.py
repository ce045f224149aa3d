"""stable-baselines3 and sb3-contrib, with RL Baselines3 Zoo's values."""

from __future__ import annotations

import math
import time
from typing import Any

import ale_py
import gymnasium as gym
from evaluator import ZOO_DQN, Evaluator, Task, task_from_command_line
from sb3_contrib import QRDQN, TQC, CrossQ
from stable_baselines3 import DQN, SAC, TD3
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_atari_env
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from stable_baselines3.common.vec_env import VecFrameStack


class EvaluatorCallback(BaseCallback):
    """Calls the evaluator after each env step, and ends the training after `max_seconds`."""

    def __init__(self, evaluator: Evaluator, max_seconds: float | None) -> None:
        super().__init__()
        self._evaluator = evaluator
        self._end = math.inf if max_seconds is None else time.perf_counter() + max_seconds

    def _on_step(self) -> bool:
        assert isinstance(self.model, OffPolicyAlgorithm)
        self._evaluator.after_training(self.model._n_updates, self.num_timesteps)
        return time.perf_counter() < self._end


gym.register_envs(ale_py)
ALGORITHMS = {"crossq": CrossQ, "dqn": DQN, "qrdqn": QRDQN, "sac": SAC, "td3": TD3, "tqc": TQC}


def make_model(task: Task) -> OffPolicyAlgorithm:
    """Return the untrained model."""
    algorithm = ALGORITHMS[task.agent]
    policy: dict[str, Any] = {"net_arch": task.hidden} if task.hidden else {}
    if algorithm in (CrossQ, SAC, TD3, TQC):
        return algorithm(
            "MlpPolicy",
            gym.make(task.env_id),
            learning_starts=5_000 if algorithm is CrossQ else 10_000,
            policy_kwargs=policy,
            seed=task.seed,
            device=task.device,
        )
    values = ZOO_DQN[task.env_id]
    is_atari = task.env_id.startswith("ALE/")
    if is_atari:  # the network for images has a layer of 512 units of its own
        assert task.hidden == [512]
        policy = {"net_arch": []}
    return algorithm(
        "CnnPolicy" if is_atari else "MlpPolicy",
        VecFrameStack(make_atari_env(task.env_id, seed=task.seed, env_kwargs={"frameskip": 1}), 4)
        if is_atari
        else gym.make(task.env_id),
        learning_rate=values.lr,
        batch_size=values.batch_size,
        buffer_size=values.capacity,
        learning_starts=values.learning_starts,
        gamma=values.gamma,
        target_update_interval=values.target_interval,
        train_freq=values.train_interval,
        gradient_steps=values.opt_steps,
        exploration_fraction=values.epsilon_fraction,
        exploration_final_eps=values.epsilon_final,
        policy_kwargs=policy,
        seed=task.seed,
        device=task.device,
    )


def main() -> None:
    """Train as the command line says."""
    task = task_from_command_line()
    model = make_model(task)
    evaluator = Evaluator(task, lambda observations: model.predict(observations, deterministic=True)[0])
    model.learn(task.max_env_steps, callback=EvaluatorCallback(evaluator, task.max_seconds))
    evaluator.end(model._n_updates)


main()
