"""The JSON files of a run: provenance.json (its launches), summary.json (how it ended) and crash.json (a defect)."""

from __future__ import annotations

import os
import platform
import shlex
import subprocess
import traceback
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from typing import Any

import border_cli
from border_cli.core import json_text
from border_cli.core.errors import ActorLostError
from border_cli.core.progress import RunResult
from border_cli.core.types import Evaluation
from border_cli.runtime.files import open_plain, replace_file


def write_json(path: Path, data: Any) -> None:
    """Replace `path` by this data, numbers that are not finite as null. Raises OSError; then `path` is as it was."""
    replace_file(path, json_text.encode(json_text.finite_or_null(data)))


def read_json(path: Path) -> dict[str, Any]:
    """The object in a file. Raises OSError when it cannot be read, ValueError when it is no JSON object."""
    with open_plain(path) as file:
        data = json_text.decode(json_text.read(file))
    if not isinstance(data, dict):
        raise ValueError(f"{path} does not contain an object")
    return data


def read_summary(run_dir: Path) -> dict[str, Any]:
    """summary.json of a run; empty where it cannot be read."""
    try:
        return read_json(run_dir / SUMMARY_FILE)
    except (OSError, ValueError):
        return {}


def mean_score(summary: Mapping[str, Any], key: str) -> float | None:
    """The mean return in `best_score` or `last_score` of a summary.json; None where there is none."""
    mean = (summary.get(key) or {}).get("mean")
    return float(mean) if isinstance(mean, int | float) else None


PROVENANCE_FILE = "provenance.json"
_PACKAGES = ("torch", "numpy", "gymnasium", "hydra-core", "safetensors")


def record_launch(run_dir: Path, argv: Sequence[str], seed: int, command: str = "border-train") -> str:
    """Write provenance.json, or add a launch to the existing one. Returns the run's id.

    argv: the words after the command's name · seed: the root of every random stream of the run.
    A damaged one is replaced. Raises OSError if it cannot be written.
    """
    path = run_dir / PROVENANCE_FILE
    try:
        data = read_json(path)
        run_id, launches = str(data["run_id"]), list(data["launches"])
    except (OSError, ValueError, KeyError, TypeError):  # a new run, or a damaged file
        run_id, launches = str(uuid.uuid4()), []
        commit = _git("rev-parse", "HEAD")
        changes = None if commit is None else _git("status", "--porcelain")
        data = {
            "run_id": run_id,
            "versions": versions(),
            "git": commit and {"commit": commit, "dirty": None if changes is None else bool(changes)},
            "host": {"name": platform.node(), "platform": platform.platform(), "cpu_count": os.cpu_count()},
            "seeds": {"root": seed},
        }
    now = datetime.now(timezone.utc).isoformat(timespec="milliseconds")
    launch = {"command": shlex.join([command, *argv]), "time": now, "cwd": str(Path.cwd())}
    data["launches"] = [*launches, launch]
    write_json(path, data)
    return run_id


def read_run_id(run_dir: Path) -> str | None:
    """The id of a run; None where there is none that can be read."""
    try:
        run_id = read_json(run_dir / PROVENANCE_FILE).get("run_id")
    except (OSError, ValueError):
        return None
    return run_id if isinstance(run_id, str) else None


def launch_words(run_dir: Path) -> list[str]:
    """The words of all commands that launched a run; empty where they cannot be read."""
    try:
        launches = read_json(run_dir / PROVENANCE_FILE)["launches"]
        return [word for launch in launches for word in shlex.split(launch["command"])]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return []


def versions() -> dict[str, str]:
    """Versions of Python, border-cli and the packages that matter."""
    programs = {"python": platform.python_version(), "border_cli": border_cli.__version__}
    return programs | {package.removesuffix("-core"): metadata.version(package) for package in _PACKAGES}


def _git(*words: str) -> str | None:
    """What git answers, None where there is no git, no repository, or no answer in time."""
    # Neither a lock nor a hook of the repository: this only looks.
    command = ["git", "--no-optional-locks", "-c", "core.fsmonitor=false", *words]
    try:
        answer = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=5.0, check=True
        )
    except (OSError, subprocess.SubprocessError, UnicodeDecodeError):
        return None
    return answer.stdout.strip()


