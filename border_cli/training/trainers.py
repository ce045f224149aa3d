"""Synchronous, asynchronous and lockstep training, which differ in when they collect experience."""

from __future__ import annotations

from time import monotonic
from typing import Any

from border_cli.config.schema import TrainerConfig
from border_cli.core.state import RunState
from border_cli.training.best_model import Candidate
from border_cli.training.components import Components
from border_cli.training.loop import TrainingLoop

_COLLECT_INTERVAL_S = 0.02
"""`AsyncTrainer` collects at least this often, so that it notices an actor that died."""


class SyncTrainer(TrainingLoop):
    """Collects only when the ratio does not allow an opt step."""

    reproducible = True

    def _collect(self) -> bool:
        return not self.may_opt() and self.ingest()


class AsyncTrainer(TrainingLoop):
    """Collects what has arrived between opt steps: when it cannot learn, or when there is new credit to grant.

    It does not collect at every opt step, because that takes a tenth of the time of a small one.
    """

    def __init__(self, config: TrainerConfig, parts: Components) -> None:
        super().__init__(config, parts)
        # It is time to collect at the first of these two.
        self._collect_at_s = 0.0  # of the monotonic clock
        self._collect_at_opt_step = 0

    def start(self, resumed: RunState | None = None, later_best: Candidate | None = None) -> None:
        """As `TrainingLoop.start`. The actors have credit then, and act while the evaluator is made."""
        super().start(resumed, later_best)
        self.ingest()

    def tick(self) -> None:
        """Also insert what has arrived, without new credit: an actor that died is noticed at once."""
        self.insert()
        super().tick()

    def _collect(self) -> bool:
        limiter = self.parts.limiter
        due = monotonic() >= self._collect_at_s or limiter.opt_steps >= self._collect_at_opt_step
        if limiter.may_opt() and not due:
            return False
        arrived = self.ingest()
        self._collect_at_s = monotonic() + _COLLECT_INTERVAL_S
        self._collect_at_opt_step = limiter.opt_steps + limiter.opt_steps_until_grant()
        return arrived


class LockstepTrainer(TrainingLoop):
    """Deterministic parallel training. `parts.source` is an `actors.lockstep.LockstepSource`.

    While the actors take the env steps of a round, the learner inserts those of the round before and does every opt step
    that the ratio then allows. Nothing depends on which of them is faster.
    """

    reproducible = True
    publishes_by_round = True

    def _collect(self) -> bool:
        if self.may_opt():
            return False
        source: Any = self.parts.source
        if source.model_due:
            source.publish(self.parts.agent.model_info())
        return self.insert()
