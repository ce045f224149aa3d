"""When checkpoints are written, and what to do when one cannot be."""

from __future__ import annotations

from pathlib import Path
from time import monotonic
from typing import Protocol

from border_cli.core.protocols import Agent, Evaluation
from border_cli.core.spaces import Array
from border_cli.trainers.telemetry import Telemetry


class Keeper(Protocol):
    """Writes models and checkpoints."""

    def save_best(self, agent: Agent, evaluation: Evaluation) -> None:
        """Keep this model as the best so far."""

    def save(self, counters: dict[str, object]) -> None:
        """Write a checkpoint of the present state."""

    def save_skipped(self, opt_steps: int, batch: dict[str, Array]) -> Path | None:
        """Keep the batch of a skipped opt step for diagnosis: where; None if there are enough, or it cannot be."""


class Saving:
    """Has checkpoints written. saved_at: opt step of the newest one, 0 before the first."""

    def __init__(self, keeper: Keeper, telemetry: Telemetry) -> None:
        self._keeper = keeper
        self._telemetry = telemetry
        self.saved_at = 0

    def save(self, opt_steps: int, counters: dict[str, object]) -> None:
        """Write a checkpoint of this opt step."""
        began = monotonic()
        self._keeper.save(counters)
        self.saved_at = opt_steps
        self._telemetry.saved(monotonic() - began)
