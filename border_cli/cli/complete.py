"""Shell completion (`-sc install=bash`), of border-train and border-bench from the schema and the files of conf/.

An answer imports neither Hydra nor torch, because a person waits for it.
"""

from __future__ import annotations

import glob
import itertools
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import Field
from pathlib import Path
from typing import Any

from border_cli.cli.command import show
from border_cli.config import presets
from border_cli.config.convert import known_fields
from border_cli.config.registry import TABLES, import_installed_plugins
from border_cli.config.schema import GROUPS
from border_cli.core.errors import UsageError

_FLAGS = ("--help", "--version", "--multirun", "--cfg", "--config-dir", "--shell-completion")
_BOOLEAN = ("true", "false")
_BESIDE = {
    "sweep.slots": ("auto",),
    "sweep.retry": _BOOLEAN,
    "sweep.new": _BOOLEAN,
    "trust": _BOOLEAN,
    "device": ("cpu", "cuda", "mps"),
    "hydra.run.dir": (),
    "hydra/launcher": ("border", "border_ray"),
    "hydra/sweeper": ("border_optuna",),
}
"""Values of what the schema does not describe."""
_PATHS = ("resume", "init_from", "hydra.run.dir", "hydra.sweep.dir")


def answer() -> int:
    """Answer a shell that completes border-train or border-bench. Returns the exit code."""
    import_installed_plugins()
    complete(sys.argv[2:])
    return 0


def complete(request: Sequence[str]) -> None:
    """Set up completion in a shell, or answer one, by COMP_LINE. Raises UsageError for a request that is not Hydra's."""
    action, _, shell = " ".join(request).partition("=")
    if action not in ("install", "uninstall", "query") or shell not in ("bash", "zsh", "fish"):
        shells = [f"-sc install={shell}" for shell in ("bash", "zsh", "fish")]
        raise UsageError("-sc sets up completion in a shell", allowed=shells)
    if action == "query":
        show("\n".join(suggestions(os.environ.get("COMP_LINE", ""))))
    else:
        from hydra._internal.hydra import Hydra

        getattr(Hydra.get_shell_to_plugin_map(None)[shell][0], action)()


def suggestions(line: str) -> list[str]:
    """What the last word of a command line may become, sorted as declared."""
    *before, word = line.split(" ")
    typed = dict(typed_word.split("=", 1) for typed_word in before if "=" in typed_word)
    folders = [Path(b) for a, b in itertools.pairwise(before) if a in ("-cd", "--config-dir")]
    key, equals, value = word.partition("=")
    if word.startswith("-"):
        options: Iterable[str] = _FLAGS
    elif equals:
        head, comma, last = value.rpartition(",")
        options = [f"{key}={head}{comma}{option}" for option in _values(key, last, typed, folders)]
    else:
        names = (*GROUPS, *_fields(typed), *_BESIDE, "resume")
        keys = [f"{name}=" for name in names if ("." in name) == ("." in key)]
        options = keys if "." in key else [*keys, *(f"{group}." for group in (*GROUPS, "sweep", "hydra.run"))]
    return [option for option in dict.fromkeys(options) if option.startswith(word)]


def _values(key: str, start: str, typed: Mapping[str, str], folders: Sequence[Path]) -> Iterable[str]:
    if key in GROUPS:
        files = [f for root in (presets.conf_dir(), *folders) for f in (root / key).glob("*.yaml")]
        options = sorted({*(file.stem for file in files), *TABLES.get(key, ())})
        if key != "preset":
            return options
        agent, env = typed.get("agent", ""), typed.get("env", "")
        return [name for name in [*options, *presets.shipped()] if name.startswith(agent) and env in name]
    if key in _PATHS:
        return [*(["auto"] if key == "resume" else []), *sorted(glob.glob(f"{glob.escape(start)}*/"))]  # noqa: PTH207 - "./" is kept
    if key == "env.id":
        return filter(None, presets.env_ids().values())
    field = _fields(typed).get(key)
    if key in _BESIDE or field is None:
        return _BESIDE.get(key, ())
    info = field.metadata["option"]
    others = ["auto"] if info.auto else ["null"] if "None" in str(field.type) else []
    return [*(_BOOLEAN if field.type == "bool" else info.choices), *others]


def _fields(typed: Mapping[str, str]) -> dict[str, Field[Any]]:
    """Every key with its declaration; the typed option of a group decides its keys."""
    chosen = ({"agent": "dqn"} | dict(typed)).items()
    data = {group: {"type": name} for group, name in chosen if name in TABLES.get(group, ())}
    return {key: field for key, field in known_fields(data).items() if not key.endswith(".type")}
