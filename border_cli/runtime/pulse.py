"""Whether something that counts its signs of life is alive, as seen by somebody who looks now and then."""

from __future__ import annotations

from border_cli.runtime.clock import SYSTEM_CLOCK, Clock

_LEAST_LOOKS = 4


class Pulse:
    """How long a count has stood still.

    Time in which nobody looked counts only in part: one who was asleep, or stopped together with what is watched, must
    not take that for silence. So a timeout never passes in fewer than four looks.
    """

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        self._count = -1
        self._silent_ns = 0
        self._looked_ns = clock.monotonic_ns()

    def silent(self, count: int, timeout_s: float) -> bool:
        """Look once: whether the count has been the same for timeout_s."""
        now, timeout_ns = self._clock.monotonic_ns(), int(timeout_s * 1e9)
        if count != self._count:
            self._silent_ns = 0
        else:
            self._silent_ns += min(now - self._looked_ns, timeout_ns // _LEAST_LOOKS)
        self._count, self._looked_ns = count, now
        return self._silent_ns >= timeout_ns
