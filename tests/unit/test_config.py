"""Configuration as plain data: keys, types and ranges, the nearest match, overrides, and the YAML files of conf/."""

from __future__ import annotations

import dataclasses
import math
import typing
from pathlib import Path

import pytest

from border_cli.cli import overrides
from border_cli.cli.compose import Composer
from border_cli.cli.overrides import parse_overrides
from border_cli.config import presets
from border_cli.config.convert import all_keys, known_keys, load, nearest_key, to_config, to_plain
from border_cli.config.presets import conf_dir
from border_cli.config.registry import TABLES
from border_cli.config.schema import GROUPS, TrainConfig
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


# -- overrides of the command line, as they are passed to Hydra ------------


OPTIONS = {"agent": ["dqn", "iqn"], "env": ["acrobot", "cartpole", "gym"], "experiment": ["big"]}


def for_hydra(*argv):
    parsed = overrides.parse_overrides(argv)
    return [overrides.for_hydra(override, lambda group: OPTIONS.get(group, [])) for override in parsed]


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("agent.lr=1", "++agent.lr=1"),
        ("+agent.lr=1", "++agent.lr=1"),
        ("env.kwargs={a: 'x y'}", "++env.kwargs={a: 'x y'}"),
        ("+agent=iqn", "agent=iqn"),
        ("env=glob(*a*)", "env=glob(*a*)"),
        ("experiment=big", "+experiment=big"),
        ("hydra/launcher=joblib", "hydra/launcher=joblib"),
        ("~env.kwargs.n", "~env.kwargs.n"),
    ],
)
def test_overrides_are_passed_to_hydra(override, expected):
    assert for_hydra(override) == [expected]


@pytest.mark.parametrize(
    ("argv", "hint"),
    [
        (["agent.foo=a:[1", "agent.foo=2]"], "; quote it: 'agent.foo=…'"),  # agent.foo={a:[1,2]}
        (["env.wrappers=[name:X]", "env.wrappers=[kwargs:{a:1}]"], "; quote it: 'env.wrappers=…'"),
        (["env.id=a b(", "seed=1"], ""),
    ],
)
def test_a_word_that_a_shell_has_split_is_to_be_quoted(argv, hint):
    with pytest.raises(UsageError, match="cannot be read as key=value") as refusal:
        overrides.parse_overrides(argv)
    last = str(refusal.value).splitlines()[-1]
    assert last.endswith(hint) if hint else "quote" not in last


def test_an_optimised_interpreter_is_refused():
    path = Path(overrides.__file__)
    names = {"__name__": overrides.__name__}
    exec(compile(path.read_text("utf-8"), path, "exec", optimize=1), names)
    with pytest.raises(UsageError, match="Python's -O removes what reads the arguments"):
        names["parse_overrides"](["seed=1"])


def test_every_choice_of_a_sweep_is_checked():
    with pytest.raises(UsageError, match="there is no 'iqm'"):
        for_hydra("agent=dqn,iqm")


def test_keys_set_by_options_cannot_be_typed():
    for key in ("preset.name", "agent.type", "env.type"):
        with pytest.raises(UsageError, match=key):
            overrides.parse_overrides([f"{key}=x"])
    assert len(overrides.parse_overrides(["preset=none", "agent.lr=1", "evaluator.type=mine:Evaluator"])) == 3


def test_override_values_have_plain_keys_and_the_last_one_wins():
    parsed = overrides.parse_overrides(["+a.b=1", "agent=dqn", "++a.b='x=y'", "~env.kwargs.n"])
    assert overrides.override_values(parsed) == {"a.b": "'x=y'", "agent": "dqn"}


@pytest.mark.parametrize("text", ["plain", "with 'quotes'", "back\\slash", "a,b=[c]{d}: ${e}", "trailing\\"])
def test_quoted_text_round_trips(text):
    (parsed,) = overrides.parse_overrides([f"key={overrides.quoted(text)}"])
    assert parsed.value() == text


# -- the files of conf/ ----------------------------------------------------


def composed(args: str) -> TrainConfig:
    return Composer(parse_overrides(args.split())).compose().config


def test_every_number_has_a_unit():
    hints = typing.get_type_hints(TrainConfig)
    tables = [entry.config for table in TABLES.values() for entry in table.values()]
    for cls in (TrainConfig, *(hints[group] for group in GROUPS), *tables):
        kinds = typing.get_type_hints(cls)
        for field in dataclasses.fields(cls):
            if info := field.metadata.get("option"):
                kind = str(kinds[field.name])
                assert info.help, (cls, field.name)
                assert bool(info.unit) == ("int" in kind or "float" in kind), (cls, field.name)


def test_every_preset_has_a_description_and_known_keys():
    for name, values in presets.shipped().items():
        agent, env, *_ = name.split("_")
        preset = to_config(values | {"agent": values["agent"] | {"type": agent}}).preset
        assert preset.expect and preset.source
        env_file = conf_dir() / "env" / f"{env}.yaml"
        assert "*" in preset.env_id or preset.env_id in env_file.read_text("utf-8")


@pytest.mark.parametrize(
    ("args", "preset", "expect_return", "eval_interval", "batch_size"),
    [
        ("agent=tqc env=hopper agent.batch_size=9", "tqc_hopper", 3754, 10_000, 9),
        ("agent=sac env=halfcheetah preset=sac_halfcheetah_fast", "sac_halfcheetah_fast", 5000, 2_500, 256),
        ("agent=sac env=hopper preset=sac_droq", "sac_droq", None, 100_000, 256),
        ("agent=dqn env=atari env.id=ALE/Freeway-v5", "dqn_atari", None, 50_000, 32),
    ],
)
def test_a_preset_has_its_familys_values_and_its_own(args, preset, expect_return, eval_interval, batch_size):
    c = composed(args)
    assert (c.preset.name, c.preset.expect_return) == (preset, expect_return)
    assert (c.trainer.eval_interval, c.agent.batch_size) == (eval_interval, batch_size)


@pytest.mark.parametrize(
    ("args", "n_step"),
    [
        ("agent=rainbow env=gym env.id=Acrobot-v1", 3),
        ("agent=dqn env=gym env.id=Acrobot-v1 buffer.n_step=2", 2),
        ("agent=iqn env=lunarlander", 1),  # of its preset
    ],
)
def test_value_based_agents_have_three_step_returns_unless_told_otherwise(args, n_step):
    assert composed(args).buffer.n_step == n_step


def test_a_sweep_has_the_preset_of_each_job():
    composer = Composer(parse_overrides(["agent=dqn,c51", "env=pong"]))
    jobs = [composer.compose([f"agent={agent}", "env=pong"]) for agent in ("dqn", "c51")]
    assert [job.config.preset.name for job in jobs] == ["dqn_pong", "c51_pong"]


def test_an_interpolation_may_name_a_key_that_no_file_has():
    words = "evaluator.n_envs=3 evaluator.episodes=${evaluator.n_envs} seed=${trainer.record_interval}"
    assert composed(words).seed == 500


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [1\nb: 2\n", r"x\.yaml: not valid YAML\nline 2: "),
        ("b: !!python/name:os.system", "line 1: could not determine a constructor"),
    ],
)
def test_invalid_yaml_and_yaml_tags_are_refused(tmp_path, text, message):
    (tmp_path / "x.yaml").write_text(text, encoding="utf-8")
    with pytest.raises(UsageError, match=message):
        load(tmp_path / "x.yaml")
