"""Tianshou: DQN with RL Baselines3 Zoo's values, by its collector and its algorithm's update."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import torch
from evaluator import ZOO_DQN, Evaluator, task_from_command_line
from tianshou.algorithm import DQN
from tianshou.algorithm.modelfree.dqn import DiscreteQLearningPolicy
from tianshou.algorithm.optim import AdamOptimizerFactory
from tianshou.data import Collector, VectorReplayBuffer
from tianshou.env import DummyVectorEnv
from tianshou.utils.net.common import Net
from tianshou.utils.torch_utils import policy_within_training_step


def main() -> None:
    """Train as the command line says."""
    task = task_from_command_line()
    values = ZOO_DQN[task.env_id]
    torch.manual_seed(task.seed)
    np.random.seed(task.seed)
    env = gym.make(task.env_id)
    assert isinstance(env.action_space, gym.spaces.Discrete)
    net = Net(
        state_shape=env.observation_space.shape, action_shape=env.action_space.n, hidden_sizes=task.hidden
    )
    policy = DiscreteQLearningPolicy(
        model=net, action_space=env.action_space, observation_space=env.observation_space, eps_training=1.0
    )
    algorithm = DQN(
        policy=policy,
        optim=AdamOptimizerFactory(lr=values.lr),
        gamma=values.gamma,
        target_update_freq=max(values.target_interval // values.train_interval, 1) * values.opt_steps,
        is_double=False,
        huber_loss_delta=1.0,
    )
    envs = DummyVectorEnv([lambda: gym.make(task.env_id)])
    envs.seed(task.seed)
    buffer = VectorReplayBuffer(values.capacity, 1)
    collector = Collector[object](algorithm, envs, buffer, exploration_noise=True)
    collector.reset()

    def act(observations: np.ndarray) -> np.ndarray:
        with torch.no_grad():
            return net(observations)[0].argmax(dim=1).numpy()

    evaluator = Evaluator(task, act)
    opt_steps = env_steps = 0
    while env_steps < task.max_env_steps:
        fraction = env_steps / (values.epsilon_fraction * task.max_env_steps)
        policy.set_eps_training(max(1.0 - fraction * (1.0 - values.epsilon_final), values.epsilon_final))
        with policy_within_training_step(policy):
            env_steps += collector.collect(n_step=values.train_interval).n_collected_steps
            if env_steps >= max(values.learning_starts, values.batch_size):
                for _ in range(values.opt_steps):
                    algorithm.update(buffer, sample_size=values.batch_size)
                opt_steps += values.opt_steps
        evaluator.after_training(opt_steps, env_steps)
    evaluator.end(opt_steps)


main()
