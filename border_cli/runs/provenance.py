"""provenance.json: where a run came from, so that it can be told apart and made again."""

from __future__ import annotations

import os
import platform
import shlex
import subprocess
import uuid
from collections.abc import Sequence
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from typing import Any

import border_cli
from border_cli.core.errors import UsageError
from border_cli.runs.json_file import read_json, write_json

PROVENANCE_FILE = "provenance.json"
_PACKAGES = ("torch", "numpy", "gymnasium", "hydra-core", "safetensors")
_GIT_TIMEOUT_S = 5.0


def record_launch(run_dir: Path, argv: Sequence[str], seed: int, command: str = "border-train") -> str:
    """Write provenance.json, or add a launch to the one that is there. Returns the run's id.

    argv: the words after the command's name · seed: the root of every random stream of the run.
    Raises OSError when it cannot be written, ValueError when the one that is there cannot be read.
    """
    path = run_dir / PROVENANCE_FILE
    data = read_json(path) if path.exists() else _origin(seed)
    data["launches"] = [*data.get("launches", []), _launch([command, *argv])]
    write_json(path, data)
    return str(data["run_id"])


def check_provenance(run_dir: Path) -> None:
    """Raises UsageError where there is a provenance.json that no launch can be added to."""
    path = run_dir / PROVENANCE_FILE
    try:
        if not path.exists() or isinstance(read_json(path)["run_id"], str):
            return
    except (OSError, ValueError, KeyError):
        pass  # told below
    raise UsageError(
        f"{path} cannot be read: it is damaged, or none of ours\nallowed: to remove it; the run then gets a new one"
    )


def read_run_id(run_dir: Path) -> str | None:
    """The id of a run; None where there is none that can be read."""
    try:
        run_id = read_json(run_dir / PROVENANCE_FILE).get("run_id")
    except (OSError, ValueError):
        return None
    return run_id if isinstance(run_id, str) else None


def versions() -> dict[str, str | None]:
    """Versions of Python, border-cli and the packages that matter; None where not installed."""
    own: dict[str, str | None] = {"python": platform.python_version(), "border_cli": border_cli.__version__}
    return own | {name.removesuffix("-core"): _version(name) for name in _PACKAGES}


def _origin(seed: int) -> dict[str, Any]:
    return {
        "run_id": str(uuid.uuid4()),
        "versions": versions(),
        "git": _git_state(),
        "host": {"name": platform.node(), "platform": platform.platform(), "cpu_count": os.cpu_count()},
        "seeds": {"root": seed},
        "launches": [],
    }


def _launch(words: Sequence[str]) -> dict[str, str]:
    now = datetime.now(timezone.utc)
    return {
        "command": shlex.join(words),
        "time": now.isoformat(timespec="milliseconds"),
        "cwd": str(Path.cwd()),
    }


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _git_state() -> dict[str, Any] | None:
    """Commit of the working directory, and whether it differs from that; None outside a repository."""
    commit = _git("rev-parse", "HEAD")
    if commit is None:
        return None
    changes = _git("status", "--porcelain")
    return {"commit": commit, "dirty": None if changes is None else bool(changes)}


def _git(*words: str) -> str | None:
    """What git answers, None where there is no git, no repository, or no answer in time."""
    # Neither a lock nor a hook of the repository: this only looks.
    command = ["git", "--no-optional-locks", "-c", "core.fsmonitor=false", *words]
    try:
        answer = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_GIT_TIMEOUT_S,
            check=True,
        )
    except (OSError, subprocess.SubprocessError, UnicodeDecodeError):
        return None
    return answer.stdout.strip()
