"""Numbers, durations and curves as short text."""

from __future__ import annotations

import math
from collections.abc import Sequence

MISSING = "-"
_BYTE_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_DAY_S = 86_400


def count(value: float | None) -> str:
    """A whole number (`31,000`)."""
    return MISSING if value is None or not math.isfinite(value) else f"{round(value):,}"


def number(value: float | None) -> str:
    """A return, a ratio, a loss or a rate; the smaller it is, the more decimals."""
    if value is None:
        return MISSING
    if not math.isfinite(value):
        return str(value)
    size = abs(value)
    if size >= 1e6:
        return f"{value:.3g}"
    if size >= 1000:
        return f"{value:,.0f}"
    if size >= 10:
        return f"{value:.1f}"
    return f"{value:.2f}" if size >= 0.1 or value == 0 else f"{value:.2g}"


def share(value: float | None) -> str:
    """A share between 0 and 1 in percent (`63%`)."""
    return MISSING if value is None or not math.isfinite(value) else f"{value:.0%}"


def duration(seconds: float | None) -> str:
    """Seconds as `h:mm:ss`, from one day on as `2d 03:04:05`."""
    if seconds is None or not math.isfinite(seconds) or seconds < 0:
        return MISSING
    days, rest = divmod(int(seconds), _DAY_S)
    minutes, s = divmod(rest, 60)
    h, m = divmod(minutes, 60)
    return f"{count(days)}d {h:02}:{m:02}:{s:02}" if days else f"{h}:{m:02}:{s:02}"


def size(n_bytes: int) -> str:
    """Bytes in binary units (`3.8 MiB`)."""
    value, unit = float(n_bytes), 0
    while value >= 1024 and unit < len(_BYTE_UNITS) - 1:
        value /= 1024
        unit += 1
    return f"{value:.1f} {_BYTE_UNITS[unit]}" if unit else f"{n_bytes} B"


def counted(n: int, noun: str) -> str:
    """A count with its noun, which takes an s unless there is exactly one (`1 actor`, `8 actors`)."""
    return f"{count(n)} {noun}" if n == 1 else f"{count(n)} {noun}s"


BLOCKS = "▁▂▃▄▅▆▇█"


def sparkline(values: Sequence[float], width: int) -> str:
    """The values from oldest to newest, one character each, between their own lowest and highest.

    More values than `width` are averaged in groups of (nearly) equal size; fewer give a shorter text. A group without a
    finite value leaves a gap. Equal values are a line at half height.
    """
    n = min(len(values), width)
    points = []
    for i in range(n):
        group = values[i * len(values) // n : (i + 1) * len(values) // n]
        finite = [value for value in group if math.isfinite(value)]
        points.append(sum(finite) / len(finite) if finite else None)
    known = [point for point in points if point is not None]
    low, span = min(known, default=0.0), max(known, default=0.0) - min(known, default=0.0)
    line = ""
    for point in points:
        level = 0.5 if span == 0.0 or point is None else (point - low) / span
        line += " " if point is None else BLOCKS[min(int(level * len(BLOCKS)), len(BLOCKS) - 1)]
    return line
