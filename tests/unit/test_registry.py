"""The registry: dataclasses and factories of each section by type. See also `test_extending`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import gymnasium
import pytest

from border_cli.config import registry
from border_cli.config.convert import known_keys, to_config, to_plain
from border_cli.config.registry import import_path
from border_cli.config.schema import ActorManagerConfig, EnvConfig, option, override_default
from border_cli.core.errors import BorderError, UsageError
from border_cli.envs.group import GymEnv


@dataclass
class MazeConfig(EnvConfig):
    type: str = override_default(EnvConfig, "type", "maze")
    width: int = option(3, "width of the maze", unit="cells", ge=2)


@dataclass
class ClusterConfig(ActorManagerConfig):
    hosts: list[str] = option([], "hosts")


calls: list[tuple[object, ...]] = []


def make(config: EnvConfig, **kwargs: object) -> gymnasium.Env:
    calls.append((config, kwargs))
    return gymnasium.make("CartPole-v1")


PATH = f"{__name__}:make"
PLUGIN = {"env": ("maze", MazeConfig, PATH), "actor_manager": ("cluster", ClusterConfig, PATH)}


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    for group, entry in PLUGIN.items():
        registry.register(group, *entry)
    yield
    for group, (name, *_) in PLUGIN.items():
        del registry.TABLES[group][name]


def config(**sections: object):
    return to_config({"agent": {"type": "dqn"}, **sections})


@pytest.mark.parametrize(
    ("group", "kind", "key", "value"),
    [("env", "maze", "width", 5), ("actor_manager", "cluster", "hosts", ["a"])],
)
def test_the_dataclass_of_a_registered_type_defines_the_keys_of_its_section(group, kind, key, value):
    section = getattr(config(**{group: {"type": kind, key: value}}), group)
    assert getattr(section, key) == value
    assert f"{group}.{key}" in known_keys({group: {"type": kind}})
    with pytest.raises(
        UsageError, match=rf"{group}\.{key}: .* has no such key\nallowed: .* with {group}={kind}"
    ):
        config(**{group: {key: value}})


def test_a_registered_environment_is_made_with_its_config_and_kwargs():
    env = config(env={"type": "maze", "width": 5, "kwargs": {"walls": True}}).env
    assert GymEnv(env).spec.action.n == 2
    assert calls == [(env, {"walls": True})]


@pytest.mark.parametrize("group", registry.IMPORTABLE)
def test_a_type_may_be_an_import_path(group):
    chosen = config(**{group: {"type": PATH}})
    entry = registry.find(group, getattr(chosen, group).type)
    assert entry is not None and entry.load() is make
    assert registry.import_paths(to_plain(chosen) | {"env": "damaged"}) == {f"{group}.type": PATH}
    with pytest.raises(UsageError, match=rf"{group}\.type: there is no 'Maze'"):
        config(**{group: {"type": "Maze"}})


def test_a_name_is_registered_once_and_an_agent_is_never_an_import_path():
    registry.register("env", *PLUGIN["env"])
    with pytest.raises(ValueError, match="env 'maze' is registered twice"):
        registry.register("env", "maze", EnvConfig, "elsewhere:make")
    with pytest.raises(UsageError, match=r"agent\.type"):
        to_config({"agent": {"type": PATH}})


@pytest.mark.parametrize(
    ("path", "error", "said"),
    [
        ("no_such_module", UsageError, "key: there is no module 'no_such_module'\nallowed: a module"),
        ("json:no_such", UsageError, "key: the module json has no 'no_such'"),
        ("broken_module", BorderError, "key: broken_module failed on import\nRuntimeError: broken"),
    ],
)
def test_an_import_path_that_does_not_exist_is_refused(path, error, said, tmp_path, monkeypatch):
    (tmp_path / "broken_module.py").write_text("raise RuntimeError('broken')")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(error, match=said):
        registry.import_path(path, "key")


def test_a_module_of_the_current_folder_comes_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "only_here.py").write_text("VALUE = 5\n")
    (tmp_path / "colorsys.py").write_text(
        "raise SystemExit('the module of the standard library comes first')\n"
    )
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(tmp_path)
    assert import_path("only_here:VALUE") == 5
    assert import_path("colorsys").__file__ != str(tmp_path / "colorsys.py")
    with pytest.raises(UsageError, match="a module in the current folder"):
        import_path("nowhere_at_all")
