"""PFRL: DQN with RL Baselines3 Zoo's values. It does one opt step per interval, so bursts become single opt steps."""

from __future__ import annotations

from itertools import pairwise

import gymnasium as gym
import numpy as np
import pfrl
import torch
from evaluator import ZOO_DQN, Evaluator, task_from_command_line
from torch import nn


def main() -> None:
    """Train as the command line says."""
    task = task_from_command_line()
    values = ZOO_DQN[task.env_id]
    pfrl.utils.set_random_seed(task.seed)
    env = gym.make(task.env_id)
    assert isinstance(env.action_space, gym.spaces.Discrete)
    assert env.observation_space.shape is not None
    env.action_space.seed(task.seed)
    sizes = [env.observation_space.shape[0], *task.hidden]
    hidden = [layer for a, b in pairwise(sizes) for layer in (nn.Linear(a, b), nn.ReLU())]
    head = nn.Linear(sizes[-1], int(env.action_space.n))
    q_func = nn.Sequential(*hidden, head, pfrl.q_functions.DiscreteActionValueHead())
    agent = pfrl.agents.DQN(
        q_func,
        torch.optim.Adam(q_func.parameters(), lr=values.lr),
        pfrl.replay_buffers.ReplayBuffer(values.capacity),
        values.gamma,
        pfrl.explorers.LinearDecayEpsilonGreedy(
            1.0,
            values.epsilon_final,
            int(values.epsilon_fraction * task.max_env_steps),
            env.action_space.sample,
        ),
        replay_start_size=max(values.learning_starts, values.batch_size),
        minibatch_size=values.batch_size,
        update_interval=values.train_interval // values.opt_steps,
        target_update_interval=max(values.target_interval, values.train_interval),
        batch_accumulator="mean",
        max_grad_norm=10.0,
        phi=lambda x: np.asarray(x, np.float32),
    )

    def act(observations: np.ndarray) -> np.ndarray:
        with torch.no_grad():
            return q_func(torch.from_numpy(observations)).greedy_actions.numpy()

    evaluator = Evaluator(task, act)
    observation, _ = env.reset(seed=task.seed)
    for env_steps in range(1, task.max_env_steps + 1):
        observation, reward, terminated, truncated, _ = env.step(agent.act(observation))
        agent.observe(observation, float(reward), terminated, truncated)
        if terminated or truncated:
            observation, _ = env.reset()
        evaluator.after_training(agent.optim_t, env_steps)
    evaluator.end(agent.optim_t)


main()
