"""When checkpoints are written, and what to do when one cannot be."""

from __future__ import annotations

from pathlib import Path
from time import monotonic
from typing import Protocol

from border_cli.core.protocols import Evaluation, ModelInfo
from border_cli.core.spaces import Array
from border_cli.core.state import RunState
from border_cli.trainers.telemetry import Telemetry


class Keeper(Protocol):
    """Writes models and checkpoints."""

    def save_best(self, model: ModelInfo, score: Evaluation, routine: Evaluation | None) -> None:
        """Keep this model as the best so far. routine: the evaluation that `score` confirmed, if it is one that did."""

    def save(self, state: RunState, counters: dict[str, object]) -> None:
        """Write a checkpoint of this state. counters: for people who look at it."""

    def save_skipped(self, opt_steps: int, batch: dict[str, Array]) -> Path | None:
        """Keep the batch of a skipped opt step for diagnosis: where; None if there are enough, or it cannot be."""


class Saving:
    """Has checkpoints written. saved_at: opt step of the newest one, 0 before the first."""

    def __init__(self, keeper: Keeper, telemetry: Telemetry) -> None:
        self._keeper = keeper
        self._telemetry = telemetry
        self.saved_at = 0

    def save(self, state: RunState, counters: dict[str, object]) -> None:
        """Write a checkpoint of this state."""
        began = monotonic()
        self._keeper.save(state, counters)
        self.saved_at = int(state.loop["limiter"]["opt_steps"])
        self._telemetry.saved(monotonic() - began)
