"""Run directories: names, locks, the link `latest` and the configuration."""

from __future__ import annotations

from contextlib import contextmanager
from datetime import datetime

import pytest

from border_cli.config.convert import to_config
from border_cli.core.errors import UsageError
from border_cli.run import directory
from border_cli.run.directory import locked

NOW = datetime(2026, 11, 21, 10, 15, 0, 7_999)


@pytest.mark.parametrize(
    ("option", "env_id", "expected"),
    [
        ("cartpole", "CartPole-v1", "dqn_cartpole"),
        ("my_env", "X", "dqn_my_env"),
        ("mine/my_env", "X", "dqn_mine-my_env"),
        ("gym", "ALE/Pong-v5", "dqn_ALE-Pong-v5"),
        ("gym", "my_mod:My_Env-v0.1", "dqn_my-mod-My-Env-v0.1"),
        ("gym", "../x y", "dqn_..-x-y"),
    ],
)
def test_name(option, env_id, expected):
    assert directory.run_name("", "dqn", option, env_id) == expected
    assert directory.run_name("my run/1", "dqn", option, env_id) == "my-run-1"


def test_runs_started_in_one_millisecond_get_different_folders_and_latest_links_to_the_newest(tmp_path):
    made = [directory.create_run("dqn_cartpole", tmp_path, NOW) for _ in range(3)]
    assert [path.relative_to(tmp_path).as_posix() for path in made] == [
        "2026-11-21/10-15-00.007_dqn_cartpole",
        "2026-11-21/10-15-00.007_dqn_cartpole-2",
        "2026-11-21/10-15-00.007_dqn_cartpole-3",
    ]
    link = tmp_path / "latest"
    assert not link.readlink().is_absolute()
    assert link.resolve() == made[-1].resolve()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["2026-11-21", "latest"]


def test_a_folder_named_latest_is_not_replaced(tmp_path):
    (tmp_path / "latest").mkdir()
    (tmp_path / "latest" / "mine").touch()
    made = directory.create_run("dqn_cartpole", tmp_path, NOW)
    assert made.is_dir()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["2026-11-21", "latest"]


def test_sweeps_have_their_own_folder_and_no_link(tmp_path):
    assert directory.create_sweep(tmp_path, NOW) == tmp_path / "sweeps" / "2026-11-21" / "10-15-00.007"
    assert directory.create_sweep(tmp_path, NOW).name == "10-15-00.007-2"
    assert not (tmp_path / "latest").exists()


def test_a_run_folder_that_cannot_be_made_is_refused(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="cannot be made or written to"):
        directory.create_run("dqn_cartpole", tmp_path / "file" / "runs", NOW)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    with pytest.raises(UsageError, match="cannot be made"), directory.exclusive(tmp_path / "a" / ("x" * 300)):
        pass


@pytest.mark.parametrize("name", ["config.yaml", "metrics.jsonl", "summary.json", "checkpoints"])
def test_a_folder_with_a_run_cannot_be_claimed(tmp_path, name):
    (tmp_path / name).touch()
    with pytest.raises(UsageError, match="already holds a run"), directory.exclusive(tmp_path):
        pass


def test_a_run_started_after_the_check_is_not_touched(tmp_path, monkeypatch):
    """Two commands start in one folder. The slower one finds the other's run after it gets the lock."""

    @contextmanager
    def slowly(path):
        (path / "config.yaml").write_text("of somebody else")
        with locked(path):
            yield

    monkeypatch.setattr(directory, "locked", slowly)
    with pytest.raises(UsageError, match="already holds a run"), directory.exclusive(tmp_path / "run"):
        pass
    assert (tmp_path / "run" / "config.yaml").read_text() == "of somebody else"


def test_a_folder_locked_by_a_starting_run_cannot_be_claimed(tmp_path):
    with locked(tmp_path), pytest.raises(UsageError, match="another process"), directory.exclusive(tmp_path):
        pass
    assert [entry.name for entry in tmp_path.iterdir()] == [".lock"]


def test_other_folders_can_be_claimed(tmp_path):
    (tmp_path / "notes.txt").touch()
    with directory.exclusive(tmp_path) as path, directory.exclusive(tmp_path / "new" / "one") as other:
        assert path == tmp_path
        assert other.is_dir()


def test_the_configuration_round_trips(tmp_path):
    env = {"id": "CartPole-v1", "kwargs": {"text": "null", "number": 1e-9, "nested": {"a": [True]}}}
    agent = {"type": "dqn", "lr": 1e-8, "hidden": [3]}
    config = to_config({"agent": agent, "env": env, "trainer": {"max_time": 0.1}})
    directory.write_config(tmp_path, config)
    assert directory.read_config(tmp_path) == config


def test_a_folder_without_a_configuration_is_refused(tmp_path):
    with pytest.raises(UsageError, match="is not a run"):
        directory.read_config(tmp_path)
    (tmp_path / "config.yaml").write_text("- 1\n", encoding="utf-8")
    with pytest.raises(UsageError, match="holds no configuration"):
        directory.read_config(tmp_path)
