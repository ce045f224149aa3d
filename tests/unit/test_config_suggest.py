"""The nearest match for a misspelt key. A wrong match is worse than none."""

from __future__ import annotations

import pytest

from border_cli.config.convert import all_keys, nearest, nearest_key

OPTIONS = ["acrobot", "cartpole", "dqn", "gym", "hopper", "tqc"]


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("cartpol", "cartpole"),
        ("CARTPOLE", "cartpole"),
        ("acrobat", "acrobot"),
        ("dnq", "dqn"),
        ("dqm", "dqn"),
        ("zzz", None),
        ("", None),
    ],
)
def test_nearest(word, expected):
    assert nearest(word, OPTIONS) == expected


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("agent.lrr", "agent.lr"),
        ("trainer.capacity", "buffer.capacity"),
        ("batch_size", "agent.batch_size"),
        ("trainr.max_opts", "trainer.max_opts"),
        ("max_episode_steps", "env.max_episode_steps"),
        ("trainer.warmup", "trainer.warmup_period"),
        ("agent.target", None),  # three keys contain it
        ("qqqqqqqq", None),
        # a feature that does not exist gets no hint
        ("agent.weight_decay", None),
        ("agent.dropout", None),
        # keys of other tools
        ("agent.learning_rate", "agent.lr"),
        ("total_timesteps", "trainer.max_env_steps"),
        ("buffer_size", "buffer.capacity"),
        ("agent.learning_starts", "trainer.warmup_period"),
        ("policy.net_arch", "agent.hidden"),
        ("agent.train_freq", "trainer.opt_interval"),
        ("gradient_steps", "trainer.opt_interval"),
        ("target_update_interval", "agent.target_interval"),
        ("exploration_fraction", "agent.epsilon_env_steps"),
        ("num_envs", "actor_manager.envs_per_actor"),
    ],
)
def test_nearest_key(key, expected):
    assert nearest_key(key, all_keys()) == expected
