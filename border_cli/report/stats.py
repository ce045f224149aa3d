"""Statistics over runs: means with intervals, curves, probability of improvement.

As recommended by Agarwal et al., 2021, "Deep Reinforcement Learning at the Edge of the Statistical Precipice".
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np

from border_cli.core.format import number
from border_cli.core.spaces import Array
from border_cli.report.runs import Group
from border_cli.run.summary import mean_score

RESAMPLES = 10_000
_FEWER_RESAMPLES = 2_000
"""For curves and probabilities."""
LEVEL = 0.95
_ENDS = ((1 - LEVEL) / 2, (1 + LEVEL) / 2)
POINTS = 100
"""Places at which the curves of several runs are compared."""
_SEED = 20210830
LEAST = 3
"""Runs of a group from which intervals and probabilities are shown."""


@dataclass(frozen=True)
class Interval:
    """A value and the ends of its interval; for fewer than `LEAST` runs both ends equal the value."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        ends = "" if self.low == self.high else f" ({number(self.low)} to {number(self.high)})"
        return f"{number(self.value)}{ends}"


def interquartile_mean(values: Array) -> Array:
    """Mean over the last dimension without the lowest and the highest quarter, each rounded down to whole values."""
    n = values.shape[-1]
    cut = n // 4
    return cast(Array, np.sort(values, axis=-1)[..., cut : n - cut].mean(-1))


def bootstrap(values: Array, resamples: int = RESAMPLES) -> list[Interval]:
    """Interquartile mean of each row (m, n) of values of n runs, with its 95% percentile bootstrap interval over runs."""
    n, means = values.shape[-1], interquartile_mean(values).tolist()
    if n < LEAST:
        return [Interval(mean, mean, mean) for mean in means]
    drawn = np.random.default_rng(_SEED).integers(0, n, (resamples, n))
    low, high = np.quantile(interquartile_mean(values[:, drawn]), _ENDS, axis=1).tolist()
    return [Interval(*ends) for ends in zip(means, low, high, strict=True)]


@dataclass(frozen=True)
class Band:
    """A learning curve: (m,) places, the interquartile mean with its interval at each, and each run's own curve."""

    at: Array
    intervals: Sequence[Interval]
    runs: Sequence[tuple[Array, Array]]


def band(group: Group, metric: str, axis: str, resamples: int = _FEWER_RESAMPLES) -> Band | None:
    """The curve against one of `AXES`: a single run's own points, or several runs interpolated at POINTS places.

    Over env steps it ends where the shortest run does; over seconds a run that has ended keeps its last value. None where
    no run has the metric, or a record of it has no value on the axis.
    """
    recorded = [run.curves[metric] for run in group.runs if metric in run.curves]
    curves = [(getattr(curve, axis), curve.values) for curve in recorded]
    if not curves or not all(np.isfinite(places).all() for places, _ in curves):
        return None
    if len(curves) == 1:
        at, values = curves[0][0], curves[0][1][:, np.newaxis]
    else:
        end = (min if axis == "env_steps" else max)(float(places[-1]) for places, _ in curves)
        begin = min(max(float(places[0]) for places, _ in curves), end)
        at = np.linspace(begin, end, POINTS if begin < end else 1)
        values = np.stack([np.interp(at, places, curve) for places, curve in curves], axis=1)
    return Band(at, bootstrap(values, resamples), curves)


@dataclass(frozen=True)
class Line:
    """A group in the final table.

    seeds: number of different seeds; fewer than the runs if some runs share a seed · scored: number of runs with both
    scores · best, last: scores over these runs, None without any · expected: the return that the preset expects; None
    without a preset, or if a run is too short for it.
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
    scores = [[mean_score(run.summary, key) for key in ("best_score", "last_score")] for run in runs]
    scored = np.array([pair for pair in scores if None not in pair], np.float64)
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


def probability_of_improvement(x: Sequence[Array], y: Sequence[Array]) -> Interval:
    """P(X > Y): how likely a run of X has a higher score than one of Y, mean over environments, ties counting half.

    x, y: scores of the runs in each environment. The interval is a bootstrap over the runs of each environment.
    """
    rng = np.random.default_rng(_SEED)

    def share(a: Array, b: Array) -> Array:
        above, equal = a[..., :, None] > b[..., None, :], a[..., :, None] == b[..., None, :]
        return cast(Array, (above + 0.5 * equal).mean((-2, -1)))

    def resampled(scores: Array) -> Array:
        return scores[rng.integers(0, len(scores), (_FEWER_RESAMPLES, len(scores)))]

    shares = np.zeros(_FEWER_RESAMPLES)
    for a, b in zip(x, y, strict=True):
        shares += share(resampled(a), resampled(b))
    value = float(np.mean([share(a, b) for a, b in zip(x, y, strict=True)]))
    low, high = np.quantile(shares / len(x), _ENDS)
    return Interval(value, float(low), float(high))


@dataclass(frozen=True)
class Improvement:
    """How likely a run of algorithm x has a higher last score than a run of y, over the environments of both."""

    x: str
    y: str
    probability: Interval
    envs: Sequence[str]


def improvements(groups: Sequence[Group]) -> list[Improvement]:
    """Each pair of algorithms with `LEAST` runs each in the same environments, the more often higher one first."""
    pairs, scores = [], dict[str, dict[str, Array]]()  # by algorithm and environment, of the last models
    for group in groups:
        means = [mean_score(run.summary, "last_score") for run in group.runs]
        if known := [mean for mean in means if mean is not None]:
            scores.setdefault(group.algorithm, {})[group.env] = np.array(known, np.float64)
    for x, y in itertools.combinations(scores, 2):
        envs = [env for env in scores[x] if env in scores[y]]
        envs = [env for env in envs if min(len(scores[x][env]), len(scores[y][env])) >= LEAST]
        if envs:
            p = probability_of_improvement([scores[x][env] for env in envs], [scores[y][env] for env in envs])
            if p.value < 0.5:
                x, y, p = y, x, Interval(1.0 - p.value, 1.0 - p.high, 1.0 - p.low)
            pairs.append(Improvement(x, y, p, envs))
    return pairs
