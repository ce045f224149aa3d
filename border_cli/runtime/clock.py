"""Deadlines and waiting, on a monotonic clock, which is the same for every process of the machine."""

from __future__ import annotations

from time import monotonic_ns, sleep


class Backoff:
    """Sleeps that grow from `first_s` to `last_s`: quick in short waits, cheap in long ones."""

    def __init__(self, first_s: float = 1e-4, last_s: float = 5e-3) -> None:
        self._next_s = first_s
        self._last_s = last_s

    def sleep(self) -> None:
        """Sleep once; the next time twice as long."""
        sleep(self._next_s)
        self._next_s = min(2 * self._next_s, self._last_s)


class Deadline:
    """A moment in the future."""

    def __init__(self, seconds: float) -> None:
        self._at_ns = monotonic_ns() + int(seconds * 1e9)

    @property
    def remaining_s(self) -> float:
        """Seconds left, 0 once it has passed."""
        return max(0.0, (self._at_ns - monotonic_ns()) / 1e9)

    @property
    def passed(self) -> bool:
        """Whether the moment has passed."""
        return self.remaining_s == 0.0
