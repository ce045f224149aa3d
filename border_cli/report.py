"""Finished runs, read from their summary.json, metrics.jsonl and provenance.json; statistics over episodes and runs."""

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
from border_cli.core.metrics import mean_interval
from border_cli.core.spaces import Array
from border_cli.core.types import Evaluation
from border_cli.recorders.jsonl import METRICS_FILE, read_jsonl
from border_cli.runs.summary import SUMMARY_FILE, launch_words, read_json

RESAMPLES = 10_000
LEVEL = 0.95
POINTS = 100
"""Places at which the curves of several runs are compared."""
INTERVAL = "95% interval of the mean, Student's t"
"""What `Statistics.interval` is, in words."""
_SEED = 20210830
_ROWS_AT_ONCE = 64
_NAME_WIDTH = 100
"""Columns after which the name of a group is cut."""
_NOT_COMPARED = ("seed", "plan", "debug", "recorder", "checkpoint", "plugins", "resume", "preset")
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


@dataclass(frozen=True)
class Statistics:
    """Over the episodes of one evaluation; lengths in env steps.

    std: population standard deviation of the returns · interval: of the mean, with 95%; None for a single episode.
    """

    episodes: int
    mean: float
    std: float
    interval: tuple[float, float] | None
    min: float
    max: float
    length_mean: float
    length_min: int
    length_max: int


def summarise(evaluation: Evaluation) -> Statistics:
    """Statistics of an evaluation of at least one episode."""
    returns, lengths = evaluation.returns, evaluation.lengths
    return Statistics(
        episodes=len(returns),
        mean=evaluation.mean,
        std=evaluation.std,
        interval=mean_interval(returns),
        min=min(returns),
        max=max(returns),
        length_mean=float(np.mean(lengths)),
        length_min=min(lengths),
        length_max=max(lengths),
    )


@dataclass(frozen=True)
class Interval:
    """A value and the ends of its interval, which are equal to the value for a single run."""

    value: float
    low: float
    high: float


def interquartile_mean(values: Array) -> Array:
    """Mean over the last dimension without the lowest and the highest quarter, each rounded down to whole values."""
    n = values.shape[-1]
    cut = n // 4
    mean: Array = np.sort(values, axis=-1)[..., cut : n - cut].mean(-1)
    return mean


def bootstrap(values: Array, resamples: int = RESAMPLES) -> list[Interval]:
    """Interquartile mean of each row (m, n) of values of n runs, with its 95% percentile bootstrap interval over runs."""
    rows, n = values.shape
    drawn = np.random.default_rng(_SEED).integers(0, n, (resamples, n))
    ends = ((1 - LEVEL) / 2, (1 + LEVEL) / 2)
    found: list[Interval] = []
    for start in range(0, rows, _ROWS_AT_ONCE):  # bounds the memory for long curves
        part = values[start : start + _ROWS_AT_ONCE]
        low, high = np.quantile(interquartile_mean(part[:, drawn]), ends, axis=1)
        found += map(Interval, interquartile_mean(part).tolist(), low.tolist(), high.tolist())
    return found


@dataclass(frozen=True)
class Band:
    """A learning curve: (m,) places, the interquartile mean with its interval at each, and each run's own curve."""

    at: Array
    intervals: Sequence[Interval]
    runs: Sequence[tuple[Array, Array]]


def band(group: Group, axis: str) -> Band:
    """The curve against "env_steps" or "seconds": a single run's own points, or several runs interpolated at POINTS places.

    It ends where the shortest run does.
    """
    own = [(getattr(run.curve, axis), run.curve.values) for run in group.runs]
    if len(own) == 1:
        at, values = own[0][0], own[0][1][:, np.newaxis]
    else:
        end = min(float(places[-1]) for places, _ in own)
        begin = min(max(float(places[0]) for places, _ in own), end)
        at = np.linspace(begin, end, POINTS)
        values = np.stack([np.interp(at, places, curve) for places, curve in own], axis=1)
    return Band(at, bootstrap(values, resamples=2_000), own)


@dataclass(frozen=True)
class Line:
    """A group in the final table.

    Attributes:
        seeds: number of different ones; fewer than the runs where some are repeats.
        scored: number of runs with both scores.
        best, last: scores over these runs, None without any.
        expected: what the preset expects, None without a preset or where a run is shorter than that takes.
    """

    name: str
    runs: int
    seeds: int
    scored: int
    env_steps: int
    best: Interval | None
    last: Interval | None
    seconds: float
    unfinished: int
    expected: float | None

    @property
    def meets(self) -> bool | None:
        """Whether the best models reach what the preset expects; None where that is not known."""
        if self.expected is None or self.best is None:
            return None
        return self.best.value >= self.expected


def line(group: Group) -> Line:
    """The results of a group."""
    runs = group.runs
    scores = [
        [(run.summary.get(key) or {}).get("mean") for key in ("best_score", "last_score")] for run in runs
    ]
    scored = np.array([both for both in scores if None not in both], np.float64)
    best, last = bootstrap(scored.T) if len(scored) else (None, None)
    expected, after = (runs[0].config.get(f"preset.expect_{name}") for name in ("return", "env_steps"))
    shortest = min(run.env_steps for run in runs)
    return Line(
        name=group.name,
        runs=len(runs),
        seeds=len({run.path if run.seed is None else run.seed for run in runs}),
        scored=len(scored),
        env_steps=max(run.env_steps for run in runs),
        best=best,
        last=last,
        seconds=float(np.median([run.seconds for run in runs])),
        unfinished=sum(run.summary.get("status") != "done" for run in runs),
        expected=None if expected is None or (after is not None and shortest < after) else float(expected),
    )
