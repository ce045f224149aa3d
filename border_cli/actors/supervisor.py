"""The life of one actor as its supervisor leads it: started, watched, ended, started again after a wait, given up.

Nothing here waits: `attend` is called again and again and does what is due.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from border_cli.actors.board import ActorState
from border_cli.actors.news import News
from border_cli.actors.slot import ActorSlot
from border_cli.config.schema import ActorManagerConfig
from border_cli.core.errors import ActorLostError, ResourceError
from border_cli.core.items import Chunk
from border_cli.runtime.clock import SYSTEM_CLOCK, Clock, Deadline
from border_cli.runtime.pulse import Pulse
from border_cli.runtime.restarts import RestartBudget

_LOOKS = 10
"""Looks at the heartbeat within its timeout, or one a second where that is more often."""


class Condition(enum.Enum):
    """How things stand with an actor."""

    NOT_STARTED = enum.auto()
    STARTING = enum.auto()
    ACTING = enum.auto()
    LEAVING = enum.auto()  # it failed or was killed, and its process is not gone yet
    BACKING_OFF = enum.auto()
    GIVEN_UP = enum.auto()


@dataclass(frozen=True)
class Loss:
    """An actor has ended unasked. cause: why · chunks: what it had handed over and nobody had taken in ·
    restart: the how many-th restart within the window follows, after delay_s; None if the actor is given up.
    """

    actor: int
    cause: ActorLostError
    chunks: list[Chunk]
    restart: int | None = None
    delay_s: float = 0.0


class Supervisor:
    """Leads the actor of one slot. news: where its descriptors are watched while it has any.

    suspect: something was heard that may mean its end. settled: its first start has come to an end, good or bad.
    was_ready: some incarnation of it was.
    """

    def __init__(
        self, slot: ActorSlot, news: News, config: ActorManagerConfig, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        self.slot = slot
        self.condition = Condition.NOT_STARTED
        self.suspect = self.settled = self.was_ready = False
        self._news = news
        self._config = config
        self._clock = clock
        self._budget = RestartBudget(config.restarts, config.restart_window_s, clock)
        self._pulse = Pulse(clock)
        self._look = self._in(0.0)
        self._due = self._in(0.0)
        self._cause: ActorLostError | None = None

    def start(self) -> None:
        """Start an incarnation. Raises ResourceError when memory or descriptors are too few."""
        self._cause, self.suspect = None, False
        self.slot.start()
        self._news.watch(self.slot)
        self.condition = Condition.STARTING
        self._due = self._in(self._config.start_timeout_s)

    def attend(self) -> Loss | None:
        """Do what is due, and say so if the actor has been lost: that is, once nothing more can come of it."""
        if self.suspect and self._cause is None:
            self._cause = self.slot.lost()
            if self._cause is not None:
                self._leave(self._config.stop_timeout_s)  # one that failed may still close its environments
        match self.condition:
            case Condition.STARTING:
                self._await_ready()
            case Condition.ACTING:
                self._feel_pulse()
            case Condition.LEAVING:
                return self._await_gone()
            case Condition.BACKING_OFF if self._due.passed:
                return self._start_again()
        return None

    def _await_ready(self) -> None:
        if self.slot.ready:
            self.condition = Condition.ACTING
            self.settled = self.was_ready = True
            self._pulse = Pulse(self._clock)
        elif self._due.passed:
            seconds = self._config.start_timeout_s
            self._kill(
                f"not ready after {seconds:g} s: actor {self.slot.actor} ({self.slot.state.words})\n"
                "allowed: a higher actor_manager.start_timeout_s, or fewer actors"
            )

    def _feel_pulse(self) -> None:
        if not self._look.passed:
            return
        making = self.slot.state == ActorState.MAKING_ENVIRONMENT  # which legitimately takes long
        seconds = self._config.start_timeout_s if making else self._config.heartbeat_timeout_s
        self._look = self._in(min(1.0, seconds / _LOOKS))
        if self._pulse.silent(self.slot.heartbeat, seconds):
            doing = self.slot.state.words
            self._kill(f"actor {self.slot.actor} gave no sign of life for {seconds:g} s (it was {doing})")

    def _kill(self, why: str) -> None:
        self._cause = ActorLostError(why)
        self.slot.kill()
        self._leave(0.0)

    def _leave(self, grace_s: float) -> None:
        self.condition = Condition.LEAVING
        self._due = self._in(grace_s)

    def _await_gone(self) -> Loss | None:
        if self.slot.gone():
            return self._end()
        if self._due.passed:
            self.slot.kill()
        return None

    def _end(self) -> Loss:
        """Release what the actor leaves behind, and decide whether there will be another incarnation."""
        cause, actor = self._cause, self.slot.actor
        if cause is None:
            raise AssertionError("an actor ends for a reason")
        self._news.forget(self.slot)
        chunks = self.slot.end()
        self.settled = True
        if not self._budget.spend():
            self.condition = Condition.GIVEN_UP
            return Loss(actor, cause, chunks)
        delay_s = self._budget.delay_s(self._config.restart_delay_s)
        self.condition = Condition.BACKING_OFF
        self._due = self._in(delay_s)
        return Loss(actor, cause, chunks, self._budget.spent, delay_s)

    def _start_again(self) -> Loss | None:
        try:
            self.start()
        except ResourceError as error:
            first = str(error).splitlines()[0]
            self._cause = ActorLostError(f"actor {self.slot.actor} could not be started again: {first}")
            return self._end()
        return None

    def _in(self, seconds: float) -> Deadline:
        return Deadline(seconds, self._clock)
