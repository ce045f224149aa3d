"""What is refused of a run that is not trusted: importing the code that it names, and writing into it through links.

A run's configuration is data, but it names modules: packages that register environments, an environment's class,
plugins. Importing a module runs its code. That happens only with `trust=true`, and for names that the user typed.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from border_cli.config.convert import as_typed
from border_cli.config.registry import import_paths
from border_cli.core.errors import UsageError

_WRAPPERS_OF_ANYTHING = ("GymV21Environment", "GymV26Environment")
"""Ids of gymnasium, without version, that import what their arguments name."""
_WRITES_FILES = ("RecordVideo",)
"""Wrappers of gymnasium that write where their arguments say."""
_NOWHERE = (None, "local")
"""Values of an address that lead to nothing outside of the run."""
_WRITTEN_TO = (".", "checkpoints", "eval", "tensorboard", "videos", "export", "export/numpy", "export/onnx")


def code_names(data: Mapping[str, Any]) -> dict[str, list[str]]:
    """What a configuration names beyond border-cli: modules, import paths and addresses, by key. data: plain data."""
    env, manager, recorder = (_section(data, name) for name in ("env", "actor_manager", "recorder"))
    names = {"plugins": names_in(data.get("plugins"))}
    names |= {f"env.{key}": names_in(env.get(key)) for key in ("imports", "entry_point")}
    wrappers = names_in(env.get("wrappers"))
    names["env.wrappers"] = [name for name in wrappers if ":" in name or name in _WRITES_FILES]
    env_id = str(env.get("id") or "")
    names["env.id"] = [env_id] if ":" in env_id else []
    if any(name in env_id for name in _WRAPPERS_OF_ANYTHING):
        names["env.kwargs"] = [f"whatever {env_id} imports for them"]
    names |= {key: [path] for key, path in import_paths(data).items()}
    addresses = {"recorder.mlflow": recorder.get("mlflow")}
    if manager.get("type") == "ray":
        addresses["actor_manager.address"] = manager.get("address")
    names |= {key: [as_typed(value)] for key, value in addresses.items() if value not in _NOWHERE}
    return {key: listed for key, listed in names.items() if listed}


def check_code(data: Mapping[str, Any], typed: Mapping[str, Sequence[str]], trusted: bool) -> None:
    """Raise UsageError that says what to type, unless all that a configuration names was typed, or is trusted.

    data: as for `code_names` · typed: the names in the values that the user typed, by key.
    """
    missing = {
        key: ", ".join(names)
        for key, names in code_names(data).items()
        if not trusted and not set(names) <= set(typed.get(key, ()))
    }
    if missing:
        listed = "; ".join(f"{key} {names}" for key, names in missing.items())
        raise UsageError(
            f"this run names code or addresses that are not border-cli's: {listed}",
            allowed="trust=true, if you trust the maker of the run",
        )


def check_plain(run_dir: Path, trusted: bool) -> None:
    """Raise UsageError where writing to a run that is not trusted could change files elsewhere, or wait for ever.

    Links and files with a second name lead elsewhere; opening a pipe waits for its other end.
    """
    if trusted:
        return
    for folder in (run_dir / name for name in _WRITTEN_TO):
        for entry in list(os.scandir(folder)) if folder.is_dir() else ():
            is_file = entry.is_file(follow_symlinks=False) and entry.stat(follow_symlinks=False).st_nlink == 1
            if not is_file and not entry.is_dir(follow_symlinks=False):
                raise UsageError(
                    f"{entry.path} is no plain file or folder: what is written to it may go anywhere",
                    allowed="trust=true, if you trust the maker of the run, or a copy made by cp -rL",
                )


def _section(data: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    section = data.get(name)
    return section if isinstance(section, Mapping) else {}


def names_in(value: Any) -> list[str]:
    """The names in a value of the configuration: a text, a list of texts, or a list of wrappers."""
    entries = value if isinstance(value, list) else [] if value is None else [value]
    return [str(entry.get("name")) if isinstance(entry, Mapping) else str(entry) for entry in entries]
