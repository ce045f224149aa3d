"""What the returns of an evaluation say about the policy, and how sure that is."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from border_cli.core.protocols import Evaluation

INTERVAL = "95% interval of the mean, Student's t"
"""How `Statistics.interval` is made, in words."""

_T975 = (
    12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622, 2.2281,
    2.2010, 2.1788, 2.1604, 2.1448, 2.1314, 2.1199, 2.1098, 2.1009, 2.0930, 2.0860,
)  # fmt: skip
"""97.5% quantiles of Student's t with 1, 2, … degrees of freedom."""
_Z975 = 1.959964


@dataclass(frozen=True)
class Statistics:
    """Over the episodes of one evaluation.

    std: population standard deviation of the returns, as in `Evaluation` · interval: low and high end of the
    95% interval of the mean return, None for a single episode · lengths in env steps.
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


def mean_interval(values: tuple[float, ...]) -> tuple[float, float] | None:
    """Ends of the 95% interval of the mean by Student's t; None for fewer than two values."""
    n = len(values)
    if n < 2:
        return None
    mean = float(np.mean(values))
    half = t975(n - 1) * float(np.std(values, ddof=1)) / math.sqrt(n)
    return mean - half, mean + half


def t975(freedom: int) -> float:
    """97.5% quantile of Student's t with `freedom` >= 1 degrees of freedom, to four decimals."""
    if freedom <= len(_T975):
        return _T975[freedom - 1]
    return _expand(_Z975, freedom)


def _expand(z: float, n: int) -> float:
    """Quantile of Student's t from that of the normal distribution (Cornish and Fisher), for large n."""
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + first / n + second / n**2 + third / n**3
