"""Finished runs, read from their summary.json, metrics.jsonl and provenance.json, and grouped by configuration."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from border_cli.config.convert import as_typed, dotted
from border_cli.config.presets import NONE
from border_cli.config.schema import GROUPS
from border_cli.core.errors import UsageError
from border_cli.core.spaces import Array
from border_cli.display.output import printable
from border_cli.recorders.files import METRICS_FILE, read_jsonl
from border_cli.run.summary import SUMMARY_FILE, read_json, typed_values

_NOT_COMPARED = ("name", "seed", "plan", "debug", "recorder", "checkpoint", "plugins", "preset")
"""Parts of a configuration in which runs of one group may differ."""
_EXECUTION = ("threads", "evaluator.type", "buffer.device", "trainer.ratio_tolerance")
"""Keys that say how a run executes. `auto` chooses them by the machine, or by other keys."""
_NUMBERS = ("n_actors", "actor_manager.envs_per_actor")
"""Keys that `auto` chooses by measuring, in each run anew."""
AXES = {"env_steps": "env steps", "seconds": "seconds", "cpu_seconds": "CPU-seconds"}
"""The horizontal axes of curves."""
_CPU = "time/cpu_s"


@dataclass(frozen=True)
class Curve:
    """One metric along a run: (n,) env steps, seconds, CPU-seconds and values, in the order of the file.

    A value is nan where the record does not have it.
    """

    env_steps: Array
    seconds: Array
    cpu_seconds: Array
    values: Array


@dataclass(frozen=True)
class RunRecord:
    """What is known of one run.

    config: by dotted keys; empty where summary.json has none · curves: by metric, of those that were recorded · typed: by
    key or group, the last value that its commands named.
    """

    path: Path
    config: Mapping[str, Any]
    summary: Mapping[str, Any]
    curves: Mapping[str, Curve]
    typed: Mapping[str, str] = field(default_factory=dict)

    @property
    def seed(self) -> int | None:
        return self.config.get("seed")

    @property
    def title(self) -> str:
        return f"{self.config['agent.type']} on {self.env}" if self.config else self.path.name

    @property
    def env(self) -> str:
        """The environment's id, import path or name in a plugin; empty where it is not known."""
        named = (self.config.get(f"env.{key}") for key in ("id", "entry_point", "type"))
        return str(next(filter(None, named), ""))

    @property
    def env_steps(self) -> int:
        """Env steps of the whole run; up to its last record while it is running."""
        counters = self.summary.get("counters") or {}
        return int(counters.get("env_steps") or max(curve.env_steps[-1] for curve in self.curves.values()))

    @property
    def seconds(self) -> float:
        """Seconds of the whole run; up to its last record while it is running."""
        return float(self.summary.get("seconds") or max(curve.seconds[-1] for curve in self.curves.values()))

    @cached_property
    def compared(self) -> dict[str, Any]:
        """The values that all runs of a group share, without those that `auto` may choose anew in each run."""
        values = dict[str, Any]()
        for key, value in self.config.items():
            typed = self.typed.get(key, self.typed.get(key.removesuffix(".type")))
            was_auto = typed == "auto" if key in _NUMBERS else key in _EXECUTION and typed in (None, "auto")
            of_plugin = key == "evaluator.type" and value not in ("inline", "process")
            if key.split(".")[0] not in _NOT_COMPARED and (of_plugin or not was_auto):
                values[key] = value
        return values

    @cached_property
    def settings(self) -> dict[str, Any]:
        """What may distinguish a run: the values that are compared, and its preset."""
        return self.compared | {"preset": self.config.get("preset.name") or NONE}


@dataclass
class Group:
    """Runs that differ only in their seed. name: agent, environment, and typed values that other groups do not share."""

    name: str
    runs: list[RunRecord]

    @property
    def env(self) -> str:
        return self.runs[0].env

    @property
    def algorithm(self) -> str:
        """The name without the environment: what groups of several environments have in common."""
        return self.name.replace(f" on {self.env}", "", 1)


