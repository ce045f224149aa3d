"""Finding runs and reading what they say of themselves: summary.json and metrics.jsonl, and nothing else."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from border_cli.config.convert import dotted
from border_cli.core.errors import UsageError
from border_cli.core.spaces import Array
from border_cli.recorders.jsonl import METRICS_FILE, read_jsonl
from border_cli.runs.json_file import read_json
from border_cli.runs.summary import SUMMARY_FILE

_NO_DIFFERENCE = ("seed", "plan", "debug", "recorder", "checkpoint", "plugins", "resume")
"""Parts of a configuration in which runs of one group may differ."""
_OF_EXPECTATION = ("preset",)
_MISSING = object()


@dataclass(frozen=True)
class Curve:
    """One metric along a run: (n,) env steps, seconds and values, in the order of the file."""

    env_steps: Array
    seconds: Array
    values: Array


@dataclass(frozen=True)
class RunRecord:
    """What is known of one run. config: dotted keys; empty where summary.json has none, as that of older versions."""

    path: Path
    config: Mapping[str, Any]
    summary: Mapping[str, Any]
    curve: Curve

    @property
    def seed(self) -> int | None:
        """Where it is known."""
        return self.config.get("seed")


@dataclass
class Group:
    """Runs that differ in nothing but their seed. name: of agent and environment, and of what sets it apart."""

    name: str
    runs: list[RunRecord]

    @property
    def env(self) -> str:
        """The environment's id or import path; empty where it is not known."""
        config = self.runs[0].config
        return str(config.get("env.id") or config.get("env.entry_point") or "")


def find_runs(paths: Sequence[Path]) -> list[Path]:
    """Directories with a summary.json at or below these, each once. Raises UsageError where there is none."""
    found: dict[Path, None] = {}
    for path in paths:
        if not path.is_dir():
            raise UsageError(
                f"{path}: there is no such folder\nallowed: runs, and folders with runs below them"
            )
        below = sorted(Path(folder) for folder, _, files in os.walk(path) if SUMMARY_FILE in files)
        if not below:
            raise UsageError(f"{path}: there is no run at or below it\na run has a {SUMMARY_FILE}")
        found |= dict.fromkeys(run.resolve() for run in below)
    return list(found)


def read_run(path: Path, metric: str) -> RunRecord | None:
    """A run, or None where it has no record of this metric. Raises UsageError for files that are none of a run."""
    try:
        summary = read_json(path / SUMMARY_FILE)
        records = read_jsonl(path / METRICS_FILE) if (path / METRICS_FILE).exists() else []
    except (OSError, ValueError) as e:
        raise UsageError(f"{path}: what it says of itself cannot be read: {e}") from e
    points = [
        (record["env_steps"], record["time"], record[metric])
        for record in records
        if record.get(metric) is not None
    ]
    if not points or not isinstance(summary, dict):
        return None
    env_steps, seconds, values = (np.array(column, np.float64) for column in zip(*points, strict=True))
    return RunRecord(path, dotted(summary.get("config") or {}), summary, Curve(env_steps, seconds, values))


def grouped(runs: Sequence[RunRecord]) -> list[Group]:
    """Runs of the same configuration together, in the order in which they were found."""
    groups: dict[object, list[RunRecord]] = {}
    for run in runs:
        groups.setdefault(_identity(run), []).append(run)
    alike: dict[str, list[RunRecord]] = {}
    for members in groups.values():
        alike.setdefault(_title(members[0]), []).append(members[0])
    made, names = [], dict[str, int]()
    for members in groups.values():
        name = _name(members[0], alike[_title(members[0])])
        # runs that do not say how they were configured may be called the same
        names[name] = names.get(name, 0) + 1
        made.append(Group(name if names[name] == 1 else f"{name} ({names[name]})", members))
    return made


def metrics_of(paths: Sequence[Path]) -> list[str]:
    """Names of the metrics that these runs have records of."""
    names: set[str] = set()
    for path in paths:
        for record in read_jsonl(path / METRICS_FILE) if (path / METRICS_FILE).exists() else []:
            names |= {name for name in record if "/" in name}
    return sorted(names)


def _identity(run: RunRecord) -> object:
    """A run that does not say how it was configured is a group of its own."""
    if not run.config:
        return run.path
    return tuple(sorted((key, repr(value)) for key, value in _settings(run).items()))


def _settings(run: RunRecord) -> dict[str, Any]:
    return {
        key: value
        for key, value in run.config.items()
        if key.partition(".")[0] not in (*_NO_DIFFERENCE, *_OF_EXPECTATION)
    }


def _title(run: RunRecord) -> str:
    """Agent and environment."""
    if not run.config:
        return run.path.name
    return (
        f"{run.config.get('agent.type')} on {run.config.get('env.id') or run.config.get('env.entry_point')}"
    )


def _name(run: RunRecord, alike: Sequence[RunRecord]) -> str:
    """The title, and in what this run differs from those with the same one, shortest first."""
    settings = _settings(run)
    others = [_settings(other) for other in alike]
    differing = [
        key for key in settings if any(other.get(key, _MISSING) != settings[key] for other in others)
    ]
    differing.sort(key=lambda key: (len(key), key))
    return " ".join([_title(run), *(f"{key}={settings[key]}" for key in differing)])
