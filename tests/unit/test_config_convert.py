"""Keys, types and ranges of plain data."""

from __future__ import annotations

import math

import pytest

from border_cli.config.convert import ConfigError, all_keys, known_keys, to_config, to_plain
from border_cli.config.schema import TrainConfig

DQN = {"agent": {"type": "dqn"}}


def refused(data):
    with pytest.raises(ConfigError) as caught:
        to_config(DQN | data)
    lines = str(caught.value).splitlines()
    assert 1 <= len(lines) <= 3
    return caught.value.key, lines


def test_missing_keys_take_their_defaults():
    config = to_config(DQN | {"env": {"id": "CartPole-v1"}})
    assert (config.agent.lr, config.agent.hidden) == (1e-3, [256, 256])
    assert (config.env.id, config.env.kwargs) == ("CartPole-v1", {})
    assert config.trainer == TrainConfig().trainer


def test_conversion_round_trips_and_shares_no_default():
    config = to_config(DQN | {"n_actors": 3, "env": {"kwargs": {"a": {"b": [1, 2.5, None]}}}})
    assert to_config(to_plain(config)) == config
    first, second = to_config(DQN), to_config(DQN)
    first.agent.hidden.append(1)
    first.env.kwargs["x"] = 1
    assert (second.agent.hidden, second.env.kwargs) == ([256, 256], {})


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        *(("max_opts", 7, 7), ("max_opts", 1e5, 100_000), ("max_opts", 100.0, 100), ("opt_interval", 2, 2.0)),
        *(("max_opts", "100k", 100_000), ("max_opts", "1_000", 1000), ("max_opts", "2.5M", 2_500_000)),
        *(("max_opts", "1e6", 1_000_000), ("max_time", "1h", 3600.0), ("max_time", "90s", 90.0)),
        *(("max_time", "1.5min", 90.0), ("max_time", "2d", 172_800.0)),
    ],
)
def test_numbers_in_other_notations_are_converted(key, value, expected):
    result = getattr(to_config(DQN | {"trainer": {key: value}}).trainer, key)
    assert (result, type(result)) == (expected, type(expected))


def test_a_single_value_is_a_list_of_one():
    config = to_config({"agent": {"type": "dqn", "hidden": 64}, "env": {"imports": "mine"}})
    assert (config.agent.hidden, config.env.imports) == ([64], ["mine"])


@pytest.mark.parametrize(
    ("section", "key", "value", "fragments"),
    [
        ("agent", "lr", "fast", ["'fast' is of the wrong type", "a number > 0 and <= 1"]),
        ("agent", "lr", True, ["True is of the wrong type"]),
        ("agent", "lr", 0.0, ["0.0 is out of range", "> 0"]),
        ("agent", "lr", math.inf, ["inf is not a finite number"]),
        ("agent", "lr", 10**400, ["as large as this is out of range"]),
        ("trainer", "max_opts", 10**30, ["as large as this is out of range"]),
        ("agent", "lr", None, ["null has no meaning here"]),
        ("agent", "gamma", 1.01, ["1.01 is out of range", ">= 0 and <= 1"]),
        ("agent", "double", 1, ["1 is of the wrong type", "true or false"]),
        ("agent", "batch_size", 2.5, ["2.5 is not a whole number", "rows"]),
        ("agent", "batch_size", math.inf, ["inf is not a whole number"]),
        ("agent", "loss", "hubr", ["there is no 'hubr'", "huber, mse", "nearest: huber"]),
        ("agent", "hidden", None, ["null has no meaning here, not a list"]),
        ("agent", "hidden", [256, 0], ["0 is out of range", "a list in brackets"]),
        ("agent", "hidden", [256, "a"], ["'a' is of the wrong type"]),
        ("env", "kwargs", [1], ["not keys with values"]),
        (
            "env",
            "kwargs",
            "b:2",
            ["not keys with values", "such as {name: 1}, which a shell needs in quotes"],
        ),
        ("env", "wrappers", ["kwargs:b:2"], ["a part of a wrapper that a shell has split: quote it"]),
        ("env", "id", 5, ["5 is of the wrong type", "text"]),
        ("trainer", "eval_interval", 0, ["0 is out of range", "or null", "opt steps"]),
        ("recorder", "console", "screan", ["nearest: screen"]),
    ],
)
def test_a_wrong_value_is_refused_with_what_is_allowed(section, key, value, fragments):
    data = {section: {"type": "dqn", key: value} if section == "agent" else {key: value}}
    name, lines = refused(data)
    assert name == f"{section}.{key}"
    assert lines[0].startswith(f"{section}.{key}: ")
    assert all(fragment in "\n".join(lines) for fragment in fragments), lines


@pytest.mark.parametrize(
    ("data", "key", "nearest"),
    [
        ({"agent": {"type": "dqn", "lrr": 1}}, "agent.lrr", "agent.lr"),
        ({"trainer": {"max_opt": 1}}, "trainer.max_opt", "trainer.max_opts"),
        ({"lr": 1}, "lr", "agent.lr"),
        ({"agnet": {}}, "agnet", "agent"),
        ({"n_actor": 2}, "n_actor", "n_actors"),
        ({"trainer": {"capacity": 5}}, "trainer.capacity", "buffer.capacity"),
        ({"env": {"kwarg": {}}}, "env.kwarg", "env.kwargs"),
        ({"resume": "auto"}, "resume", None),
    ],
)
def test_an_unknown_key_is_refused_with_the_nearest(data, key, nearest):
    name, lines = refused(data)
    assert name == key
    assert lines[0] == f"{key}: there is no such key"
    if nearest:
        assert lines[1] == f"nearest: {nearest}"


@pytest.mark.parametrize(
    ("agent", "fragments"),
    [
        ({}, ["agent.type: is missing", "allowed: dqn"]),
        ({"type": "dqm"}, ["there is no 'dqm'", "nearest: dqn"]),
        ({"type": 3}, ["there is no 3"]),
        (None, ["null has no meaning here"]),
        ([1], ["keys with values"]),
    ],
)
def test_the_type_of_an_agent_is_checked(agent, fragments):
    _, lines = refused({"agent": agent})
    assert all(fragment in "\n".join(lines) for fragment in fragments), lines


def test_a_section_must_be_a_section():
    assert refused({"trainer": 5})[1] == ["trainer: 5 is of the wrong type", "allowed: keys with values"]


def test_known_keys_follow_the_chosen_agent():
    assert "agent.lr" in known_keys(DQN)
    assert "agent.lr" not in known_keys({})
    assert "agent.lr" in all_keys()
    assert known_keys(DQN)["trainer.max_opts"].unit == "opt steps"
