"""The checkpoint manager on a failing disk."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from border_cli.checkpoints import store
from border_cli.config.schema import TrainConfig
from border_cli.core.errors import CheckpointIOError, ExitCode
from border_cli.core.progress import Progress
from border_cli.core.state import RunState, State
from border_cli.core.types import Evaluation, ModelInfo
from border_cli.training.checkpointer import CheckpointManager
from border_cli.training.ratio_limiter import RatioLimiter
from border_cli.training.telemetry import Telemetry
from tests.fakes import COUNTING_SPEC

MODEL = ModelInfo(5, {})
SCORE = Evaluation(5, (1.0,), (1,))


class Disk:
    """A run directory in which the listed writes of a checkpoint or of best/ fail, counted from 1."""

    def __init__(self, patch: pytest.MonkeyPatch, folder: Path, refused: Collection[int]) -> None:
        self.writes = 0
        self.written: list[str] = []
        self.telemetry = Telemetry(RatioLimiter(1.0, 0, 64), Progress())
        self._agent: Any = SimpleNamespace()
        self.manager = CheckpointManager(folder, TrainConfig(), COUNTING_SPEC, self._agent, self.telemetry)
        write = store.write

        def write_or_fail(parent: Path, name: str, files: Any, opt_steps: int) -> Path:
            self.writes += 1
            if self.writes in refused:
                raise CheckpointIOError(f"checkpoint {name} cannot be written: No space left\nthe rest")
            self.written.append(name)
            return write(parent, name, files, opt_steps)

        patch.setattr(store, "write", write_or_fail)

    def save(self, opt_steps: int, last: bool = False) -> None:
        self._agent.model_info = lambda: ModelInfo(opt_steps, {})
        state = RunState(State(), None, State(), State(), {"limiter": {"opt_steps": opt_steps}}, {})
        self.manager.save(state, last)

    def at_intervals(self, n: int) -> list[int]:
        """Return which of n intervals tried a save."""
        tried = []
        for i in range(1, n + 1):
            if not self.manager.skip_interval():
                tried.append(i)
                self.save(i)
        return tried

    @property
    def failed_saves(self) -> float | None:
        return self.telemetry.interval_values(0, 1, [], {}).get("checkpoint/failed_saves")


Make = Callable[..., Disk]


@pytest.fixture
def failing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    return lambda *refused: Disk(monkeypatch, tmp_path, refused)


def test_a_failed_write_is_repeated_once_at_once(failing: Make, caplog: pytest.LogCaptureFixture) -> None:
    disk = failing(1)
    disk.save(1)
    assert disk.written == ["step-000000001"]
    assert (disk.manager.saved_at, disk.failed_saves) == (1, None)
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


@pytest.mark.parametrize(
    ("refused", "tried", "failed"),
    [
        ([2, 3], [1, 2, 4, 5, 6], [2]),
        ([1, 2, 3, 4], [1, 3, 6, 7], [1, 3]),
        ([1, 2, 3, 4, 6, 7, 8, 9], [1, 3, 6, 7, 9, 12], [1, 3, 7, 9]),
    ],
    ids=["one", "two in a row", "a success in between"],
)
def test_n_failed_saves_in_a_row_skip_n_intervals(
    failing: Make, refused: list[int], tried: list[int], failed: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    disk = failing(*refused)
    assert disk.at_intervals(tried[-1]) == tried
    assert disk.written == [f"step-{i:09d}" for i in tried if i not in failed]
    assert (disk.failed_saves, disk.manager.saved_at) == (len(failed), tried[-1])
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warnings) == len(failed)
    assert warnings[0] == (
        f"checkpoint step-{failed[0]:09d} cannot be written: No space left; "
        "training continues, and the next save is skipped"
    )


def test_the_third_failure_in_a_row_ends_the_run(failing: Make) -> None:
    disk = failing(*range(1, 7))
    with pytest.raises(CheckpointIOError) as caught:
        disk.at_intervals(10)
    assert disk.writes == 6
    assert caught.value.code == ExitCode.CHECKPOINT_IO
    first, second, _ = str(caught.value).splitlines()
    assert first.endswith("No space left")
    assert second.startswith("3 saves in a row have failed")


def test_the_last_save_must_succeed(failing: Make) -> None:
    disk = failing(1, 2)
    with pytest.raises(CheckpointIOError, match="it was the last save of the run"):
        disk.save(1, last=True)
    assert disk.manager.saved_at == 0


def test_an_unwritten_best_model_is_written_with_the_next_successful_save(failing: Make) -> None:
    disk = failing(1, 2, 3, 4)
    disk.manager.save_best(MODEL, SCORE)
    assert not disk.manager.skip_interval()
    assert disk.failed_saves == 1
    disk.save(1)
    assert disk.written == []  # no checkpoint refers to a best model that is not on the disk
    disk.save(2, last=True)
    assert disk.written == ["best", "step-000000002"]


def test_a_best_model_after_the_last_checkpoint_must_be_written(failing: Make) -> None:
    disk = failing(1, 2, 3, *range(5, 10))
    disk.manager.save_best(MODEL, SCORE)
    disk.manager.save_pending_best()
    assert disk.written == ["best"]
    disk.manager.save_pending_best()  # nothing is pending
    assert disk.writes == 4
    disk.manager.save_best(MODEL, SCORE)
    with pytest.raises(CheckpointIOError, match="it was the last save of the run"):
        disk.manager.save_pending_best()