def find_runs(paths: Sequence[Path]) -> list[Path]:
    """Folders with a summary.json at or below these paths, each once. Raises UsageError where there is none."""
    runs: dict[Path, None] = {}
    for path in paths:
        if not path.is_dir():
            raise UsageError(f"{path}: there is no such folder", allowed="runs, and folders with runs")
        below = sorted(Path(folder) for folder, _, files in os.walk(path) if SUMMARY_FILE in files)
        if not below:
            allowed = f"runs, which have a {SUMMARY_FILE}, and folders with runs"
            raise UsageError(f"{path}: there is no run at or below it", allowed=allowed)
        runs |= dict.fromkeys(run.resolve() for run in below)
    return list(runs)


def read_run(path: Path) -> RunRecord:
    """A run. Raises UsageError for files that cannot be read."""
    try:
        summary = read_json(path / SUMMARY_FILE)
        records = read_jsonl(path / METRICS_FILE) if (path / METRICS_FILE).exists() else []
    except (OSError, ValueError) as e:
        raise UsageError(f"{path}: its files cannot be read: {e}") from e
    names = dict.fromkeys(name for record in records for name in record if "/" in name and name != _CPU)
    cpu = _cpu_seconds(records)
    curves = {name: curve for name in names if (curve := _curve(records, name, cpu)) is not None}
    return RunRecord(path, dotted(summary.get("config") or {}), summary, curves, typed_values(path))


def _cpu_seconds(records: Sequence[Mapping[str, Any]]) -> tuple[list[float], list[float]]:
    """Seconds, and the CPU-seconds until then. Each launch of a run counts its own, from 0."""
    times, totals, earlier, last = [0.0], [0.0], 0.0, 0.0
    for record in records:
        if (cpu := record.get(_CPU)) is not None:
            earlier += last if cpu < last else 0.0
            last = cpu
            times.append(record["time"])
            totals.append(earlier + cpu)
    return times, totals


def _curve(
    records: Sequence[Mapping[str, Any]], metric: str, cpu: tuple[list[float], list[float]]
) -> Curve | None:
    """The records that have a number under this name; None if there are none."""
    points = [record for record in records if isinstance(record.get(metric), int | float)]
    if not points:
        return None
    env_steps, seconds, values = (
        np.array([point[key] for point in points], np.float64) for key in ("env_steps", "time", metric)
    )
    cpu_seconds = np.interp(seconds, *cpu) if len(cpu[0]) > 1 else np.full(len(points), np.nan)
    return Curve(env_steps, seconds, cpu_seconds, values)


def grouped(runs: Sequence[RunRecord]) -> list[Group]:
    """Runs of the same configuration together, in the order in which they were found.

    A run without a stored configuration is its own group. The name of a group is its title, with the typed values that
    distinguish it from groups of the same title; other values are named only if the typed ones are equal. The second
    group of the same name is "name (2)".
    """
    groups: dict[object, list[RunRecord]] = {}
    for run in runs:
        values = tuple(sorted((key, repr(value)) for key, value in run.compared.items()))
        groups.setdefault(values or run.path, []).append(run)
    named = [Group(members[0].title, members) for members in groups.values()]
    for typed_only in (True, False):
        same: dict[str, list[RunRecord]] = {}
        for group in named:
            same.setdefault(group.name, []).append(group.runs[0])
        for group in named:
            group.name = " ".join([group.name, *_differing(group.runs, same[group.name], typed_only)])
    counts = Counter[str]()
    for group in named:
        counts[group.name] += 1
        if (n := counts[group.name]) > 1:
            group.name += f" ({n})"
    return named


def _differing(group: Sequence[RunRecord], others: Sequence[RunRecord], typed_only: bool) -> Iterator[str]:
    """`key=value` of a group as typed, short keys first, where one of the others has another value."""
    typed = frozenset[str]().union(*(run.typed for run in group))
    for key, value in sorted(group[0].settings.items(), key=lambda item: (len(item[0]), item[0])):
        name = key.removesuffix(".type")  # buffer.type is typed as buffer
        was_typed = name in typed or any(key.startswith(f"{t}.") for t in typed.difference(GROUPS))
        if (was_typed or not typed_only) and any(run.settings.get(key) != value for run in others):
            yield printable(f"{name}={as_typed(value)}")
