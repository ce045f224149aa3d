"""RLlib: DQN for discrete actions, SAC for continuous ones, with RL Baselines3 Zoo's values, by its new API stack.

Everything runs in this process: no remote env runners, no remote learners. Evaluations come between RLlib's training
iterations, of 256 env steps. Two things differ from the other programs. SAC's critics have a first layer for the
observation and another for the action, and a second layer that joins them. SAC's first actions come from its policy:
RLlib has no random ones before learning starts.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from evaluator import ZOO_DQN, Evaluator, Task, task_from_command_line
from ray.rllib.algorithms.algorithm_config import AlgorithmConfig
from ray.rllib.algorithms.dqn import DQNConfig
from ray.rllib.algorithms.sac import SACConfig
from ray.rllib.algorithms.sac.sac_catalog import SACCatalog
from ray.rllib.algorithms.sac.torch.default_sac_torch_rl_module import DefaultSACTorchRLModule
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
from ray.rllib.core.rl_module.rl_module import RLModule, RLModuleSpec

ITERATION = 256


class TwoLayers(SACCatalog):
    """Critics without a head of their own, so that they have two hidden layers as the policy has."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.qf_head_config = dataclasses.replace(self.qf_head_config, hidden_layer_dims=[])


def dqn(task: Task) -> AlgorithmConfig:
    """Return the configuration of DQN."""
    values = ZOO_DQN[task.env_id]
    decay = int(values.epsilon_fraction * task.max_env_steps)
    return (
        DQNConfig()
        .env_runners(rollout_fragment_length=values.train_interval)
        .rl_module(model_config=DefaultModelConfig(fcnet_hiddens=task.hidden, fcnet_activation="relu"))
        .training(
            lr=values.lr,
            gamma=values.gamma,
            train_batch_size_per_learner=values.batch_size,
            training_intensity=values.batch_size * values.opt_steps / values.train_interval,
            num_steps_sampled_before_learning_starts=values.learning_starts,
            target_network_update_freq=values.target_interval,
            epsilon=[(0, 1.0), (decay, values.epsilon_final)],
            replay_buffer_config={"type": "EpisodeReplayBuffer", "capacity": values.capacity},
            grad_clip=10.0,
            double_q=False,
            dueling=False,
        )
    )


def sac(task: Task) -> AlgorithmConfig:
    """Return the configuration of SAC."""
    first, *others = task.hidden
    model = DefaultModelConfig(
        fcnet_hiddens=[first],
        head_fcnet_hiddens=others,
        fusionnet_hiddens=[],
        fcnet_activation="relu",
        fusionnet_activation="relu",
    )
    module = RLModuleSpec(
        module_class=DefaultSACTorchRLModule,
        catalog_class=TwoLayers,
        model_config=dataclasses.asdict(model) | {"twin_q": True},
    )
    return (
        SACConfig()
        .rl_module(rl_module_spec=module)
        .training(
            actor_lr=3e-4,
            train_batch_size_per_learner=256,
            training_intensity=256,
            num_steps_sampled_before_learning_starts=10_000,
            replay_buffer_config={"type": "EpisodeReplayBuffer", "capacity": 1_000_000},
        )
    )


def greedy(module: RLModule, observations: np.ndarray) -> np.ndarray:
    """Return the actions (n, …). Those of SAC are in [-1, 1], which is HalfCheetah's own range."""
    with torch.no_grad():
        outputs = module.forward_inference({"obs": torch.as_tensor(observations, dtype=torch.float32)})
    if "actions" in outputs:
        return outputs["actions"].numpy()
    inputs = outputs["action_dist_inputs"]
    return module.get_inference_action_dist_cls().from_logits(inputs).to_deterministic().sample().numpy()


def main() -> None:
    """Train as the command line says."""
    task = task_from_command_line()
    discrete = isinstance(gym.make(task.env_id).action_space, gym.spaces.Discrete)
    algorithm = (
        (dqn(task) if discrete else sac(task))
        .environment(task.env_id)
        .env_runners(num_env_runners=0)
        .learners(num_learners=0)
        .reporting(min_sample_timesteps_per_iteration=ITERATION, min_time_s_per_iteration=0)
        .debugging(seed=task.seed)
        .build_algo()
    )
    evaluator = Evaluator(task, lambda observations: greedy(algorithm.get_module(), observations))
    opt_steps = env_steps = 0
    while env_steps < task.max_env_steps:
        result = algorithm.train()
        env_steps = int(result["num_env_steps_sampled_lifetime"])
        if "learners" in result:
            rows = result["learners"]["__all_modules__"]["num_module_steps_trained_lifetime"]
            opt_steps = int(rows) // algorithm.config.total_train_batch_size
        evaluator.after_training(opt_steps, env_steps)
    algorithm.stop()
    evaluator.end(opt_steps)


main()
