"""A curve in one line of text."""

from __future__ import annotations

import math
from collections.abc import Sequence

BLOCKS = "▁▂▃▄▅▆▇█"
ASCII = "_.-=*#"
"""Levels for encodings without block characters, lowest first."""
_GAP = " "


def sparkline(values: Sequence[float], width: int, ascii_only: bool = False) -> str:
    """The values from oldest to newest, one character each, between their own lowest and highest.

    More values than `width` are averaged in groups of (nearly) equal size; fewer give a shorter text.
    Values that are not finite leave a gap, equal values a line at half height. Empty without values or width.
    """
    levels = ASCII if ascii_only else BLOCKS
    points = _grouped(values, width)
    finite = [point for point in points if point is not None]
    if not finite:
        return _GAP * len(points)
    low, high = min(finite), max(finite)
    return "".join(
        _GAP if point is None else levels[_level(point, low, high, len(levels))] for point in points
    )


def encodes_blocks(encoding: str) -> bool:
    """Whether text in this encoding can hold the block characters."""
    try:
        BLOCKS.encode(encoding)
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def _grouped(values: Sequence[float], width: int) -> list[float | None]:
    """At most `width` means of consecutive values; None where a group has no finite one."""
    n = min(len(values), max(0, width))
    return [_mean(values[i * len(values) // n : (i + 1) * len(values) // n]) for i in range(n)]


def _mean(values: Sequence[float]) -> float | None:
    finite = [value for value in values if math.isfinite(value)]
    # Divided before they are summed: the sum of values near the largest float would be infinite.
    return math.fsum(value / len(finite) for value in finite) if finite else None


def _level(value: float, low: float, high: float, n: int) -> int:
    """Index among n levels. Halved, so that the span of the largest floats stays finite."""
    span = high / 2 - low / 2
    if span == 0.0:
        return n // 2
    return min(n - 1, int((value / 2 - low / 2) / span * n))
