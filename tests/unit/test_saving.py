"""What becomes of saves that fail."""

from __future__ import annotations

import logging
from collections.abc import Iterable

import pytest

from border_cli.core.errors import CheckpointIOError, ExitCode
from border_cli.core.progress import Progress
from border_cli.core.protocols import Evaluation, ModelInfo
from border_cli.core.spaces import Array
from border_cli.core.state import RunState, State
from border_cli.replay.limiter import RatioLimiter
from border_cli.trainers.saving import Saving
from border_cli.trainers.telemetry import Telemetry

MODEL = ModelInfo(5, {})
SCORE = Evaluation(5, (1.0,), (1,))
FAILS = "checkpoint step-000000001 cannot be written: No space left on device\nthe rest"


class FakeKeeper:
    """A disk that refuses what is listed, by the number of the write, from 1 on."""

    def __init__(self, refused: Iterable[int] = ()) -> None:
        self._refused = set(refused)
        self.writes = 0
        self.written: list[str] = []
        self.holds_best = False

    def hold_best(self, model: ModelInfo, score: Evaluation, routine: Evaluation | None) -> None:
        self.holds_best = True

    def write_best(self) -> None:
        if self.holds_best:
            self._write("best")
            self.holds_best = False

    def save(self, state: RunState, counters: dict[str, object]) -> None:
        self._write(f"step {state.loop['limiter']['opt_steps']}")

    def know_loaded(self, replay: State) -> None:
        """Nothing is loaded here."""

    def save_skipped(self, opt_steps: int, batch: dict[str, Array]) -> None:
        """No opt step is skipped here."""

    def _write(self, what: str) -> None:
        self.writes += 1
        if self.writes in self._refused:
            raise CheckpointIOError(FAILS)
        self.written.append(what)


def saving(keeper: FakeKeeper) -> tuple[Saving, Telemetry]:
    telemetry = Telemetry(RatioLimiter(1.0, 0, 64), Progress())
    return Saving(keeper, telemetry), telemetry


def state(opt_steps: int) -> RunState:
    return RunState(State(), None, State(), State(), {"limiter": {"opt_steps": opt_steps}}, {})


def failed_saves(telemetry: Telemetry) -> float | None:
    return telemetry.interval_values(0, 1, [], 0, {}).get("checkpoint/failed_saves")


def at_intervals(saves: Saving, n: int) -> list[int]:
    """At which of n intervals a save was tried."""
    tried = []
    for i in range(1, n + 1):
        if not saves.leaves_out():
            tried.append(i)
            saves.save(state(i), {})
    return tried


def test_a_save_is_tried_once_more_at_once(caplog: pytest.LogCaptureFixture) -> None:
    keeper = FakeKeeper(refused=[1])
    saves, telemetry = saving(keeper)
    saves.save(state(1), {})
    assert keeper.written == ["step 1"]
    assert saves.saved_at == 1
    assert failed_saves(telemetry) is None
    assert caplog.records == []


def test_one_that_fails_is_one_warning_and_the_next_interval_is_left_out(
    caplog: pytest.LogCaptureFixture,
) -> None:
    keeper = FakeKeeper(refused=[2, 3])
    saves, telemetry = saving(keeper)
    assert at_intervals(saves, 6) == [1, 2, 4, 5, 6]
    assert keeper.written == ["step 1", "step 4", "step 5", "step 6"]
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert record.getMessage() == (
        "checkpoint step-000000001 cannot be written: No space left on device; "
        "training goes on, and the next save is left out"
    )
    assert failed_saves(telemetry) == 1


def test_after_two_in_a_row_two_are_left_out() -> None:
    saves, telemetry = saving(FakeKeeper(refused=[1, 2, 3, 4]))
    assert at_intervals(saves, 7) == [1, 3, 6, 7]
    assert failed_saves(telemetry) == 2
    assert saves.saved_at == 7


def test_the_third_in_a_row_ends_the_run() -> None:
    keeper = FakeKeeper(refused=range(1, 7))
    saves, _ = saving(keeper)
    with pytest.raises(CheckpointIOError) as caught:
        at_intervals(saves, 10)
    assert keeper.writes == 6
    assert caught.value.code == ExitCode.CHECKPOINT_IO
    lines = str(caught.value).splitlines()
    assert len(lines) == 3
    assert lines[0].endswith("No space left on device")
    assert lines[1].startswith("3 saves in a row have failed")


def test_one_that_succeeds_forgets_those_before_it() -> None:
    saves, telemetry = saving(FakeKeeper(refused=[1, 2, 3, 4, 6, 7, 8, 9]))
    assert at_intervals(saves, 12) == [1, 3, 6, 7, 9, 12]
    assert failed_saves(telemetry) == 4


def test_the_last_one_has_to_succeed() -> None:
    saves, _ = saving(FakeKeeper(refused=[1, 2]))
    with pytest.raises(CheckpointIOError, match="it was the last save of the run"):
        saves.save(state(1), {}, last=True)
    assert saves.saved_at == 0


def test_a_best_model_that_cannot_be_written_is_part_of_the_next_save() -> None:
    keeper = FakeKeeper(refused=[1, 2])
    saves, telemetry = saving(keeper)
    saves.save_best(MODEL, SCORE, None)
    assert keeper.holds_best
    assert not saves.leaves_out()
    saves.save(state(1), {})
    assert keeper.written == ["best", "step 1"]
    assert not keeper.holds_best
    assert failed_saves(telemetry) == 1


def test_no_checkpoint_speaks_of_a_best_model_that_is_nowhere() -> None:
    keeper = FakeKeeper(refused=[1, 2, 3, 4])
    saves, _ = saving(keeper)
    saves.save_best(MODEL, SCORE, None)
    saves.save(state(1), {})
    assert keeper.written == []
    with pytest.raises(CheckpointIOError):
        FakeKeeper(refused=[1]).save(state(1), {})
    saves.save(state(2), {}, last=True)
    assert keeper.written == ["best", "step 2"]


def test_a_best_model_of_the_very_end_has_to_be_written() -> None:
    keeper = FakeKeeper(refused=[1, 2, 3])
    saves, _ = saving(keeper)
    saves.save_best(MODEL, SCORE, None)
    saves.save_owed_best()
    assert keeper.written == ["best"]
    saves.save_owed_best()  # nothing is owed any more
    assert keeper.written == ["best"]
    refusing = FakeKeeper(refused=range(1, 5))
    saves, _ = saving(refusing)
    saves.save_best(MODEL, SCORE, None)
    with pytest.raises(CheckpointIOError, match="it was the last save of the run"):
        saves.save_owed_best()
