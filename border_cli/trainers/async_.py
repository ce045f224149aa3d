"""Asynchronous training: actors run beside the learner, held together by the ratio limiter alone."""

from __future__ import annotations

from time import monotonic

from border_cli.config.schema import TrainerConfig
from border_cli.runtime.clock import Backoff
from border_cli.trainers.loop import Parts, TrainingLoop


class AsyncTrainer(TrainingLoop):
    """Takes in what has arrived before every opt step, and waits, with growing sleeps, when there is too little."""

    def __init__(self, config: TrainerConfig, parts: Parts) -> None:
        super().__init__(config, parts)
        self._backoff = Backoff()
        self._arrived = False

    def tick(self) -> None:
        """Meanwhile, take in what arrives, without new credit: an actor that dies is noticed at once."""
        self._insert()
        super().tick()

    def _gather(self) -> None:
        self._arrived = self._take_in()

    def _idle(self) -> None:
        if self._arrived:
            self._backoff = Backoff()
            return
        began = monotonic()
        self._backoff.sleep()
        self.parts.telemetry.waited(monotonic() - began)
