"""The YAML files and the schema must not drift apart."""

from __future__ import annotations

import dataclasses
import typing

import pytest
from omegaconf import OmegaConf

from bench import conf_files
from border_cli.cli.compose import Composer
from border_cli.cli.overrides import parse_overrides
from border_cli.config import presets
from border_cli.config.convert import dump, load, to_config
from border_cli.config.presets import conf_dir, preset_for
from border_cli.config.registry import TABLES
from border_cli.config.schema import GROUPS, TrainConfig
from border_cli.core.errors import UsageError


def test_files_that_list_every_key_are_up_to_date_with_make_conf():
    assert {folder.name for folder in conf_dir().iterdir() if folder.is_dir()} == {*GROUPS, "hydra", "space"}
    for path, text in conf_files.files():
        assert path.read_text(encoding="utf-8") == text, path


def test_the_primary_config_has_every_other_key_with_its_default():
    lines = (conf_dir() / "train.yaml").read_text(encoding="utf-8")
    values = OmegaConf.create(lines)
    for field in dataclasses.fields(TrainConfig):
        if field.name not in GROUPS:
            assert values[field.name] == getattr(TrainConfig(), field.name)
            assert f"  # {conf_files.comment(field.metadata['option'])}\n" in lines


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
        config = to_config(values | {"agent": values["agent"] | {"type": agent}})
        assert config.preset.name == name
        assert config.preset.expect and config.preset.source
        assert bool(config.preset.env_id) == (env not in ("atari", "mujoco"))
        if config.preset.env_id:
            assert config.preset.env_id in (conf_dir() / "env" / f"{env}.yaml").read_text(encoding="utf-8")
        file = conf_dir() / presets.file_of(name)
        assert file.read_text(encoding="utf-8").startswith("# @package _global_\n")


@pytest.mark.parametrize(
    ("args", "values"),
    [
        ("agent=sac env=hopper", ("sac_hopper", 2326, 5_000, 256)),
        ("agent=tqc env=hopper", ("tqc_hopper", 3754, 10_000, 128)),
        ("agent=tqc env=hopper agent.batch_size=9", ("tqc_hopper", 3754, 10_000, 9)),
        ("agent=iqn env=pong trainer.eval_interval=7", ("iqn_pong", 20.3, 7, 32)),
    ],
)
def test_an_environment_of_a_family_has_shared_and_own_values(args, values):
    with Composer(parse_overrides(args.split())) as composer:
        c = composer.compose().config
    assert (c.preset.name, c.preset.expect_return, c.trainer.eval_interval, c.agent.batch_size) == values
    assert c.preset.environments == {}


@pytest.mark.parametrize(
    ("args", "n_step"),
    [
        ("agent=dqn env=gym env.id=Acrobot-v1", 3),
        ("agent=rainbow env=gym env.id=Acrobot-v1", 3),
        ("agent=iqn buffer=prioritized env=gym env.id=Acrobot-v1", 3),
        ("agent=dqn env=gym env.id=Acrobot-v1 buffer.n_step=2", 2),
        ("agent=iqn env=lunarlander", 1),  # of its preset
        ("agent=sac env=gym env.id=Pendulum-v1", 1),
    ],
)
def test_value_based_agents_have_three_step_returns_unless_told_otherwise(args, n_step):
    with Composer(parse_overrides(args.split())) as composer:
        assert composer.compose().config.buffer.n_step == n_step


def test_a_sweep_has_the_preset_of_each_job():
    with Composer(parse_overrides(["agent=dqn,c51", "env=pong"])) as composer:
        names = [
            composer.compose([f"agent={agent}", "env=pong"]).config.preset.name for agent in ("dqn", "c51")
        ]
    assert names == ["dqn_pong", "c51_pong"]


def test_a_preset_is_found_by_the_environment_id():
    found = [preset_for("dqn", env_id) for env_id in ("CartPole-v1", "LunarLander-v3", "CartPole-v0")]
    assert found == ["dqn_cartpole", "dqn_lunarlander", None]
    assert (preset_for("c51", "ALE/Pong-v5"), preset_for("tqc", "CartPole-v1")) == ("c51_pong", None)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [1\nb: 2\n", r"x\.yaml: not valid YAML\nline 2: "),
        ("b: !!python/name:os.system", "line 1: could not determine a constructor"),
        ("a: 2026-13-01", "month"),
    ],
)
def test_invalid_yaml_and_yaml_tags_are_refused(tmp_path, text, message):
    (tmp_path / "x.yaml").write_text(text, encoding="utf-8")
    with pytest.raises(UsageError, match=message):
        load(tmp_path / "x.yaml")


def test_yaml_of_any_plain_kind_is_read(tmp_path):
    data = {"a": [1, -2.5, None, True, "*b", "&c", "<<"], "b": {}, "c": {"d": {"e": 2**64}}, "f": "ä: x"}
    (tmp_path / "x.yaml").write_text(dump(data), encoding="utf-8")
    assert load(tmp_path / "x.yaml") == data
