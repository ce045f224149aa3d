"""The YAML files of conf/, the presets, and the schema that they fill."""

from __future__ import annotations

import dataclasses
import typing

import pytest

from border_cli.cli.compose import Composer
from border_cli.cli.overrides import parse_overrides
from border_cli.config import presets
from border_cli.config.convert import load, to_config
from border_cli.config.presets import conf_dir
from border_cli.config.registry import TABLES
from border_cli.config.schema import GROUPS, TrainConfig
from border_cli.core.errors import UsageError


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
        ("agent=dqn env=atari env.id=ALE/Freeway-v5", "dqn_atari", None, 50_000, 32),
    ],
)
def test_a_preset_of_a_family_has_the_familys_values_and_its_own(
    args, preset, expect_return, eval_interval, batch_size
):
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
