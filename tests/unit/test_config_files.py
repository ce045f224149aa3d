"""The YAML files and the schema must not drift apart."""

from __future__ import annotations

import dataclasses

import pytest
from omegaconf import OmegaConf

from border_cli.cli.compose import Composer
from border_cli.cli.overrides import parse_words
from border_cli.config.convert import all_keys, known_keys, to_config, to_plain
from border_cli.config.paths import conf_dir
from border_cli.config.presets import preset_for
from border_cli.config.schema import GROUPS, TrainConfig
from border_cli.core.errors import UsageError

BASES = {
    "agent": "dqn",
    "env": "gym",
    "buffer": "uniform",
    "actor_manager": "process",
    "trainer": "async",
    "evaluator": "inline",
    "recorder": "default",
    "checkpoint": "default",
    "preset": "none",
}
PRESETS = sorted(file.stem for file in (conf_dir() / "preset").glob("*_*.yaml"))


def read(*parts):
    return OmegaConf.to_container(OmegaConf.load(conf_dir().joinpath(*parts)))


def test_every_group_has_its_folder():
    assert {folder.name for folder in conf_dir().iterdir() if folder.is_dir()} == set(GROUPS) == set(BASES)


@pytest.mark.parametrize("group", GROUPS)
def test_a_base_option_holds_every_key_with_its_default(group):
    file = read(group, f"{BASES[group]}.yaml")
    defaults = to_plain(to_config({"agent": {"type": "dqn"}}))[group]
    assert file == defaults
    assert list(file) == list(defaults)


def test_the_primary_config_holds_every_other_key_with_its_default():
    file = read("train.yaml")
    plain = {field.name for field in dataclasses.fields(TrainConfig)} - set(GROUPS)
    assert {name: value for name, value in file.items() if name not in ("defaults", "hydra")} == {
        name: to_plain(to_config({"agent": {"type": "dqn"}}))[name] for name in plain
    }


@pytest.mark.parametrize(
    ("group", "option"), [*BASES.items(), ("agent", "sac"), ("buffer", "prioritized"), ("", "train")]
)
def test_comments_are_the_units_helps_and_choices_of_the_schema(group, option):
    infos = known_keys(
        {"agent": {"type": "sac" if option == "sac" else "dqn"}, "buffer": {"type": "prioritized"}}
    )
    for name, comment in comments(group, option).items():
        info = infos[f"{group}.{name}".lstrip(".")]
        unit = f"[{info.unit}] " if info.unit else ""
        choices = f" ({' | '.join(info.choices)})" if info.choices else ""
        assert comment == f"{unit}{info.help}{choices}"


def comments(group, option):
    """What stands behind each value of a file, by the key's name; empty where nothing does."""
    lines = (conf_dir() / group / f"{option}.yaml").read_text(encoding="utf-8").splitlines()
    return {
        line.partition(":")[0]: line.partition("  # ")[2]
        for line in lines
        if line[:1].islower() and not line.startswith(("defaults:", "hydra:"))
    }


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_says_what_it_is_and_sets_known_keys(name):
    agent, _, env = name.partition("_")
    words = [f"agent={agent}", f"env={env}", *(["env.id=ALE/Freeway-v5"] if env == "atari" else [])]
    with Composer(parse_words(words), None) as composer:
        config = composer.compose(composer.words()).config
    preset = config.preset
    assert preset.name == name
    assert preset.expect
    assert preset.source
    assert preset.env_id == ("" if env == "atari" else config.env.name)
    text = (conf_dir() / "preset" / f"{name}.yaml").read_text(encoding="utf-8")
    assert text.startswith("# @package _global_\n")


def test_the_cartpole_preset_is_the_published_one_at_a_steady_ratio():
    config = to_config(
        read("preset", "dqn_cartpole.yaml")
        | {"agent": read("preset", "dqn_cartpole.yaml")["agent"] | {"type": "dqn"}}
    )
    agent, trainer = config.agent, config.trainer
    assert (agent.lr, agent.batch_size, agent.target_interval, agent.hidden) == (2.3e-3, 64, 128, [256, 256])
    assert (agent.epsilon_start, agent.epsilon_final, agent.epsilon_env_steps) == (1.0, 0.04, 8000)
    assert (agent.loss, agent.max_grad_norm, config.buffer.capacity) == ("huber", 10.0, 100_000)
    assert (trainer.opt_interval, trainer.warmup_period, trainer.max_env_steps) == (2.0, 1000, 50_000)
    assert (trainer.eval_interval, config.evaluator.episodes) == (1000, 20)


@pytest.mark.parametrize(
    ("agent", "env_id", "expected"),
    [
        ("dqn", "CartPole-v1", "dqn_cartpole"),
        ("dqn", "LunarLander-v3", "dqn_lunarlander"),
        ("dqn", "CartPole-v0", None),
        ("tqc", "CartPole-v1", None),
    ],
)
def test_a_preset_is_found_by_the_environments_id(agent, env_id, expected):
    assert preset_for(agent, env_id) == expected


def test_help_texts_are_there():
    for key, info in all_keys().items():
        assert info.help, key


def test_broken_yaml_is_named_with_its_line(tmp_path):
    from border_cli.config.yaml_text import load

    (tmp_path / "x.yaml").write_text("a: [1\nb: 2\n", encoding="utf-8")
    with pytest.raises(UsageError, match=r"x\.yaml: not valid YAML\nline 2: "):
        load(tmp_path / "x.yaml")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: &a {b: 1}\nc: *a\n", "line 2: aliases"),
        ("a: &a {b: 1}\nc: {<<: *a}\n", "line 2: aliases"),
        ("&a [1, *a]", "line 1: aliases"),
        (f"a: 0x{'f' * 5000}", "line 1: the number is too long"),
        (f"a: {'9:' * 5000}9", "line 1: the number is too long"),
        (f"a: {'9:' * 5000}9.0", "line 1: the number is too long"),
        ("a: 1\nb: !!python/name:os.system", "line 2: tags"),
        ("a: !!bool maybe", "line 1: tags"),
    ],
)
def test_yaml_that_is_more_than_it_seems_is_refused(tmp_path, text, said):
    from border_cli.config.yaml_text import load

    (tmp_path / "x.yaml").write_text(text, encoding="utf-8")
    with pytest.raises(UsageError, match=said):
        load(tmp_path / "x.yaml")


def test_yaml_of_any_plain_kind_is_read(tmp_path):
    from border_cli.config.yaml_text import dump, load

    data = {"a": [1, -2.5, None, True, "*b", "&c", "<<"], "b": {}, "c": {"d": {"e": 2**64}}, "f": "ä: x"}
    (tmp_path / "x.yaml").write_text(dump(data), encoding="utf-8")
    assert load(tmp_path / "x.yaml") == data
