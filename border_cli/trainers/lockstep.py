"""Deterministic parallel training: actors and learner in rounds with a fixed lag (contract C8).

While the actors take the env steps of a round, the learner inserts those of the round before and does every opt step that
the ratio then allows. Nothing depends on who is faster.
"""

from __future__ import annotations

from time import monotonic
from typing import Protocol, cast

from border_cli.config.schema import TrainerConfig
from border_cli.core.protocols import ExperienceSource
from border_cli.runtime.clock import Backoff
from border_cli.trainers.loop import TrainingLoop
from border_cli.trainers.parts import Parts


class RoundSource(ExperienceSource, Protocol):
    """A source whose `collect` gives whole rounds."""

    @property
    def model_due(self) -> bool:
        """Whether the model of the round that was inserted last is still to be published."""


class LockstepTrainer(TrainingLoop):
    """Takes in a round when nothing is left to be done with the one before. parts.source: a RoundSource."""

    reproducible = True

    def __init__(self, config: TrainerConfig, parts: Parts) -> None:
        super().__init__(config, parts)
        self._rounds = cast("RoundSource", parts.source)
        self._backoff = Backoff()

    def _publish_interval(self) -> int | None:
        return None  # once per round instead

    def _gather(self) -> None:
        if self.may_opt():
            return
        if self._rounds.model_due:
            self._publish()
        began = monotonic()
        if self._insert():
            self.parts.telemetry.collect_took(monotonic() - began)
            self._backoff = Backoff()

    def _idle(self) -> None:
        began = monotonic()
        self._backoff.sleep()
        self.parts.telemetry.waited(monotonic() - began)
