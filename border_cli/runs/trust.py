"""Whether the modules that a run names may be imported.

A run's configuration is data, but it names modules: packages that register environments, an environment's class,
plugins. Importing a module runs its code. That happens only for the user's own runs, and for names that the user typed.
A file in the user's state folder lists the own runs: the id of each with a checksum of everything in it that names code,
because a copy of a run has the same id and may have been changed.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from border_cli.config.convert import as_typed, to_plain
from border_cli.config.registry import import_paths
from border_cli.config.schema import EnvConfig, TrainConfig
from border_cli.core.errors import UsageError

_logger = logging.getLogger(__name__)
_RUN_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_WRAPPERS_OF_ANYTHING = ("GymV21Environment", "GymV26Environment")
"""Ids of gymnasium, without version, that import what their arguments name."""
_WRITES_FILES = ("RecordVideo",)
"""Wrappers of gymnasium that write where their arguments say."""


@dataclass(frozen=True)
class Typed:
    """The names of code that the user typed."""

    imports: Sequence[str] = ()
    entry_point: str | None = None
    wrappers: Sequence[str] = ()
    plugins: Sequence[str] = ()


def own_runs_file() -> Path:
    """The user's list of runs: an id and a checksum per line, below the state folder of the XDG base directories."""
    configured = os.environ.get("XDG_STATE_HOME", "")
    # The specification has relative paths ignored.
    state = Path(configured) if Path(configured).is_absolute() else Path.home() / ".local" / "state"
    return state / "border-cli" / "runs"


def code_of(plugins: Sequence[str], env: Mapping[str, Any], parts: Mapping[str, str] | None = None) -> str:
    """A checksum of everything that names code to run.

    Args:
        plugins: the plugins of a run.
        env: its section `env` as plain data, because a plugin that is not imported yet may define its keys.
        parts: import paths of an evaluator, a recorder …, and addresses, by key. Only training uses them.
    """
    named = [list(plugins), *(env.get(name) for name in ("imports", "entry_point", "id", "kwargs"))]
    if env.get("wrappers"):
        named.append(env["wrappers"])
    if parts:
        named.append(dict(parts))
    return hashlib.sha256(json.dumps(named, sort_keys=True, default=str).encode()).hexdigest()


def remember(run_id: str, code: str) -> None:
    """Add a run to the list of own runs, with the code that it names (see `code_of`). Warns if that fails."""
    path = own_runs_file()
    try:
        if is_own(run_id, code):
            return
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        # A single write, so that the lines of runs that start at the same time do not mix.
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        with contextlib.closing(os.fdopen(descriptor, "wb", buffering=0)) as file:
            file.write(f"{run_id} {code}\n".encode("ascii"))
    except OSError as e:
        _logger.warning("%s: %s; border-eval will treat this run as that of another user", path, e.strerror)


def remember_run(run_id: str, config: TrainConfig) -> None:
    """Add a run of this configuration to the list of own runs: for training, and for what only evaluates it."""
    plain = to_plain(config)
    for parts in ({}, import_paths(plain) | destinations(plain)):  # what evaluates it imports no parts
        remember(run_id, code_of(config.plugins, plain["env"], parts))


def is_own(run_id: str | None, code: str | None = None) -> bool:
    """Whether a run is in the list of own runs, with this code if given. A list that cannot be read is empty."""
    if run_id is None or not _RUN_ID.fullmatch(run_id):
        return False
    try:
        lines = own_runs_file().read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return False
    return any(line.startswith(f"{run_id} ") and code in (None, line.partition(" ")[2]) for line in lines)


def check_plugins(plugins: Sequence[str], typed: Typed, own: bool) -> None:
    """Raise UsageError that says what to type, unless these modules may be imported."""
    missing = [] if own else [name for name in plugins if name not in typed.plugins]
    if missing:
        raise _refusal(f"needs the plugins {', '.join(missing)}", f"plugins=[{','.join(plugins)}]")


def check_parts(parts: Mapping[str, str], typed: Mapping[str, str], own: bool) -> None:
    """Raise UsageError that says what to type, unless these import paths, by key, may be imported. typed: all that was."""
    for key, path in parts.items():
        if not own and typed.get(key) != path:
            raise _refusal(f"imports {path}", f"{key}={path}")


def destinations(data: Mapping[str, Any]) -> dict[str, str]:
    """Where a plain configuration connects to or sends records to, outside of the run's directory, by key."""
    manager, recorder = data.get("actor_manager"), data.get("recorder")
    found: dict[str, Any] = {}
    if isinstance(manager, Mapping) and manager.get("type") == "ray":
        found["actor_manager.address"] = manager.get("address")
    if isinstance(recorder, Mapping):
        found |= {f"recorder.{name}": recorder.get(name) for name in ("wandb", "trackio", "mlflow")}
    nowhere = (None, False, "none", "local")
    return {key: as_typed(value) for key, value in found.items() if value not in nowhere}


def check_destinations(found: Mapping[str, str], typed: Mapping[str, str], own: bool) -> None:
    """Raise UsageError that says what to type, unless a run may connect to these addresses, by key. typed: all that was."""
    for key, value in found.items():
        if not own and typed.get(key) != value:
            raise UsageError(
                f"this run is not one of yours, and it sends data elsewhere: {key}={value}\n"
                f"if you want that, add {key}={value}"
            )


def check_env(env: EnvConfig, typed: Typed, own: bool) -> None:
    """Raise UsageError that says what to type, unless the code that makes this environment may be run."""
    if own:
        return
    modules = [*env.imports, *filter(None, [env.id.rpartition(":")[0]])]
    if any(name not in typed.imports for name in modules):
        raise _refusal(f"imports {', '.join(modules)}", f"env.imports=[{','.join(modules)}]")
    if env.entry_point is not None and env.entry_point != typed.entry_point:
        raise _refusal(f"is made by {env.entry_point}", f"env.entry_point={env.entry_point}")
    wrappers = [wrapper.name for wrapper in env.wrappers]
    code = [
        name for name in wrappers if (":" in name or name in _WRITES_FILES) and name not in typed.wrappers
    ]
    if code:
        shown = as_typed([asdict(wrapper) for wrapper in env.wrappers])
        raise _refusal(f"uses the wrappers {', '.join(code)}", f"'env.wrappers={shown}'")
    if any(name in env.id for name in _WRAPPERS_OF_ANYTHING):
        raise UsageError(f"this run is not one of yours, and {env.id} imports whatever its arguments name")


def _refusal(what: str, words: str) -> UsageError:
    return UsageError(f"this run is not one of yours, and it {what}\nif you trust that code, add {words}")
