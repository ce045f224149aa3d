"""Synchronous training: acting and learning take turns in one thread, and the same seed gives the same bits."""

from __future__ import annotations

from border_cli.trainers.loop import TrainingLoop


class Trainer(TrainingLoop):
    """Acts only when the ratio does not allow an opt step."""

    def _gather(self) -> None:
        p = self.parts
        if not (p.limiter.may_opt() and len(p.buffer) >= p.batch_size):
            self._take_in()
