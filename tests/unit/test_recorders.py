"""What each recorder leaves behind."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

from border_cli.core.errors import ResourceError
from border_cli.core.record import Record
from border_cli.recorders.appending import AppendedFile
from border_cli.recorders.buffered import BufferedRecorder
from border_cli.recorders.fanout import FanOut
from border_cli.recorders.jsonl import JsonlRecorder, read_jsonl
from border_cli.recorders.tensorboard import TensorBoardRecorder

RECORD = Record({"train/episode_return": 12.5, "eval/return_mean": 20.0}, opt_steps=3, env_steps=40, time=1.5)


class Failing(BufferedRecorder):
    """Fails at everything, after having been asked."""

    def write(self, record: Record) -> None:
        super().write(record)
        raise OSError("write")

    def flush(self) -> None:
        raise OSError("flush")

    def close(self) -> None:
        raise OSError("close")


class Closing(BufferedRecorder):
    """Notes what it was asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []

    def flush(self) -> None:
        self.calls.append("flush")

    def close(self) -> None:
        self.calls.append("close")


# -- jsonl ------------------------------------------------------------


def test_a_line_holds_the_counts_and_the_metrics(tmp_path: Path) -> None:
    recorder = JsonlRecorder(tmp_path / "metrics.jsonl")
    recorder.write(RECORD)
    line = (tmp_path / "metrics.jsonl").read_text()  # readable before it is closed
    recorder.close()
    assert line == (
        '{"opt_steps": 3, "env_steps": 40, "time": 1.5, "train/episode_return": 12.5, "eval/return_mean": 20.0}\n'
    )


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_null(tmp_path: Path, value: float) -> None:
    recorder = JsonlRecorder(tmp_path / "m.jsonl")
    recorder.write(Record({"agent/loss": value}, 1))
    recorder.close()
    assert read_jsonl(tmp_path / "m.jsonl")[0]["agent/loss"] is None


def test_it_appends_to_what_is_there(tmp_path: Path) -> None:
    for step in (1, 2):
        recorder = JsonlRecorder(tmp_path / "m.jsonl")
        recorder.write(Record({"agent/loss": 0.0}, step))
        recorder.close()
    assert [record["opt_steps"] for record in read_jsonl(tmp_path / "m.jsonl")] == [1, 2]


