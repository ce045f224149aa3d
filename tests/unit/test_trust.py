"""Whose run it is, and what of it may be imported."""

from __future__ import annotations

import stat
import uuid
from pathlib import Path

import pytest

from border_cli.config.schema import EnvConfig
from border_cli.core.errors import UsageError
from border_cli.runs.trust import Typed, check_env, check_plugins, code_of, is_own, own_runs_file, remember

MINE, OTHER = (str(uuid.UUID(int=n)) for n in (1, 2))
CODE = code_of(["plugin"], EnvConfig(entry_point="my_envs:Corridor", kwargs={"length": 9}))


@pytest.fixture(autouse=True)
def state_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state"


def test_a_run_is_own_once_it_is_remembered(state_folder: Path) -> None:
    assert not is_own(MINE)
    remember(MINE, CODE)
    remember(MINE, CODE)
    assert is_own(MINE) and not is_own(OTHER)
    assert (state_folder / "border-cli" / "runs").read_text() == f"{MINE} {CODE}\n"


@pytest.mark.parametrize(
    ("plugins", "env"),
    [
        (["another"], EnvConfig(entry_point="my_envs:Corridor", kwargs={"length": 9})),
        (["plugin"], EnvConfig(entry_point="os:system", kwargs={"length": 9})),
        (["plugin"], EnvConfig(entry_point="my_envs:Corridor", kwargs={"length": "os.system"})),
        (["plugin"], EnvConfig(entry_point="my_envs:Corridor", kwargs={"length": 9}, imports=["os"])),
        (["plugin"], EnvConfig(id="module:Id-v0", kwargs={"length": 9})),
    ],
)
def test_i2_a_copy_of_an_own_run_that_names_other_code_is_not_own(plugins: list[str], env: EnvConfig) -> None:
    remember(MINE, CODE)
    assert is_own(MINE, CODE)
    assert not is_own(MINE, code_of(plugins, env))


def test_what_changes_no_code_leaves_it_own() -> None:
    env = EnvConfig(entry_point="my_envs:Corridor", kwargs={"length": 9}, out_of_bounds="warn")
    assert code_of(["plugin"], env) == CODE


def test_only_the_user_reads_and_writes_the_list(state_folder: Path) -> None:
    remember(MINE, CODE)
    assert stat.S_IMODE((state_folder / "border-cli" / "runs").stat().st_mode) == 0o600


@pytest.mark.parametrize("run_id", [None, "", "\n", MINE[:-1], f"{MINE}\n{OTHER}", MINE.upper() + "X"])
def test_i2_what_is_no_id_is_nobodys(run_id: str | None) -> None:
    remember(MINE, CODE)
    assert not is_own(run_id)


@pytest.mark.parametrize("configured", ["", "relative/path"])
def test_where_the_state_folder_is_by_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, configured: str
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", configured)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert own_runs_file() == tmp_path / ".local" / "state" / "border-cli" / "runs"


def test_a_list_that_cannot_be_written_is_a_warning(
    state_folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    state_folder.write_text("a file where the folder should be")
    remember(MINE, CODE)
    assert "somebody else's" in caplog.text
    assert not is_own(MINE)


PLAIN = EnvConfig(id="CartPole-v1", kwargs={"sutton_barto_reward": True})
IMPORTS = EnvConfig(id="Mine-v0", imports=["my_envs", "more"])
PREFIXED = EnvConfig(id="my_envs.sub:Mine-v0")
CLASS = EnvConfig(entry_point="os:system", kwargs={"command": "true"})


def test_an_environment_of_gymnasium_needs_nothing() -> None:
    check_env(PLAIN, Typed(), own=False)


@pytest.mark.parametrize(
    ("env", "words"),
    [
        (IMPORTS, "env.imports=[my_envs,more]"),
        (PREFIXED, "env.imports=[my_envs.sub]"),
        (CLASS, "env.entry_point=os:system"),
    ],
)
def test_i2_code_of_somebody_else_has_to_be_typed(env: EnvConfig, words: str) -> None:
    with pytest.raises(UsageError) as caught:
        check_env(env, Typed(), own=False)
    assert words in str(caught.value)
    assert len(str(caught.value).splitlines()) == 2
    check_env(env, Typed(), own=True)


def test_i2_all_of_it_has_to_be_typed() -> None:
    with pytest.raises(UsageError):
        check_env(IMPORTS, Typed(imports=["my_envs"]), own=False)
    with pytest.raises(UsageError):
        check_env(CLASS, Typed(imports=["os"], entry_point="os:popen"), own=False)
    check_env(IMPORTS, Typed(imports=["more", "my_envs", "another"]), own=False)
    check_env(PREFIXED, Typed(imports=["my_envs.sub"]), own=False)
    check_env(CLASS, Typed(entry_point="os:system"), own=False)


@pytest.mark.parametrize("env_id", ["GymV26Environment-v0", "GymV26Environment", "GymV21Environment-v0"])
def test_i2_an_id_that_imports_what_its_arguments_name_is_never_foreign(env_id: str) -> None:
    env = EnvConfig(id=env_id, kwargs={"env_id": "evil:Env-v0"})
    with pytest.raises(UsageError, match="imports whatever"):
        check_env(env, Typed(), own=False)
    check_env(env, Typed(), own=True)


def test_i2_plugins_of_somebody_else_have_to_be_typed() -> None:
    with pytest.raises(UsageError, match=r"plugins=\[a,b\]"):
        check_plugins(["a", "b"], Typed(plugins=["a"]), own=False)
    check_plugins(["a", "b"], Typed(plugins=["b", "a"]), own=False)
    check_plugins(["a"], Typed(), own=True)
    check_plugins([], Typed(), own=False)
