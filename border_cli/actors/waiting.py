"""How an actor waits: asleep, with back-off, and seen to be waiting."""

from __future__ import annotations

from collections.abc import Callable

from border_cli.actors.board import ActorLine, ActorState
from border_cli.runtime.clock import SYSTEM_CLOCK, Backoff, Clock


class Waiter:
    """Waits on behalf of one actor and keeps its words on the board up to date meanwhile."""

    def __init__(self, line: ActorLine, clock: Clock = SYSTEM_CLOCK) -> None:
        self._line = line
        self._clock = clock

    def until(self, done: Callable[[], bool], state: ActorState) -> None:
        """Return once `done()` is true. The board shows `state` until then.

        The time counts as blocked from the first env step on: before it the run has not begun.
        """
        if done():
            return
        before, self._line.state = self._line.state, state
        backoff, since = Backoff(self._clock), self._clock.monotonic_ns()
        while not done():
            backoff.sleep()
            now = self._clock.monotonic_ns()
            if self._line.first_step_ns:
                self._line.add_blocked(now - since)
            self._line.beat()
            since = now
        self._line.state = before