def test_the_reader_leaves_a_torn_tail_out(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    path.write_text('{"opt_steps": 1}\n{"opt_st')
    assert read_jsonl(path) == [{"opt_steps": 1}]


@pytest.mark.parametrize("torn", ["x", "y" * 200_000])
def test_opening_cuts_a_torn_tail_off(tmp_path: Path, torn: str) -> None:
    path = tmp_path / "m.jsonl"
    path.write_text('{"opt_steps": 1}\n' + torn)
    recorder = JsonlRecorder(path)
    recorder.write(Record({}, 2))
    recorder.close()
    assert [record["opt_steps"] for record in read_jsonl(path)] == [1, 2]


def test_a_file_of_one_torn_line_becomes_empty(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    path.write_text('{"opt')
    JsonlRecorder(path).close()
    assert read_jsonl(path) == []


@pytest.mark.parametrize("line", ["no json", "[1]"])
def test_a_bad_line_before_the_end_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "m.jsonl"
    path.write_text(f'{{"opt_steps": 1}}\n{line}\n{{}}\n')
    with pytest.raises(ValueError, match="line 2"):
        read_jsonl(path)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no device that is always full")
def test_a_full_disk_is_a_resource_error() -> None:
    recorder = JsonlRecorder.__new__(JsonlRecorder)
    recorder._file = AppendedFile(Path("/dev/full"))
    with pytest.raises(ResourceError, match="/dev/full cannot be written: No space left"):
        recorder.write(RECORD)
    recorder._file.close()


# -- tensorboard ------------------------------------------------------------


def scalars(folder: Path) -> list[tuple[int, dict[str, float]]]:
    (file,) = folder.iterdir()
    found = []
    for event in EventFileLoader(str(file)).Load():
        values = {v.tag: v.tensor.float_val[0] for v in event.summary.value}
        if values:
            found.append((event.step, values))
    return found


def test_events_are_at_their_opt_step_with_the_env_steps_beside(tmp_path: Path) -> None:
    recorder = TensorBoardRecorder(tmp_path / "tensorboard")
    recorder.write(RECORD)
    recorder.write(Record({"train/episode_return": 13.5}, opt_steps=6, env_steps=80))
    recorder.close()
    recorder.close()
    assert scalars(tmp_path / "tensorboard") == [
        (3, {"train/episode_return": 12.5, "eval/return_mean": 20.0, "env_steps": 40.0}),
        (6, {"train/episode_return": 13.5, "env_steps": 80.0}),
    ]


def test_an_evaluation_that_comes_late_does_not_take_the_env_steps_back(tmp_path: Path) -> None:
    recorder = TensorBoardRecorder(tmp_path / "tensorboard")
    recorder.write(Record({"train/episode_return": 12.5}, opt_steps=6, env_steps=80))
    recorder.write(Record({"eval/return_mean": 20.0}, opt_steps=3, env_steps=40))
    recorder.write(Record({"train/episode_return": 13.5}, opt_steps=6, env_steps=90))
    recorder.close()
    assert scalars(tmp_path / "tensorboard") == [
        (6, {"train/episode_return": 12.5, "env_steps": 80.0}),
        (3, {"eval/return_mean": 20.0}),
        (6, {"train/episode_return": 13.5, "env_steps": 90.0}),
    ]


def test_a_flush_makes_events_readable_by_others(tmp_path: Path) -> None:
    recorder = TensorBoardRecorder(tmp_path / "tensorboard")
    recorder.write(RECORD)
    recorder.flush()
    assert [step for step, _ in scalars(tmp_path / "tensorboard")] == [3]
    recorder.close()


# -- memory ------------------------------------------------------------


def test_what_is_kept_does_not_follow_the_record() -> None:
    recorder, record = BufferedRecorder(), Record({"agent/loss": 1.0}, 1)
    recorder.write(record)
    record.values["agent/loss"] = 2.0
    recorder.write(Record({"agent/q_mean": 0.0}, 2))
    assert recorder.series("agent/loss") == [(1, 1.0)]
    assert recorder.series("eval/return_mean") == []
    assert json.dumps(recorder.records[0].values) == '{"agent/loss": 1.0}'


# -- fan-out ------------------------------------------------------------


def test_every_recorder_gets_every_record() -> None:
    first, second = BufferedRecorder(), BufferedRecorder()
    FanOut([first, second]).write(RECORD)
    assert first.records == second.records == [RECORD]


def test_an_undeclared_metric_reaches_nobody() -> None:
    recorder = BufferedRecorder()
    with pytest.raises(ValueError, match="train/episode_retrun"):
        FanOut([recorder]).write(Record({"train/episode_retrun": 1.0, "eval/return_mean": 1.0}))
    assert recorder.records == []


def test_steps_may_repeat_but_not_go_back_per_metric() -> None:
    recorder = BufferedRecorder()
    fan = FanOut([recorder])
    for metric, step in (("eval/return_mean", 5), ("eval/return_mean", 5), ("train/episode_return", 3)):
        fan.write(Record({metric: 0.0}, step))
    with pytest.raises(ValueError, match="eval/return_mean: opt_steps went back from 5 to 4"):
        fan.write(Record({"eval/return_mean": 0.0}, 4))
    assert len(recorder.records) == 3


def test_an_empty_record_is_not_passed_on() -> None:
    recorder = BufferedRecorder()
    FanOut([recorder]).write(Record({}, 1))
    assert recorder.records == []


def test_one_that_fails_keeps_nobody_from_its_turn() -> None:
    before, after = Closing(), Closing()
    failing = Failing()
    fan = FanOut([before, failing, after])
    with pytest.raises(OSError, match="write"):
        fan.write(RECORD)
    with pytest.raises(OSError, match="flush"):
        fan.flush()
    with pytest.raises(OSError, match="close"):
        fan.close()
    assert before.records == failing.records == after.records == [RECORD]
    assert before.calls == after.calls == ["flush", "close"]
