"""Synchronous training: acting and learning take turns in one thread, and the same seed gives the same bits."""

from __future__ import annotations

from border_cli.trainers.loop import TrainingLoop


class Trainer(TrainingLoop):
    """Acts only when the ratio does not allow an opt step."""

    reproducible = True

    def _gather(self) -> None:
        if not self.may_opt():
            self._take_in()
