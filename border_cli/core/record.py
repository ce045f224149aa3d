"""Records: named values that belong to one opt step."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from border_cli.core.state import count, listed, number


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
    """Mean of what was added since it was last taken."""

    def __init__(self) -> None:
        self._sum = 0.0
        self._n = 0

    def add(self, value: float) -> None:
        """Add one value."""
        self._sum += value
        self._n += 1

    def state(self) -> list[float]:
        """Sum and number, to go on from by `load_state`."""
        return [self._sum, self._n]

    def load_state(self, state: Sequence[float]) -> None:
        """Take over a saved state. Raises ValueError for what is none."""
        total, n = listed(state, "a mean", 2)
        self._sum, self._n = number(total, "a sum"), count(n, "a number of values")

    def take(self) -> float | None:
        """The mean, or None if nothing was added; starts over."""
        mean = self._sum / self._n if self._n else None
        self._sum, self._n = 0.0, 0
        return mean


def percentile(values: Iterable[tuple[float, int]], q: float) -> float:
    """Nearest-rank percentile of values that were each seen so many times, q in (0, 100].

    Raises ValueError when there are no values.
    """
    ordered = sorted(values)
    rank = math.ceil(q / 100 * sum(times for _, times in ordered))
    for value, times in ordered:
        rank -= times
        if rank <= 0:
            return float(value)
    raise ValueError("percentile of nothing")
