"""Asynchronous training: actors run beside the learner, held together by the ratio limiter alone."""

from __future__ import annotations

from time import monotonic

from border_cli.config.schema import TrainerConfig
from border_cli.runtime.clock import Backoff
from border_cli.trainers.loop import TrainingLoop
from border_cli.trainers.parts import Parts

_GATHER_S = 0.02
"""However much there is to learn from, look for more this often [s]: an actor that dies is noticed."""


class AsyncTrainer(TrainingLoop):
    """Takes in what has arrived between opt steps, and waits, with growing sleeps, when there is too little."""

    def __init__(self, config: TrainerConfig, parts: Parts) -> None:
        super().__init__(config, parts)
        self._backoff = Backoff()
        self._arrived = False
        # When it is time to gather, whichever comes first.
        self._gather_at_s = 0.0  # of the monotonic clock
        self._gather_at_opt_step = 0

    def tick(self) -> None:
        """Meanwhile, take in what arrives, without new credit: an actor that dies is noticed at once."""
        self._insert()
        super().tick()

    def _gather(self) -> None:
        """When there is too little, or credit to give; not at every opt step, as it takes a tenth of a small one."""
        limiter = self.parts.limiter
        due = monotonic() >= self._gather_at_s or limiter.opt_steps >= self._gather_at_opt_step
        if limiter.may_opt() and not due:
            self._arrived = False
            return
        self._arrived = self._take_in()
        self._gather_at_s = monotonic() + _GATHER_S
        self._gather_at_opt_step = limiter.opt_steps + limiter.opt_steps_until_grant()

    def _idle(self) -> None:
        if self._arrived:
            self._backoff = Backoff()
            return
        began = monotonic()
        self._backoff.sleep()
        self.parts.telemetry.waited(monotonic() - began)
