"""From groups of runs to curves with intervals, and to the final table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from border_cli.core.spaces import Array
from border_cli.report.collect import Group, RunRecord
from border_cli.report.statistics import Interval, bootstrap

POINTS = 100


@dataclass(frozen=True)
class Band:
    """A learning curve of a group: (m,) places, at each the interquartile mean, its interval, and the (m, runs) values."""

    at: Array
    intervals: Sequence[Interval]
    values: Array


@dataclass(frozen=True)
class Line:
    """A group in the final table.

    seeds: different ones, fewer than the runs where some are repeats · scores: over the `scored` runs that have both,
    None where no run has · expected: of the preset, None without one.
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
        """Whether the best models are as good as the preset lets expect; None where nothing is expected or known."""
        if self.expected is None or self.best is None:
            return None
        return self.best.value >= self.expected


def band(group: Group, axis: str) -> Band:
    """The curve against "env_steps" or "seconds", as far as every run of the group goes, values between points on lines."""
    curves = [run.curve for run in group.runs]
    end = min(float(getattr(curve, axis)[-1]) for curve in curves)
    begin = min(max(float(getattr(curve, axis)[0]) for curve in curves), end)
    at = np.linspace(begin, end, POINTS)
    values = np.stack([np.interp(at, getattr(curve, axis), curve.values) for curve in curves], axis=1)
    return Band(at, bootstrap(values, resamples=2_000), values)


def line(group: Group) -> Line:
    """What a group has come to."""
    runs = group.runs
    scored = [run for run in runs if None not in (_mean(run, "best_score"), _mean(run, "last_score"))]
    return Line(
        group.name,
        len(runs),
        len({run.path if run.seed is None else run.seed for run in runs}),
        len(scored),
        max(int(run.curve.env_steps[-1]) for run in runs),
        _score(scored, "best_score"),
        _score(scored, "last_score"),
        float(np.median([run.curve.seconds[-1] for run in runs])),
        sum(run.summary.get("status") != "done" for run in runs),
        _expected(runs),
    )


def _score(runs: Sequence[RunRecord], name: str) -> Interval | None:
    if not runs:
        return None
    return bootstrap(np.array([[_mean(run, name) for run in runs]], np.float64))[0]


def _mean(run: RunRecord, name: str) -> Any:
    return (run.summary.get(name) or {}).get("mean")


def _expected(runs: Sequence[RunRecord]) -> float | None:
    """What the preset says, where every run went as far as that takes."""
    wanted, env_steps = (runs[0].config.get(f"preset.expect_{name}") for name in ("return", "env_steps"))
    least = min((run.summary.get("counters") or {}).get("env_steps", 0) for run in runs)
    if wanted is None or (env_steps is not None and least < env_steps):
        return None
    return float(wanted)
