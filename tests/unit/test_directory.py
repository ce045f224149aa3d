"""Run directories: names, locks, the link `latest`, the configuration; what a run names must be typed or trusted."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from border_cli.cli.overrides import parse_overrides, typed_names
from border_cli.config.convert import to_config
from border_cli.config.schema import RecorderConfig, TrainConfig
from border_cli.core.errors import UsageError
from border_cli.run import directory
from border_cli.run.directory import check_code, create_run, create_sweep, exclusive, locked


@pytest.mark.parametrize(
    ("option", "env_id", "expected"),
    [
        ("cartpole", "CartPole-v1", "dqn_cartpole"),
        ("gym", "ALE/Pong-v5", "dqn_ALE-Pong-v5"),
        ("gym", "../x y", "dqn_..-x-y"),
    ],
)
def test_a_run_is_named_by_agent_and_environment_or_as_typed(option: str, env_id: str, expected: str) -> None:
    assert directory.run_name("", "dqn", option, env_id) == expected
    assert directory.run_name("my/run 1", "dqn", option, env_id) == "my-run-1"


def test_runs_started_at_once_have_different_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(directory, "_stamp", lambda: ("2026-11-21", "10-15-00.007"))
    runs = [create_run("dqn_cartpole", tmp_path) for _ in range(3)]
    assert [path.relative_to(tmp_path).as_posix() for path in runs] == [
        f"2026-11-21/10-15-00.007_dqn_cartpole{end}" for end in ("", "-2", "-3")
    ]
    assert not (tmp_path / "latest").readlink().is_absolute()
    assert (tmp_path / "latest").resolve() == runs[-1].resolve()
    assert [create_sweep(tmp_path).name for _ in range(2)] == ["10-15-00.007", "10-15-00.007-2"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["2026-11-21", "latest", "sweeps"]


@pytest.mark.parametrize("name", ["config.yaml", "metrics.jsonl", "summary.json", "checkpoints"])
def test_a_folder_with_a_run_cannot_be_claimed_and_others_can(tmp_path: Path, name: str) -> None:
    (tmp_path / "notes.txt").touch()
    with exclusive(tmp_path) as path, exclusive(tmp_path / "new" / "run") as other:
        assert path == tmp_path and other.is_dir()
    (tmp_path / name).touch()
    with pytest.raises(UsageError, match="already holds a run"), exclusive(tmp_path):
        pass


def test_a_run_of_another_process_is_not_touched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two commands start in one folder. The slower one finds the other's run after it gets the lock."""
    with locked(tmp_path), pytest.raises(UsageError, match="another process"), exclusive(tmp_path):
        pass
    assert [entry.name for entry in tmp_path.iterdir()] == [".lock"]

    @contextmanager
    def slowly(path: Path) -> Iterator[None]:
        (path / "config.yaml").write_text("of somebody else")
        with locked(path):
            yield

    monkeypatch.setattr(directory, "locked", slowly)
    with pytest.raises(UsageError, match="already holds a run"), exclusive(tmp_path / "run"):
        pass
    assert (tmp_path / "run" / "config.yaml").read_text() == "of somebody else"


def test_the_configuration_round_trips(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is not a run"):
        directory.read_config(tmp_path)
    env = {"id": "CartPole-v1", "kwargs": {"text": "null", "number": 1e-9, "nested": {"a": [True]}}}
    agent = {"type": "dqn", "lr": 1e-8, "hidden": [3]}
    config = to_config({"agent": agent, "env": env, "trainer": {"max_time": 0.1}})
    directory.write_config(tmp_path, config)
    assert directory.read_config(tmp_path) == config
    (tmp_path / "config.yaml").write_text("- 1\n", encoding="utf-8")
    with pytest.raises(UsageError, match="holds no configuration"):
        directory.read_config(tmp_path)


WRAPPERS = ["TimeAwareObservation", {"name": "my_envs:W", "kwargs": {"a": 1}}, {"name": "RecordVideo"}]
NAMED: list[tuple[dict[str, Any], str, str, str | None]] = [
    ({"plugins": ["a", "b"]}, "plugins a, b", "plugins=[a]", "plugins=[b,a]"),
    ({"env": {"imports": ["m", "n"]}}, "env.imports m, n", "env.imports=[m]", "env.imports=[n,m]"),
    ({"env": {"id": "m.sub:Mine-v0"}}, "env.id m.sub:Mine-v0", "plugins=[m.sub]", "env.id=m.sub:Mine-v0"),
    (
        {"env": {"entry_point": "os:system", "kwargs": {"command": "true"}}},
        "env.entry_point os:system",
        "env.entry_point=os:popen",
        "env.entry_point=os:system",
    ),
    (
        {"env": {"id": "CartPole-v1", "wrappers": WRAPPERS}},
        "env.wrappers my_envs:W, RecordVideo",
        "env.wrappers=[RecordVideo]",
        "env.wrappers=[{name: 'my_envs:W'},RecordVideo]",
    ),
    ({"env": {"id": "GymV26Environment-v0"}}, "GymV26Environment-v0", "env.id=GymV26Environment-v0", None),
    ({"evaluator": {"type": "m:E"}}, "evaluator.type m:E", "recorder.type=m:E", "evaluator.type='m:E'"),
    ({"step_processor": "m:f"}, "step_processor m:f", "plugins=[m]", "step_processor='m:f'"),
    (
        {"actor_manager": {"type": "ray", "address": "ray://h:1"}},
        "actor_manager.address ray://h:1",
        "actor_manager.address=auto",
        "actor_manager.address='ray://h:1'",
    ),
    ({"recorder": {"mlflow": "http://h"}}, "http://h", "recorder.mlflow=null", "recorder.mlflow='http://h'"),
]


@pytest.mark.parametrize(("data", "said", "another", "typed"), NAMED, ids=[case[1] for case in NAMED])
def test_i2_code_that_a_run_names_must_be_typed_or_trusted(
    data: dict[str, Any], said: str, another: str, typed: str | None
) -> None:
    for words in ([], [another]):
        with pytest.raises(UsageError) as caught:
            check_code(data, typed_names(parse_overrides(words)), trusted=False)
        first, second = str(caught.value).splitlines()
        assert said in first and "trust=true" in second
    if typed is not None:
        check_code(data, typed_names(parse_overrides([typed])), trusted=False)
    check_code(data, {}, trusted=True)


def test_a_command_that_only_plays_needs_no_trust_for_a_tracker(tmp_path: Path) -> None:
    tracked = TrainConfig(recorder=RecorderConfig(mlflow="http://h"))
    assert directory.typed(tmp_path, tracked) == f"{tmp_path} trust=true"
    assert directory.typed(tmp_path, tracked, ("env", "plugins")) == f"{tmp_path}"
    assert (
        directory.typed(tmp_path, TrainConfig(plugins=["m"]), ("env", "plugins")) == f"{tmp_path} trust=true"
    )


@pytest.mark.parametrize(
    "data",
    [
        {"env": {"id": "CartPole-v1", "kwargs": {"sutton_barto_reward": True}, "wrappers": WRAPPERS[:1]}},
        {"env": {"entry_point": "border_cli.envs.atari:Catch"}},
        {
            "plugins": [],
            "evaluator": {"type": "process"},
            "actor_manager": {"type": "ray", "address": "local"},
        },
        {"env": "no section", "plugins": None},
    ],
)
def test_what_belongs_to_border_cli_and_gymnasium_needs_no_trust(data: dict[str, Any]) -> None:
    check_code(data, {}, trusted=False)
