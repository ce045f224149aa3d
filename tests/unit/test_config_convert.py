"""Keys, types and ranges of plain data, and the nearest match for a misspelt key. A wrong match is worse than none."""

from __future__ import annotations

import math

import pytest

from border_cli.config.convert import all_keys, known_keys, nearest_key, to_config, to_plain
from border_cli.core.errors import UsageError

DQN = {"agent": {"type": "dqn"}}


def refused(data):
    with pytest.raises(UsageError) as refusal:
        to_config(DQN | data)
    lines = str(refusal.value).splitlines()
    assert 1 <= len(lines) <= 3
    return lines


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
        *(("max_opts", 1e5, 100_000), ("opt_interval", 2, 2.0), ("max_opts", "1_000", 1000)),
        *(("max_opts", "2.5M", 2_500_000), ("max_time", "1.5min", 90.0)),
    ],
)
def test_numbers_in_other_notations_are_converted(key, value, expected):
    result = getattr(to_config(DQN | {"trainer": {key: value}}).trainer, key)
    assert (result, type(result)) == (expected, type(expected))


def test_a_single_value_is_a_list_of_one():
    config = to_config({"agent": {"type": "dqn", "hidden": 64}, "env": {"imports": "mine"}})
    assert (config.agent.hidden, config.env.imports) == ([64], ["mine"])


@pytest.mark.parametrize(
    ("key", "value", "fragments"),
    [
        ("agent.lr", "fast", ["'fast' is of the wrong type", "a number > 0 and <= 1"]),
        ("agent.lr", 0.0, ["0.0 is out of range", "> 0"]),
        ("agent.lr", math.inf, ["inf is not a finite number"]),
        ("agent.lr", None, ["null has no meaning here"]),
        ("agent.double", 1, ["1 is of the wrong type", "true or false"]),
        ("agent.batch_size", 2.5, ["2.5 is not a whole number", "rows"]),
        ("agent.loss", "hubr", ["there is no 'hubr'", "huber, mse", "nearest: huber"]),
        # null means no clipping there
        ("agent.max_grad_norm", "auto", ["'auto' is of the wrong type", "or null"]),
        ("agent.hidden", [256, 0], ["0 is out of range", "a list in brackets"]),
        ("env.kwargs", "b:2", ["not keys with values", "such as {name: 1}, which a shell needs in quotes"]),
        ("env.kwargs", {"a": math.nan}, ["it cannot be stored with a run"]),
        ("env.wrappers", [{"kwargs": {}}], ["a name, or {name: …, kwargs: {…}}"]),
        ("trainer.eval_interval", 0, ["0 is out of range", "or null", "opt steps"]),
    ],
)
def test_a_wrong_value_is_refused_with_what_is_allowed(key, value, fragments):
    section, _, name = key.partition(".")
    lines = refused({section: DQN.get(section, {}) | {name: value}})
    assert lines[0].startswith(f"{key}: ")
    assert all(fragment in "\n".join(lines) for fragment in fragments), lines


@pytest.mark.parametrize(
    ("agent", "fragments"),
    [
        ({}, ["agent.type: is missing", "allowed: dqn"]),
        ({"type": "dqm"}, ["there is no 'dqm'", "nearest: dqn"]),
        ([1], ["agent: [1] is of the wrong type", "keys with values"]),
    ],
)
def test_the_type_of_an_agent_is_checked(agent, fragments):
    lines = refused({"agent": agent})
    assert all(fragment in "\n".join(lines) for fragment in fragments), lines


def test_known_keys_follow_the_chosen_agent_and_null_may_be_auto():
    assert "agent.lr" in known_keys(DQN)
    assert "agent.lr" not in known_keys({})
    assert known_keys(DQN)["trainer.max_opts"].unit == "opt steps"
    assert to_config({"agent": {"type": "dqn", "v_min": "auto"}}).agent.v_min is None


@pytest.mark.parametrize(
    ("data", "key", "match"),
    [
        ({"agent": {"type": "dqn", "lrr": 1}}, "agent.lrr", "agent.lr"),
        ({"trainer": {"capacity": 5}}, "trainer.capacity", "buffer.capacity"),
    ],
)
def test_an_unknown_key_is_refused_with_the_nearest(data, key, match):
    assert refused(data)[:2] == [f"{key}: there is no such key", f"nearest: {match}"]


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("batch_size", "agent.batch_size"),
        ("trainer.warmup", "trainer.warmup_period"),
        ("agent.target", None),  # three keys contain it
    ],
)
def test_the_nearest_key(key, expected):
    assert nearest_key(key, all_keys()) == expected
