"""Finished runs, read from their summary.json, metrics.jsonl and provenance.json, and grouped by configuration."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
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
from border_cli.run.summary import SUMMARY_FILE, launch_words, read_json

_NAME_WIDTH = 100
"""Columns after which the name of a group is cut."""
_NOT_COMPARED = ("name", "seed", "plan", "debug", "recorder", "checkpoint", "plugins", "preset")
"""Parts of a configuration in which runs of one group may differ."""
_EXECUTION = ("threads", "evaluator.type", "buffer.device", "env.native", "trainer.ratio_tolerance")
"""Keys that say how a run executes. `auto` chooses them by the machine, or by other keys."""
_NUMBERS = ("n_actors", "actor_manager.envs_per_actor")
"""Keys that `auto` chooses by measuring, in each run anew."""


@dataclass(frozen=True)
class Curve:
    """One metric along a run: (n,) env steps, seconds and values, in the order of the file."""

    env_steps: Array
    seconds: Array
    values: Array


@dataclass(frozen=True)
class RunRecord:
    """What is known of one run.

    config: by dotted keys; empty where summary.json has none · typed: by key or group, the last value that its commands
    named.
    """

    path: Path
    config: Mapping[str, Any]
    summary: Mapping[str, Any]
    curve: Curve
    typed: Mapping[str, str] = field(default_factory=dict)

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
        return {
            key: value
            for key, value in self.config.items()
            if key.split(".")[0] not in _NOT_COMPARED and not self._was_auto(key, value)
        }

    def _was_auto(self, key: str, value: Any) -> bool:
        """Whether `auto` has chosen this value, so that another run of the same command may have another one."""
        if key == "evaluator.type" and value not in ("inline", "process"):  # that of a plugin
            return False
        typed = self.typed.get(key, self.typed.get(key.removesuffix(".type")))
        return typed == "auto" if key in _NUMBERS else key in _EXECUTION and typed in (None, "auto")


@dataclass
class Group:
    """Runs that differ only in their seed.

    Attributes:
        name: agent, environment, and typed values that other groups do not share; see `short_names`.
        algorithm: the same without the environment, however long: what groups of several environments have in common.
    """

    name: str
    algorithm: str
    runs: list[RunRecord]

    @property
    def env(self) -> str:
        """The environment's id or import path; empty where it is not known."""
        return self.runs[0].env


def find_runs(paths: Sequence[Path]) -> list[Path]:
    """Folders with a summary.json at or below these paths, each once. Raises UsageError where there is none."""
    found: dict[Path, None] = {}
    for path in paths:
        if not path.is_dir():
            raise UsageError(f"{path}: there is no such folder", allowed="runs, and folders with runs")
        below = sorted(Path(folder) for folder, _, files in os.walk(path) if SUMMARY_FILE in files)
        if not below:
            allowed = f"runs, which have a {SUMMARY_FILE}, and folders with runs"
            raise UsageError(f"{path}: there is no run at or below it", allowed=allowed)
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
    words = [word.lstrip("+").partition("=") for word in launch_words(path)]
    typed = {key: value for key, equals, value in words if equals}
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
    names = _numbered(_names(members))
    return [
        Group(short, name.replace(f" on {runs_of[0].env}", "", 1), runs_of)
        for short, name, runs_of in zip(short_names(names), names, members, strict=True)
    ]


def short_names(names: Sequence[str]) -> list[str]:
    """Cut names to what a table has room for, and number those that are the same then."""
    return _numbered([_cut(name) for name in names])


def _cut(name: str) -> str:
    if len(name) <= _NAME_WIDTH:
        return name
    begin = name[: _NAME_WIDTH - 1]
    whole = begin.rpartition(" ")[0]  # not in the middle of a key, unless that leaves nearly nothing
    return f"{whole} …" if len(whole) > _NAME_WIDTH // 2 else f"{begin}…"


def _numbered(names: Sequence[str]) -> list[str]:
    """The names, and "name (2)" for the second of the same name."""
    used: Counter[str] = Counter()
    made = []
    for name in names:
        used[name] += 1
        made.append(name if used[name] == 1 else f"{name} ({used[name]})")
    return made


def _names(groups: Sequence[Sequence[RunRecord]]) -> list[str]:
    """The title of each group, with its typed values that others of the same title do not have.

    Values that were not typed are shown only where groups do not differ in those.
    """
    names = [members[0].title for members in groups]
    settings = [_settings(members[0]) for members in groups]
    keys = set(chain(*settings))
    for typed_only in (True, False):
        found = {name: {key: set[str]() for key in keys} for name in set(names)}  # the values of each key
        for name, values in zip(names, settings, strict=True):
            for key, seen in found[name].items():
                seen.add(repr(values.get(key)))
        names = [
            " ".join([name, *_differing(members, values, found[name], typed_only)])
            for name, members, values in zip(names, groups, settings, strict=True)
        ]
    return names


def _differing(
    group: Sequence[RunRecord],
    settings: Mapping[str, Any],
    found: Mapping[str, Collection[str]],
    typed_only: bool,
) -> Iterator[str]:
    """`key=value` as typed, short keys first, where several values were found."""
    typed = frozenset[str]().union(*(run.typed for run in group))
    for key, value in sorted(settings.items(), key=lambda item: (len(item[0]), item[0])):
        name = key.removesuffix(".type")  # buffer.type is typed as buffer
        was_typed = name in typed or any(key.startswith(f"{t}.") for t in typed.difference(GROUPS))
        if (was_typed or not typed_only) and len(found[key]) > 1:
            yield printable(f"{name}={as_typed(value)}", "utf-8")


def _settings(run: RunRecord) -> dict[str, Any]:
    """What may distinguish a run: the values that are compared, and its preset."""
    return run.compared | {"preset": run.config.get("preset.name") or NONE}


def metrics_of(paths: Sequence[Path]) -> list[str]:
    """Names of the metrics that these runs have records of."""
    return sorted({name for path in paths for record in _records(path) for name in record if "/" in name})


def _records(path: Path) -> list[dict[str, Any]]:
    return read_jsonl(path / METRICS_FILE) if (path / METRICS_FILE).exists() else []
