"""How often something may be started again: so many times within a window, each time after a longer wait."""

from __future__ import annotations

from collections import deque

from border_cli.runtime.clock import SYSTEM_CLOCK, Clock

MAX_DELAY_S = 30.0


def restart_delay_s(first_s: float, nth: int) -> float:
    """How long to wait before the nth restart, from 1: first_s, doubled for each one before it, up to a bound [s]."""
    return min(MAX_DELAY_S, first_s * 2.0 ** (nth - 1))


class RestartBudget:
    """At most `restarts` within any `window_s` seconds."""

    def __init__(self, restarts: int, window_s: float, clock: Clock = SYSTEM_CLOCK) -> None:
        self._restarts = restarts
        self._window_ns = int(window_s * 1e9)
        self._clock = clock
        self._spent: deque[int] = deque()

    @property
    def spent(self) -> int:
        """Restarts within the window that ends now."""
        since = self._clock.monotonic_ns() - self._window_ns
        while self._spent and self._spent[0] <= since:
            self._spent.popleft()
        return len(self._spent)

    def spend(self) -> bool:
        """Take one restart; False, and nothing is taken, if none is left."""
        if self.spent >= self._restarts:
            return False
        self._spent.append(self._clock.monotonic_ns())
        return True

    def delay_s(self, first_s: float) -> float:
        """How long to wait before the restart that was taken last: first_s, doubled for each one before it."""
        return restart_delay_s(first_s, self.spent)
