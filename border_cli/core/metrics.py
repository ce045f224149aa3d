"""Every metric, declared once with its unit and kind: a value of training, or of the clock.

Clock metrics may differ between two runs with the same seed (as may the policy lag of free-running actors).
`agent/<name>` metrics are declared by their agent through `declare`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from border_cli.core.state import number


@dataclass
class Record:
    """One named set of values. opt_steps, env_steps: when it was taken. time: seconds since the run began."""

    values: dict[str, float] = field(default_factory=dict)
    opt_steps: int = 0
    env_steps: int = 0
    time: float = 0.0

    def __bool__(self) -> bool:
        return bool(self.values)


class Mean:
    """Mean of the values added since it was last taken."""

    def __init__(self) -> None:
        self._sum = 0.0
        self._n = 0

    def add(self, value: float) -> None:
        self._sum += value
        self._n += 1

    def state(self) -> list[Any]:
        return [self._sum, self._n]

    def load_state(self, state: Sequence[Any]) -> None:
        total, self._n = state
        self._sum = number(total)

    def take(self) -> float | None:
        """The mean since the last call, None if nothing was added."""
        mean = self._sum / self._n if self._n else None
        self._sum, self._n = 0.0, 0
        return mean


def percentile(values: Iterable[tuple[float, int]], q: float) -> float:
    """Nearest-rank percentile of (value, number of times it occurs), q in (0, 100]."""
    numbers, times = zip(*values, strict=True)
    return float(np.percentile(np.repeat(numbers, times), q, method="inverted_cdf"))


_T975 = (
    12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622, 2.2281,
    2.2010, 2.1788, 2.1604, 2.1448, 2.1314, 2.1199, 2.1098, 2.1009, 2.0930, 2.0860,
)  # fmt: skip
"""97.5% quantiles of Student's t with 1, 2, … degrees of freedom."""
_Z975 = 1.959964


def t975(freedom: int) -> float:
    """97.5% quantile of Student's t with `freedom` >= 1 degrees of freedom, to four decimals."""
    if freedom <= len(_T975):
        return _T975[freedom - 1]
    z, n = _Z975, freedom  # the expansion of Cornish and Fisher, from the quantile of the normal distribution
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + first / n + second / n**2 + third / n**3


def mean_interval(values: tuple[float, ...]) -> tuple[float, float] | None:
    """Ends of the 95% interval of the mean by Student's t; None for fewer than two values."""
    n = len(values)
    if n < 2:
        return None
    mean = float(np.mean(values))
    half = t975(n - 1) * float(np.std(values, ddof=1)) / math.sqrt(n)
    return mean - half, mean + half


@dataclass(frozen=True)
class Metric:
    """name, unit, kind ("value" or "clock") and what it means."""

    name: str
    unit: str
    kind: str
    help: str


METRICS: dict[str, Metric] = {}


def declare(name: str, unit: str, help: str, kind: str = "value") -> None:
    """Add a metric. Declaring the same name with other words is an error."""
    metric = Metric(name, unit, kind, help)
    if METRICS.setdefault(name, metric) != metric:
        raise ValueError(f"metric {name!r} is declared twice")


declare("train/episode_return", "reward", "mean raw return of the episodes that ended in the interval")
declare("train/episode_length", "env steps", "mean length of the episodes that ended in the interval")
declare("train/episodes", "episodes", "episodes that ended in the interval")
SCORE = "eval/return_mean"
declare(SCORE, "reward", "mean return over the evaluation's episodes: the score")
declare("eval/return_std", "reward", "standard deviation over the evaluation's episodes")
declare("eval/return_min", "reward", "lowest return of the evaluation")
declare("eval/return_max", "reward", "highest return of the evaluation")
declare("eval/length_mean", "env steps", "mean episode length of the evaluation")
declare(
    "eval/skipped",
    "evaluations",
    "models so far that were never evaluated, because a newer one replaced them",
    "clock",
)
declare(
    "agent/skipped_steps",
    "opt steps",
    "opt steps of the interval skipped because the loss or gradient was not finite",
)
declare("throughput/samples_total", "env steps", "env steps whose rows have entered the replay so far")
declare("throughput/samples_per_opt_step", "env steps", "env steps per opt step since the end of the warm-up")
declare("throughput/samples_per_sec", "env steps/s", "env steps per second over the interval", "clock")
declare("throughput/opt_steps_per_sec", "opt steps/s", "opt steps per second over the interval", "clock")
_LAG = "mean age of the acting model when its rows enter the replay, weighted by env steps"
declare("async/policy_lag_mean", "opt steps", _LAG, "clock")
declare("async/policy_lag_p95", "opt steps", "95th percentile of the same", "clock")
declare(
    "async/actors_blocked",
    "share",
    "share of the actors' time waiting for credit, for room in the ring, or in lockstep for a model",
    "clock",
)
declare("async/learner_blocked", "share", "share of the learner's time spent waiting for env steps", "clock")
declare("async/actors_alive", "actors", "actors running")
declare("async/restarts", "restarts", "restarts of actors since the run was started or last resumed")
declare("replay/size", "rows", "rows whose next observation has arrived")
declare("replay/fill", "share", "replay/size, over the capacity")
declare("time/opt_ms", "ms", "mean time of one opt step, sampling included", "clock")
declare("time/collect_ms", "ms", "mean time of collecting what has arrived and inserting it", "clock")
declare("time/eval_ms", "ms", "time of the evaluation and of the comparison with the best model", "clock")
declare("time/save_ms", "ms", "mean time of writing a checkpoint", "clock")
declare("time/cpu_s", "s", "CPU time of all processes since the run was started or last resumed", "clock")
declare("checkpoint/failed_saves", "saves", "failed saves since the run was last started or resumed", "clock")
