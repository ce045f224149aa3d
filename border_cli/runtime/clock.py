"""Durations, deadlines and waiting, all on a monotonic clock."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Measures durations; tests use their own."""

    def monotonic_ns(self) -> int:
        """Nanoseconds since a fixed moment, which is the same for every process of the machine."""

    def sleep(self, seconds: float, /) -> None:
        """Sleep for this time [s]."""


SYSTEM_CLOCK: Clock = time


class Backoff:
    """Sleeps that grow from `first_s` to `last_s`: quick in short waits, cheap in long ones."""

    def __init__(self, clock: Clock = SYSTEM_CLOCK, first_s: float = 1e-4, last_s: float = 5e-3) -> None:
        self._clock = clock
        self._next_s = first_s
        self._last_s = last_s

    def sleep(self) -> None:
        """Sleep once; the next time twice as long."""
        self._clock.sleep(self._next_s)
        self._next_s = min(2 * self._next_s, self._last_s)


class Deadline:
    """A moment in the future."""

    def __init__(self, seconds: float, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        self._at_ns = clock.monotonic_ns() + int(seconds * 1e9)

    @property
    def remaining_s(self) -> float:
        """Seconds left, 0 once it has passed."""
        return max(0.0, (self._at_ns - self._clock.monotonic_ns()) / 1e9)

    @property
    def passed(self) -> bool:
        """Whether the moment has passed."""
        return self.remaining_s == 0.0