SUMMARY_FILE = "summary.json"
CRASH_FILE = "crash.json"

_STATUS = {
    **dict.fromkeys(("max_opts", "max_env_steps", "max_time", "stop_return"), "done"),
    **{"sigint": "stopped", "sigterm": "stopped", "error": "failed"},
}
"""Status by what ended the run; until then, and for ever if the process was killed, it is "running"."""


class Summary:
    """The summary of one run, in its directory from the start with status "running".

    Args:
        saved: opt step of the checkpoint that the run resumes from, and the seconds until then.
        exact: see `RunResult`; once it is False it stays so.
        config: the resolved configuration as plain data, so that runs can be compared by their summaries alone.

    Every method raises OSError when the file cannot be written.
    """

    def __init__(
        self,
        run_dir: Path,
        run_id: str,
        saved: tuple[int, float] | None = None,
        exact: bool | None = None,
        config: Mapping[str, Any] | None = None,
    ) -> None:
        self._path = run_dir / SUMMARY_FILE
        self._run_id = run_id
        self._saved = None if saved is None else {"opt_steps": saved[0], "seconds": saved[1]}
        self._inexact = exact is False
        self._config = config or {}
        self._write("running", None)

    def saved(self, opt_steps: int, seconds: float, exact: bool | None = None) -> None:
        """Note that there is a checkpoint, and how long the run took until then."""
        self._saved = {"opt_steps": opt_steps, "seconds": seconds}
        self._inexact |= exact is False
        self._write("running", None)

    def finish(self, result: RunResult) -> None:
        """Write how the run ended. Raises KeyError for an unknown `ended_by`."""
        self._write(_STATUS[result.ended_by], result)

    def _write(self, status: str, result: RunResult | None) -> None:
        data = {"run_id": self._run_id, "status": status, "saved": self._saved, **_result_data(result)}
        if self._inexact:
            data["exact"] = False
        write_json(self._path, data | {"config": self._config})


def _result_data(result: RunResult | None) -> dict[str, Any]:
    """How a run ended as JSON values: the same keys while it runs, without values, so that a reader needs no cases."""
    running = result is None
    end = RunResult("error") if result is None else result
    rates = ("opt_steps_per_sec", "samples_per_sec", "samples_per_opt_step")
    counters = () if running else ("opt_steps", "env_steps", "episodes")
    return {
        "ended_by": None if running else end.ended_by,
        "exit_code": None if running else int(end.code),
        "error": end.error,
        "last_score": _score(end.last),
        "best_score": _score(end.best),
        "best_confirmed": end.best_confirmed,
        "start_score": None if end.start is None else {"opt_steps": 0, "mean": end.start},
        "seconds": end.seconds or None,
        "counters": {name: getattr(end, name) for name in counters},
        "throughput": {name: getattr(end, name) for name in rates if end.seconds},
        "bound": end.bound,
        "expected": end.expected,
        "actors": [asdict(actor) | {"samples_per_sec": actor.samples_per_sec} for actor in end.actors],
        "exact": end.exact,
        "records_dropped": dict(end.dropped),
    }


def _score(evaluation: Evaluation | None) -> dict[str, Any] | None:
    return None if evaluation is None else {"opt_steps": evaluation.opt_steps, "mean": evaluation.mean}


def write_crash(run_dir: Path, error: BaseException) -> Path:
    """Write crash.json: the traceback, where the error happened, and the versions. Returns its path.

    Of an exception in an actor it has the actor's traceback, and environment, episode, step and action as `context`.
    """
    context, lines = dict[str, Any](), traceback.format_exception(error)
    if isinstance(error, ActorLostError):
        context, lines = dict(error.context), error.details.splitlines(keepends=True)
    path = run_dir / CRASH_FILE
    crash = {"error": type(error).__name__, "message": str(error), "context": context, "traceback": lines}
    write_json(path, crash | {"versions": versions()})
    return path
