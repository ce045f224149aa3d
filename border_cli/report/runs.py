"""Finished runs, read from their summary.json, metrics.jsonl and provenance.json, and grouped by configuration."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from border_cli.config.convert import as_typed, dotted
from border_cli.config.presets import NONE
from border_cli.config.schema import GROUPS
from border_cli.core.errors import UsageError
from border_cli.core.spaces import Array
from border_cli.recorders.jsonl import METRICS_FILE, read_jsonl
from border_cli.runs.summary import SUMMARY_FILE, launch_words, read_json

_NAME_WIDTH = 100
"""Columns after which the name of a group is cut."""
_NOT_COMPARED = ("seed", "plan", "debug", "recorder", "checkpoint", "plugins", "preset")
"""Parts of a configuration in which runs of one group may differ."""


@dataclass(frozen=True)
class Curve:
    """One metric along a run: (n,) env steps, seconds and values, in the order of the file."""

    env_steps: Array
    seconds: Array
    values: Array


@dataclass(frozen=True)
class RunRecord:
    """What is known of one run.

    config: by dotted keys; empty where summary.json has none · typed: the keys and groups that its commands named.
    """

    path: Path
    config: Mapping[str, Any]
    summary: Mapping[str, Any]
    curve: Curve
    typed: frozenset[str] = frozenset()

    @property
    def seed(self) -> int | None:
        """Where it is known."""
        return self.config.get("seed")

    @property
    def title(self) -> str:
        """Agent and environment."""
        return f"{self.config['agent.type']} on {self.env}" if self.config else self.path.name

    @property
    def env(self) -> str:
        """The environment's id, import path or name in a plugin; empty where it is not known."""
        named = (self.config.get(f"env.{key}") for key in ("id", "entry_point", "type"))
        return str(next(filter(None, named), ""))

    @property
    def env_steps(self) -> int:
        """Env steps of the whole run; up to its last record of the metric while it is running."""
        counters = self.summary.get("counters") or {}
        return int(counters.get("env_steps", self.curve.env_steps[-1]))

    @property
    def seconds(self) -> float:
        """Seconds of the whole run; up to its last record of the metric while it is running."""
        return float(self.summary.get("seconds") or self.curve.seconds[-1])

    @property
    def compared(self) -> dict[str, Any]:
        """The values that all runs of a group share."""
        return {key: value for key, value in self.config.items() if key.split(".")[0] not in _NOT_COMPARED}


@dataclass
class Group:
    """Runs that differ only in their seed. name: agent, environment, and typed values that other groups do not share."""

    name: str
    runs: list[RunRecord]

    @property
    def env(self) -> str:
        """The environment's id or import path; empty where it is not known."""
        return self.runs[0].env

    @property
    def algorithm(self) -> str:
        """The name without the environment: what groups of several environments have in common."""
        return self.name.replace(f" on {self.env}", "", 1)


def find_runs(paths: Sequence[Path]) -> list[Path]:
    """Folders with a summary.json at or below these paths, each once. Raises UsageError where there is none."""
    found: dict[Path, None] = {}
    for path in paths:
        if not path.is_dir():
            raise UsageError(f"{path}: there is no such folder\nallowed: runs, and folders with runs")
        below = sorted(Path(folder) for folder, _, files in os.walk(path) if SUMMARY_FILE in files)
        if not below:
            raise UsageError(f"{path}: there is no run at or below it\na run has a {SUMMARY_FILE}")
        found |= dict.fromkeys(run.resolve() for run in below)
    return list(found)


def read_run(path: Path, metric: str) -> RunRecord | None:
    """A run, or None where it has no record of this metric. Raises UsageError for files that cannot be read."""
    try:
        summary, records = read_json(path / SUMMARY_FILE), _records(path)
    except (OSError, ValueError) as e:
        raise UsageError(f"{path}: its files cannot be read: {e}") from e
    with_metric = [record for record in records if record.get(metric) is not None]
    points = [(record["env_steps"], record["time"], record[metric]) for record in with_metric]
    if not points:
        return None
    env_steps, seconds, values = (np.array(column, np.float64) for column in zip(*points, strict=True))
    typed = frozenset(word.partition("=")[0].lstrip("+") for word in launch_words(path) if "=" in word)
    return RunRecord(
        path, dotted(summary.get("config") or {}), summary, Curve(env_steps, seconds, values), typed
    )


def grouped(runs: Sequence[RunRecord]) -> list[Group]:
    """Runs of the same configuration together, in the order in which they were found.

    A run without a stored configuration is a group of its own. No two groups have the same name.
    """
    groups: dict[object, list[RunRecord]] = {}
    for run in runs:
        settings = tuple(sorted((key, repr(value)) for key, value in run.compared.items()))
        groups.setdefault(settings or run.path, []).append(run)
    members = list(groups.values())
    made, used = [], dict[str, int]()
    for name, runs_of in zip(_names(members), members, strict=True):
        name = name if len(name) <= _NAME_WIDTH else f"{name[: _NAME_WIDTH - 1]}…"
        used[name] = used.get(name, 0) + 1
        made.append(Group(name if used[name] == 1 else f"{name} ({used[name]})", runs_of))
    return made


def _names(groups: Sequence[Sequence[RunRecord]]) -> list[str]:
    """The title of each group, with its typed values that others of the same title do not have.

    Values that were not typed are shown only where groups do not differ in those.
    """
    names = [members[0].title for members in groups]
    for typed_only in (True, False):
        parts = []
        for name, members in zip(names, groups, strict=True):
            others = [other for each, other in zip(names, groups, strict=True) if each == name]
            parts.append(" ".join([name, *_differing(members, others, typed_only)]))
        names = parts
    return names


def _differing(
    group: Sequence[RunRecord], groups: Sequence[Sequence[RunRecord]], typed_only: bool
) -> Iterator[str]:
    """`key=value` as typed, short keys first, where the value is not that of all these groups."""
    typed = frozenset[str]().union(*(run.typed for run in group))
    others = [_settings(members[0]) for members in groups]
    for key, value in sorted(_settings(group[0]).items(), key=lambda item: (len(item[0]), item[0])):
        name = key.removesuffix(".type")  # buffer.type is typed as buffer
        was_typed = name in typed or any(key.startswith(f"{t}.") for t in typed.difference(GROUPS))
        if (was_typed or not typed_only) and any(repr(other.get(key)) != repr(value) for other in others):
            yield f"{name}={as_typed(value)}"


def _settings(run: RunRecord) -> dict[str, Any]:
    """What may distinguish a run: the values that are compared, and its preset."""
    return run.compared | {"preset": run.config.get("preset.name") or NONE}


def metrics_of(paths: Sequence[Path]) -> list[str]:
    """Names of the metrics that these runs have records of."""
    return sorted({name for path in paths for record in _records(path) for name in record if "/" in name})


def _records(path: Path) -> list[dict[str, Any]]:
    return read_jsonl(path / METRICS_FILE) if (path / METRICS_FILE).exists() else []
