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
from border_cli.training.checkpointer import MAX_FAILURES, CheckpointManager
from border_cli.training.ratio_limiter import RatioLimiter
from border_cli.training.telemetry import Telemetry
from tests.fakes import COUNTING_SPEC


class Disk:
    """A run directory in which the listed writes of a checkpoint or of best/ fail, counted from 1."""

    def __init__(self, patch: pytest.MonkeyPatch, folder: Path, refused: Collection[int]) -> None:
        self.writes = 0
        self.written: list[str] = []
        self.telemetry = Telemetry(RatioLimiter(1.0, 0, 64), Progress())
        self._agent: Any = SimpleNamespace()
        self.manager = CheckpointManager(folder, TrainConfig(), COUNTING_SPEC, self._agent, self.telemetry)
        write = store.write

        def write_or_fail(parent: Path, name: str, files: Any, opt_steps: int) -> store.Manifest:
            self.writes += 1
            if self.writes in refused:
                raise CheckpointIOError(f"checkpoint {name} cannot be written: No space left\nthe rest")
            self.written.append(name)
            return write(parent, name, files, opt_steps)

        patch.setattr(store, "write", write_or_fail)

    def save(self, *opt_steps: int, last: bool = False) -> None:
        for step in opt_steps:
            self._agent.model_info = lambda step=step: ModelInfo(step, {})
            state = RunState(State(), None, State(), State(), {"limiter": {"opt_steps": step}}, {})
            self.manager.save(state, last)

    def save_best(self) -> None:
        self.manager.save_best(ModelInfo(5, {}), Evaluation(5, (1.0,), (1,)))

    @property
    def failed_saves(self) -> float | None:
        return self.telemetry.interval_values(0, 1, [], {}).get("checkpoint/failed_saves")


Make = Callable[..., Disk]


@pytest.fixture
def failing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    return lambda *refused: Disk(monkeypatch, tmp_path, refused)


@pytest.mark.parametrize(
    ("refused", "failed"),
    [([1], []), ([2, 3], [2]), ([1, 2, 3, 4, 6, 7, 8, 9], [1, 2, 4, 5])],
    ids=["repeated at once", "one failed", "a success in between"],
)
def test_c6_a_save_is_repeated_once_and_training_continues_after_two_failures(
    failing: Make, refused: list[int], failed: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    disk = failing(*refused)
    disk.save(1, 2, 3, 4, 5, 6)
    assert disk.written == [f"step-{i:09d}" for i in range(1, 7) if i not in failed]
    assert (disk.failed_saves or 0, disk.manager.saved_at) == (len(failed), 6)
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    what = "checkpoint step-{:09d} cannot be written: No space left; training continues"
    assert warnings == [what.format(i) for i in failed]


def test_c6_the_third_failure_in_a_row_or_that_of_the_last_save_ends_the_run(failing: Make) -> None:
    disk = failing(*range(1, 7))
    disk.save(1, 2)
    with pytest.raises(CheckpointIOError) as caught:
        disk.save(3)
    assert caught.value.code == ExitCode.CHECKPOINT_IO
    first, second, _ = str(caught.value).splitlines()
    assert first.endswith("No space left")
    assert second.startswith("3 saves in a row have failed")
    disk = failing(1, 2)
    with pytest.raises(CheckpointIOError, match="it was the last save of the run"):
        disk.save(1, last=True)
    assert disk.manager.saved_at == 0


def test_an_unwritten_best_model_is_written_before_the_next_checkpoint_or_at_the_end(failing: Make) -> None:
    disk = failing(*range(1, 11))
    for _ in range(MAX_FAILURES):  # which are no failures of checkpoints
        disk.save_best()
    disk.save(1, 2)
    assert disk.written == []  # no checkpoint refers to a best model that is not on the disk
    disk.save(3, last=True)
    assert (disk.written, disk.failed_saves) == (["best", "step-000000003"], 5)
    disk.manager.save_pending_best()  # nothing is pending
    assert disk.writes == 12
    disk = failing(*range(1, 5))
    disk.save_best()
    with pytest.raises(CheckpointIOError, match="it was the last save of the run"):
        disk.manager.save_pending_best()


def test_c7_an_old_checkpoint_that_cannot_be_removed_is_a_warning(
    failing: Make, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise CheckpointIOError("an old checkpoint cannot be removed")

    disk = failing()
    monkeypatch.setattr(store, "prune", fail)
    disk.save(1, 2)
    assert disk.manager.saved_at == 2 and caplog.text.count("cannot be removed") == 2
