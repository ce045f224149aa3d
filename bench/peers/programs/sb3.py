"""stable-baselines3: DQN for discrete actions, SAC for continuous ones, with RL Baselines3 Zoo's values."""

from __future__ import annotations

import gymnasium as gym
from evaluator import ZOO_DQN, Evaluator, Task, task_from_command_line
from stable_baselines3 import DQN, SAC
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm


class EvaluatorCallback(BaseCallback):
    """Calls the evaluator after each env step."""

    def __init__(self, evaluator: Evaluator) -> None:
        super().__init__()
        self._evaluator = evaluator

    def _on_step(self) -> bool:
        assert isinstance(self.model, OffPolicyAlgorithm)
        self._evaluator.after_training(self.model._n_updates, self.num_timesteps)
        return True


def make_model(task: Task) -> OffPolicyAlgorithm:
    """Return the untrained model."""
    env = gym.make(task.env_id)
    policy = {"net_arch": task.hidden}
    if isinstance(env.action_space, gym.spaces.Box):
        return SAC(
            "MlpPolicy", env, learning_starts=10_000, policy_kwargs=policy, seed=task.seed, device="cpu"
        )
    values = ZOO_DQN[task.env_id]
    return DQN(
        "MlpPolicy",
        env,
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
        device="cpu",
    )


def main() -> None:
    """Train as the command line says."""
    task = task_from_command_line()
    model = make_model(task)
    evaluator = Evaluator(task, lambda observations: model.predict(observations, deterministic=True)[0])
    model.learn(task.max_env_steps, callback=EvaluatorCallback(evaluator))
    evaluator.end(model._n_updates)


main()
