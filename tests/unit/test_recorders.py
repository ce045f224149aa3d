"""The files of each recorder."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

from border_cli.core.errors import ResourceError
from border_cli.core.metrics import Record
from border_cli.recorders import BufferedRecorder, RecorderGroup
from border_cli.recorders.jsonl import AppendedFile, JsonlRecorder, read_jsonl
from border_cli.recorders.tensorboard import TensorBoardRecorder

RECORD = Record({"train/episode_return": 12.5, "eval/return_mean": 20.0}, opt_steps=3, env_steps=40, time=1.5)


class Failing(BufferedRecorder):
    """Records its calls, and then fails if `fails`."""

    def __init__(self, fails: bool = True) -> None:
        super().__init__()
        self.fails = fails
        self.calls: list[str] = []

    def write(self, record: Record) -> None:
        super().write(record)
        self._called("write")

    def flush(self) -> None:
        self._called("flush")

    def close(self) -> None:
        self._called("close")

    def _called(self, name: str) -> None:
        self.calls.append(name)
        if self.fails:
            raise OSError(name)


def test_a_line_has_the_counts_and_the_metrics_with_null_for_nan(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    recorder = JsonlRecorder(path)
    recorder.write(RECORD)
    line = path.read_text()  # readable before the recorder is closed
    assert line == (
        '{"opt_steps": 3, "env_steps": 40, "time": 1.5, "train/episode_return": 12.5, "eval/return_mean": 20.0}\n'
    )
    for value in (math.nan, math.inf, -math.inf):
        recorder.write(Record({"agent/loss": value}, 4))
    recorder.close()
    assert [record["agent/loss"] for record in read_jsonl(path)[1:]] == [None] * 3


@pytest.mark.parametrize(("whole", "torn"), [('{"opt_steps": 1}\n', "y" * 200_000), ("", '{"opt')])
def test_the_first_write_removes_an_incomplete_last_line_and_appends(
    tmp_path: Path, whole: str, torn: str
) -> None:
    path = tmp_path / "m.jsonl"
    path.write_text(whole + torn)
    recorder = JsonlRecorder(path, 2)
    recorder.write(Record({}, 2))
    recorder.close()
    assert [record["opt_steps"] for record in read_jsonl(path)] == ([1, 2] if whole else [2])


@pytest.mark.parametrize("line", ["no json", "[1]"])
def test_an_invalid_line_before_the_end_is_an_error(tmp_path: Path, line: str) -> None:
    path = tmp_path / "m.jsonl"
    path.write_text(f'{{"opt_steps": 1}}\n{line}\n{{}}\n')
    with pytest.raises(ValueError, match="line 2"):
        read_jsonl(path)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no device that is always full")
def test_a_full_disk_is_a_resource_error() -> None:
    recorder = JsonlRecorder.__new__(JsonlRecorder)
    recorder._file = AppendedFile(Path("/dev/full"), 0)
    with pytest.raises(ResourceError, match="/dev/full cannot be written: No space left"):
        recorder.write(RECORD)
    recorder._file.close()


def scalars(folder: Path) -> list[tuple[int, dict[str, float]]]:
    (file,) = folder.iterdir()
    found = []
    for event in EventFileLoader(str(file)).Load():
        values = {v.tag: v.tensor.float_val[0] for v in event.summary.value}
        if values:
            found.append((event.step, values))
    return found


def test_events_have_env_steps_or_opt_steps_and_the_other_count_as_a_scalar(tmp_path: Path) -> None:
    later = Record({"train/episode_return": 13.5}, opt_steps=6, env_steps=80)
    for step in ("env_steps", "opt_steps"):
        recorder = TensorBoardRecorder(tmp_path / step, step=step)
        recorder.write(RECORD)
        recorder.write(later)
        recorder.close()
        recorder.close()
    values = {"train/episode_return": 12.5, "eval/return_mean": 20.0}
    assert scalars(tmp_path / "env_steps") == [
        (40, values | {"opt_steps": 3.0}),
        (80, {"train/episode_return": 13.5, "opt_steps": 6.0}),
    ]
    assert scalars(tmp_path / "opt_steps") == [
        (3, values | {"env_steps": 40.0}),
        (6, {"train/episode_return": 13.5, "env_steps": 80.0}),
    ]


def test_a_late_evaluation_does_not_decrease_the_counts(tmp_path: Path) -> None:
    recorder = TensorBoardRecorder(tmp_path / "tensorboard")
    recorder.write(Record({"train/episode_return": 12.5}, opt_steps=6, env_steps=80))
    recorder.write(Record({"eval/return_mean": 20.0}, opt_steps=3, env_steps=40))
    recorder.close()
    assert scalars(tmp_path / "tensorboard") == [
        (80, {"train/episode_return": 12.5, "opt_steps": 6.0}),
        (40, {"eval/return_mean": 20.0}),
    ]


def test_a_flush_makes_events_readable(tmp_path: Path) -> None:
    recorder = TensorBoardRecorder(tmp_path / "tensorboard")
    recorder.write(RECORD)
    recorder.flush()
    assert [step for step, _ in scalars(tmp_path / "tensorboard")] == [40]
    recorder.close()


def test_a_stored_record_does_not_change_with_the_original() -> None:
    recorder, record = BufferedRecorder(), Record({"agent/loss": 1.0}, 1)
    recorder.write(record)
    record.values["agent/loss"] = 2.0
    recorder.write(Record({"agent/q_mean": 0.0}, 2))
    assert recorder.series("agent/loss") == [(1, 1.0)]
    assert recorder.series("eval/return_mean") == []
    assert json.dumps(recorder.records[0].values) == '{"agent/loss": 1.0}'


def test_an_undeclared_metric_and_an_empty_record_reach_no_recorder() -> None:
    recorder = BufferedRecorder()
    fan = RecorderGroup([recorder])
    with pytest.raises(ValueError, match="train/episode_retrun"):
        fan.write(Record({"train/episode_retrun": 1.0, "eval/return_mean": 1.0}))
    fan.write(Record({}, 1))
    assert recorder.records == []


def test_the_steps_of_a_metric_may_repeat_but_not_decrease() -> None:
    recorder = BufferedRecorder()
    fan = RecorderGroup([recorder])
    for metric, step in (("eval/return_mean", 5), ("eval/return_mean", 5), ("train/episode_return", 3)):
        fan.write(Record({metric: 0.0}, step))
    with pytest.raises(ValueError, match="eval/return_mean: opt_steps went back from 5 to 4"):
        fan.write(Record({"eval/return_mean": 0.0}, 4))
    assert len(recorder.records) == 3


def test_a_failing_recorder_does_not_affect_the_others() -> None:
    recorders = [Failing(fails) for fails in (False, True, False)]
    group = RecorderGroup(recorders)
    for name, call in (
        ("write", lambda: group.write(RECORD)),
        ("flush", group.flush),
        ("close", group.close),
    ):
        with pytest.raises(OSError, match=name):
            call()
    for recorder in recorders:
        assert recorder.records == [RECORD]
        assert recorder.calls == ["write", "flush", "close"]
