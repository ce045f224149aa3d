"""When checkpoints are written, and what to do when one cannot be.

A save that fails is tried once more at once; then training goes on without it. After one failed save the next interval is
left out, after two in a row the next two, and the third in a row ends the run. So does the last one of a run, as its
result would be lost. A best model that could not be written is kept in memory, and is part of every save from then on.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from time import monotonic
from typing import Protocol

from border_cli.core.errors import CheckpointIOError
from border_cli.core.protocols import Evaluation, ModelInfo
from border_cli.core.spaces import Array
from border_cli.core.state import RunState, State
from border_cli.trainers.telemetry import Telemetry

PATIENCE = 3
"""So many failed saves in a row end the run."""
_logger = logging.getLogger(__name__)


class Keeper(Protocol):
    """Writes models and checkpoints."""

    @property
    def holds_best(self) -> bool:
        """Whether there is a best model that is not written yet."""

    def hold_best(self, model: ModelInfo, score: Evaluation, routine: Evaluation | None) -> None:
        """Take a copy of this model as the best so far, in the place of one that is not written yet.

        routine: the evaluation that `score` confirmed, if it is one that did.
        """

    def write_best(self) -> None:
        """Write the best model, if there is one to be written. Raises CheckpointIOError; then it is held on."""

    def save(self, state: RunState, counters: dict[str, object]) -> None:
        """Write a checkpoint of this state. counters: for people who look at it. Raises CheckpointIOError."""

    def know_loaded(self, replay: State) -> None:
        """What is sealed in this replay, which was loaded from the checkpoint that the run goes on from, is written."""

    def save_skipped(self, opt_steps: int, batch: dict[str, Array]) -> Path | None:
        """Keep the batch of a skipped opt step for diagnosis: where; None if there are enough, or it cannot be."""


class Saving:
    """Has checkpoints and the best model written. saved_at: opt step of the newest checkpoint, 0 before the first."""

    def __init__(self, keeper: Keeper, telemetry: Telemetry) -> None:
        self._keeper = keeper
        self._telemetry = telemetry
        self._failures = 0  # in a row
        self._left_out = 0  # intervals still to be left out
        self.saved_at = 0

    def leaves_out(self) -> bool:
        """Whether nothing is to be saved at this interval, as a save before it has failed. Asked once per interval."""
        left_out = self._left_out > 0
        self._left_out -= left_out
        return left_out

    def save_best(self, model: ModelInfo, score: Evaluation, routine: Evaluation | None) -> None:
        """Keep this model as the best so far: now or, where that fails, with the next checkpoint."""
        began = monotonic()
        self._keeper.hold_best(model, score, routine)
        try:
            _twice(self._keeper.write_best)
        except CheckpointIOError as e:
            self._telemetry.save_failed()
            _logger.warning("%s; the model is held, to be written with the next checkpoint", _first_line(e))
        self._telemetry.excluded(monotonic() - began)

    def save(self, state: RunState, counters: dict[str, object], last: bool = False) -> None:
        """Write a checkpoint of this state, and before it the best model, if that is still to be written.

        last: nothing comes after it. Raises CheckpointIOError where the run cannot go on without it.
        """
        began = monotonic()

        def write() -> None:
            self._keeper.write_best()  # first: no checkpoint speaks of a best model that is not there
            self._keeper.save(state, counters)

        try:
            _twice(write)
        except CheckpointIOError as e:
            self._telemetry.excluded(monotonic() - began)
            self._failed(e, last)
            return
        self.saved_at = int(state.loop["limiter"]["opt_steps"])
        self._failures = self._left_out = 0
        self._telemetry.saved(monotonic() - began)

    def save_owed_best(self) -> None:
        """At the very end: write the best model, if it could not be written yet. Raises CheckpointIOError."""
        if self._keeper.holds_best:
            try:
                _twice(self._keeper.write_best)
            except CheckpointIOError as e:
                self._failed(e, last=True)

    def _failed(self, error: CheckpointIOError, last: bool) -> None:
        self._telemetry.save_failed()
        self._failures += 1
        if last or self._failures >= PATIENCE:
            why = "it was the last save of the run" if last else f"{PATIENCE} saves in a row have failed"
            raise CheckpointIOError(
                f"{_first_line(error)}\n{why}; the checkpoints before it are as they were\n"
                "allowed: a disk that has room and can be written to; resume=<run> then goes on from the newest"
            ) from error
        self._left_out = self._failures
        _logger.warning(
            "%s; training goes on, and the next %s left out",
            _first_line(error),
            "save is" if self._left_out == 1 else f"{self._left_out} saves are",
        )


def _twice(write: Callable[[], None]) -> None:
    try:
        write()
    except CheckpointIOError:
        write()


def _first_line(error: CheckpointIOError) -> str:
    return str(error).splitlines()[0]
