"""What other tools call our settings: stable-baselines3 and its Zoo, CleanRL, Gymnasium, Hydra, Weights & Biases."""

from __future__ import annotations

WORDS = {
    # Settings with a value, in our unit.
    "agent": "algo algorithm algo_name",
    "env": "env_id env_name environment gym_id task",
    "name": "run_name exp_name experiment_name wandb_run_name",
    "n_actors": "num_workers num_actors n_workers",
    "threads": "num_threads n_threads torch_threads",
    "init_from": "i trained_agent load_checkpoint pretrained",
    "resume": "resume_from load_run",
    "agent.lr": "learning_rate policy_lr actor_lr",
    "agent.critic_lr": "q_lr qf_lr",
    "agent.hidden": "net_arch hidden_sizes hidden_size hidden_dim fc_dims",
    "agent.target_tau": "tau",
    "agent.epsilon_start": "start_e exploration_initial_eps eps_start",
    "agent.epsilon_final": "end_e exploration_final_eps eps_end",
    "agent.entropy_coef": "ent_coef",
    "agent.policy_interval": "policy_delay policy_frequency",
    "agent.random_env_steps": "start_steps",
    "agent.target_noise": "target_policy_noise policy_noise",
    "agent.quantiles": "n_quantiles num_quantiles",
    "agent.atoms": "n_atoms num_atoms",
    "agent.critics": "n_critics",
    "agent.drop_quantiles": "top_quantiles_to_drop_per_net",
    "agent.max_grad_norm": "grad_clip clip_grad_norm",
    "buffer.capacity": "buffer_size replay_size memory_size",
    "buffer.alpha": "prioritized_replay_alpha",
    "actor_manager.envs_per_actor": "num_envs n_envs",
    "trainer.max_env_steps": "n n_timesteps total_timesteps total_steps num_timesteps max_steps num_steps timesteps",
    "trainer.warmup_period": "learning_starts warmup_steps",
    "evaluator.episodes": "eval_episodes n_eval_episodes",
    "evaluator.n_envs": "n_eval_envs",
    "recorder.project": "wandb_project wandb_project_name",
    "recorder.wandb": "wandb_mode",
    "env.imports": "gym_packages",
    "env.kwargs": "env_kwargs",
    "hydra.sweeper.n_trials": "n_trials",
    # Settings with a value in another unit, which `border_cli.cli.translate` converts.
    "agent.epsilon_env_steps [share of budget]": "exploration_fraction",
    "agent.target_interval [opt steps]": "target_update_interval target_network_frequency",
    "trainer.eval_interval [opt steps]": "eval_freq eval_frequency eval_every",
    "trainer.save_interval [opt steps]": "save_freq save_frequency checkpoint_freq",
    "trainer.opt_interval": "train_freq train_frequency",
    "trainer.opt_interval [inverse]": "gradient_steps utd utd_ratio",
    "device [gpu]": "gpu gpu_id",
    # Switches.
    "device=cuda": "cuda use_cuda",
    "device=cpu": "no_cuda",
    "trainer.lockstep=true": "torch_deterministic deterministic",
    "recorder.wandb=online": "track wandb use_wandb",
    "recorder.wandb=offline": "wandb_offline",
    "evaluator.video_interval=10000": "capture_video record_video save_video",
    "agent.entropy_coef=auto": "autotune",
    "-m hydra/sweeper=border_optuna": "optimize optimize_hyperparameters",
    "--config-dir": "config_path cp",
    # What has no setting here, and why.
    "# every run writes TensorBoard's files": "tensorboard_log f log_folder logdir",
    "# the screen shows the progress": "p progress verbose log_interval",
    "# checkpoints contain the replay": "save_replay_buffer",
    "# each actor is a process; n_actors sets their number": "vec_env",
    "# set WANDB_ENTITY": "wandb_entity wandb_tags tags",
    "# border-eval render=human shows a trained agent": "render render_mode",
    "# networks follow from the observations": "policy mlppolicy cnnpolicy multiinputpolicy",
    "# own files: --config-dir DIR, with DIR/env/mine.yaml for env=mine": "config_name cn",
    "# values follow": "hyperparams hyperparameters params",
}
"""Our words, each with those of other tools; dashes and dots in these are written as underscores."""

ON_POLICY = ("ppo", "a2c", "trpo", "ars", "a3c", "reinforce", "impala", "ppo_lstm", "recurrent_ppo")
ALGORITHMS = {"ddqn": "dqn", "double_dqn": "dqn", "dueling_dqn": "dqn", "ddpg": "td3"}
"""Algorithms that are values of ours."""
VALUES = {
    "recorder.wandb": {"true": "online", "false": "none", "disabled": "none"},
    "device": {"gpu": "cuda", "auto": "cpu"},
}
"""Values of our settings, as other tools call them."""


def known_as(word: str) -> str | None:
    """The entry of `WORDS` for a word of another tool, in any spelling; None where there is none."""
    spelled = word.lower().lstrip("-").replace("-", "_").replace(".", "_")
    return _BY_WORD.get(spelled) or _BY_WORD.get(word.lower().rpartition(".")[2].replace("-", "_"))


_BY_WORD = {word: target for target, words in WORDS.items() for word in words.split()}
