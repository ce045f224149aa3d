"""Statistics over a few runs, as Agarwal et al. (2021) recommend: interquartile means with bootstrap intervals."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from border_cli.core.spaces import Array

RESAMPLES = 10_000
LEVEL = 0.95
_SEED = 20210830
_CUT = 0.25
_AT_ONCE = 64


@dataclass(frozen=True)
class Interval:
    """A value and the ends of its interval, which are equal to it where there is one run only."""

    value: float
    low: float
    high: float


def interquartile_mean(values: Array) -> Array:
    """Mean over the last dimension without the lowest and the highest quarter, each rounded down to whole values."""
    n = values.shape[-1]
    cut = int(_CUT * n)
    ordered = np.sort(values, axis=-1)
    mean: Array = ordered[..., cut : n - cut].mean(-1)
    return mean


def bootstrap(values: Array, resamples: int = RESAMPLES) -> list[Interval]:
    """Interquartile mean of each row (m, n) of values of n runs, with its 95% percentile bootstrap interval.

    Runs are drawn anew, the same ones in each row: what is resampled is runs, not their values.
    """
    rows, n = values.shape
    if n == 1:
        return [Interval(float(v), float(v), float(v)) for v in values[:, 0]]
    drawn = np.random.default_rng(_SEED).integers(0, n, (resamples, n))
    ends = ((1 - LEVEL) / 2, (1 + LEVEL) / 2)
    found = []
    for start in range(0, rows, _AT_ONCE):  # so that long curves do not take much memory
        part = values[start : start + _AT_ONCE]
        low, high = np.quantile(interquartile_mean(part[:, drawn]), ends, axis=1)
        found += [
            Interval(float(v), float(a), float(b))
            for v, a, b in zip(interquartile_mean(part), low, high, strict=True)
        ]
    return found
