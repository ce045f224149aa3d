"""What the user probably meant."""

from __future__ import annotations

import pytest

from border_cli.config.convert import all_keys
from border_cli.config.suggest import nearest, nearest_key, nearest_line


@pytest.mark.parametrize(
    ("word", "expected"),
    [("cartpol", "cartpole"), ("CARTPOLE", "cartpole"), ("acrobat", "acrobot"), ("zzz", None), ("", None)],
)
def test_nearest(word, expected):
    assert nearest(word, ["acrobot", "cartpole", "gym"]) == expected


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("agent.lrr", "agent.lr"),
        ("trainer.capacity", "buffer.capacity"),
        ("batch_size", "agent.batch_size"),
        ("trainr.max_opts", "trainer.max_opts"),
        ("evaluator.episode", "evaluator.episodes"),
        ("max_episode_steps", "env.max_episode_steps"),
        ("qqqqqqqq", None),
    ],
)
def test_nearest_key(key, expected):
    assert nearest_key(key, all_keys()) == expected


def test_nearest_line():
    assert nearest_line("agent.lr") == "\nnearest: agent.lr"
    assert nearest_line(None) == ""
