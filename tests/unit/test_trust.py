"""Trusted runs, and the code that may be imported for a run."""

from __future__ import annotations

import stat
import uuid
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from border_cli.config.schema import EnvConfig, WrapperConfig
from border_cli.core.errors import UsageError
from border_cli.runs.trust import Typed, check_env, check_plugins, code_of, is_own, own_runs_file, remember

MINE, OTHER = (str(uuid.UUID(int=n)) for n in (1, 2))
CORRIDOR = EnvConfig(entry_point="my_envs:Corridor", kwargs={"length": 9})
CODE = code_of(["plugin"], asdict(CORRIDOR))


@pytest.fixture(autouse=True)
def state_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state"


def test_a_run_is_trusted_after_it_is_in_a_list_that_only_the_user_can_write(state_folder: Path) -> None:
    assert not is_own(MINE)
    remember(MINE, CODE)
    remember(MINE, CODE)
    assert is_own(MINE) and not is_own(OTHER)
    path = state_folder / "border-cli" / "runs"
    assert path.read_text() == f"{MINE} {CODE}\n"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.parametrize(
    ("plugins", "changes"),
    [
        (["another"], {}),
        (["plugin"], {"entry_point": "os:system"}),
        (["plugin"], {"kwargs": {"length": "os.system"}}),
        (["plugin"], {"imports": ["os"]}),
        (["plugin"], {"entry_point": None, "id": "module:Id-v0"}),
        (["plugin"], {"wrappers": [WrapperConfig("my_envs:Wrapper")]}),
        (["plugin"], {"wrappers": [WrapperConfig("RecordVideo", {"video_folder": "elsewhere"})]}),
    ],
)
def test_i2_a_copy_that_names_other_code_is_not_trusted(plugins: list[str], changes: dict[str, Any]) -> None:
    remember(MINE, CODE)
    assert not is_own(MINE, code_of(plugins, asdict(replace(CORRIDOR, **changes))))
    assert is_own(MINE, code_of(["plugin"], asdict(replace(CORRIDOR, out_of_bounds="warn"))))


@pytest.mark.parametrize("run_id", [None, "", "\n", MINE[:-1], f"{MINE}\n{OTHER}", MINE.upper() + "X"])
def test_i2_an_invalid_id_is_not_trusted(run_id: str | None) -> None:
    remember(MINE, CODE)
    assert not is_own(run_id)


@pytest.mark.parametrize("configured", ["", "relative/path"])
def test_the_default_state_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, configured: str) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", configured)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert own_runs_file() == tmp_path / ".local" / "state" / "border-cli" / "runs"


def test_a_list_that_cannot_be_written_is_a_warning(
    state_folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    state_folder.write_text("a file where the folder should be")
    remember(MINE, CODE)
    assert "that of another user" in caplog.text
    assert not is_own(MINE)


PLAIN = EnvConfig(id="CartPole-v1", kwargs={"sutton_barto_reward": True})
IMPORTS = EnvConfig(id="Mine-v0", imports=["my_envs", "more"])
PREFIXED = EnvConfig(id="my_envs.sub:Mine-v0")
CLASS = EnvConfig(entry_point="os:system", kwargs={"command": "true"})
WRAPPED = EnvConfig(
    id="CartPole-v1",
    wrappers=[
        WrapperConfig("TimeAwareObservation"),
        WrapperConfig("my_envs:W", {"a": 1}),
        WrapperConfig("RecordVideo", {"video_folder": "/home"}),
    ],
)


@pytest.mark.parametrize(
    ("env", "lacking", "typed", "args"),
    [
        (
            IMPORTS,
            [Typed(imports=["my_envs"])],
            Typed(imports=["more", "my_envs", "other"]),
            "imports=[my_envs,more]",
        ),
        (PREFIXED, [], Typed(imports=["my_envs.sub"]), "imports=[my_envs.sub]"),
        (
            CLASS,
            [Typed(imports=["os"], entry_point="os:popen")],
            Typed(entry_point="os:system"),
            "entry_point=os:system",
        ),
        (
            WRAPPED,
            [Typed(wrappers=["RecordVideo"]), Typed(imports=["my_envs"], wrappers=["my_envs:W"])],
            Typed(wrappers=["my_envs:W", "RecordVideo"]),
            "wrappers=[{name:TimeAwareObservation,kwargs:{}},{name:my_envs:W,kwargs:{a:1}},"
            "{name:RecordVideo,kwargs:{video_folder:/home}}]",
        ),
    ],
)
def test_i2_all_code_of_a_foreign_run_must_be_typed(
    env: EnvConfig, lacking: list[Typed], typed: Typed, args: str
) -> None:
    for too_little in (Typed(), *lacking):
        with pytest.raises(UsageError) as caught:
            check_env(env, too_little, own=False)
        assert f"env.{args}" in str(caught.value)
        assert len(str(caught.value).splitlines()) == 2
    check_env(env, Typed(), own=True)
    check_env(env, typed, own=False)
    check_env(PLAIN, Typed(), own=False)  # an environment of gymnasium
    check_env(replace(PLAIN, wrappers=WRAPPED.wrappers[:1]), Typed(), own=False)  # and a wrapper of it


@pytest.mark.parametrize("env_id", ["GymV26Environment-v0", "GymV26Environment", "GymV21Environment-v0"])
def test_i2_a_foreign_id_that_imports_from_its_arguments_is_refused(env_id: str) -> None:
    env = EnvConfig(id=env_id, kwargs={"env_id": "evil:Env-v0"})
    with pytest.raises(UsageError, match="imports whatever"):
        check_env(env, Typed(), own=False)
    check_env(env, Typed(), own=True)


def test_i2_plugins_of_a_foreign_run_must_be_typed() -> None:
    with pytest.raises(UsageError, match=r"plugins=\[a,b\]"):
        check_plugins(["a", "b"], Typed(plugins=["a"]), own=False)
    check_plugins(["a", "b"], Typed(plugins=["b", "a"]), own=False)
    check_plugins(["a"], Typed(), own=True)
    check_plugins([], Typed(), own=False)
