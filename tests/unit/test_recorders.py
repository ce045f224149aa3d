"""The files of each recorder."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

from border_cli.core.metrics import Record
from border_cli.recorders import BufferedRecorder, RecorderGroup
from border_cli.recorders.files import (
    CsvRecorder,
    FileRecorder,
    JsonlRecorder,
    TensorBoardRecorder,
    read_jsonl,
)

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


@pytest.mark.parametrize("kind", [JsonlRecorder, CsvRecorder])
def test_a_resumed_recorder_continues_at_its_position_and_cuts_off_the_rest_with_its_first_record(
    tmp_path: Path, kind: type[FileRecorder]
) -> None:
    path = tmp_path / "records"
    recorder = kind(path)
    recorder.write(RECORD)
    saved, (keep,) = path.read_bytes(), recorder.positions().values()
    recorder.write(Record({"agent/loss": 0.5}, 4))
    recorder.close()
    recorder.close()
    whole = path.read_bytes()
    again = kind(path, keep)
    assert path.read_bytes() == whole
    again.write(Record({"agent/loss": 0.25}, 5))
    added = path.read_bytes().removeprefix(saved)
    assert b"0.25" in added and b"0.5" not in added and added.count(b"\n") == 1
    again.close()


@pytest.mark.parametrize("line", ["no json", "[1]"])
def test_an_invalid_line_before_the_end_is_an_error(tmp_path: Path, line: str) -> None:
    path = tmp_path / "m.jsonl"
    path.write_text(f'{{"opt_steps": 1}}\n{line}\n{{}}\n')
    with pytest.raises(ValueError, match="line 2"):
        read_jsonl(path)


def scalars(folder: Path) -> list[tuple[int, dict[str, float]]]:
    (file,) = folder.iterdir()
    events = []
    for event in EventFileLoader(str(file)).Load():
        values = {v.tag: v.tensor.float_val[0] for v in event.summary.value}
        if values:
            events.append((event.step, values))
    return events


def test_an_event_is_at_its_env_step_and_has_the_opt_step_as_a_scalar(tmp_path: Path) -> None:
    recorder = TensorBoardRecorder(tmp_path / "tensorboard")
    recorder.write(RECORD)
    # A late evaluation does not decrease the counts.
    recorder.write(Record({"eval/return_mean": 25.0}, opt_steps=2, env_steps=30))
    recorder.close()
    assert scalars(tmp_path / "tensorboard") == [
        (40, {"train/episode_return": 12.5, "eval/return_mean": 20.0, "opt_steps": 3.0}),
        (30, {"eval/return_mean": 25.0}),
    ]


def test_tensorboard_drops_what_a_killed_launch_wrote_after_the_checkpoint(tmp_path: Path) -> None:
    """The second launch continues behind env step 20, the third is killed before its first record, the last starts over."""
    for purge_step, values in ((0, {10: 1.0, 20: 2.0, 30: 3.0}), (21, {30: 4.0, 40: 5.0}), (41, {})):
        recorder = TensorBoardRecorder(tmp_path, purge_step)
        for env_steps, value in values.items():
            recorder.write(Record({"agent/loss": value}, env_steps // 2, env_steps))
        recorder.close()
    shown = EventAccumulator(str(tmp_path)).Reload().Scalars("agent/loss")
    assert [(point.step, point.value) for point in shown] == [(10, 1.0), (20, 2.0), (30, 4.0), (40, 5.0)]
    recorder = TensorBoardRecorder(tmp_path, 0)
    recorder.write(Record({"agent/loss": 6.0}, 5, 10))
    recorder.close()
    shown = EventAccumulator(str(tmp_path)).Reload().Scalars("agent/loss")
    assert [(point.step, point.value) for point in shown] == [(10, 6.0)]


def test_a_stored_record_does_not_change_with_the_original() -> None:
    recorder, record = BufferedRecorder(), Record({"agent/loss": 1.0}, 1)
    recorder.write(record)
    record.values["agent/loss"] = 2.0
    recorder.write(Record({"agent/q_mean": 0.0}, 2))
    assert recorder.series("agent/loss") == [(1, 1.0)]
    assert recorder.series("eval/return_mean") == []
    assert json.dumps(recorder.records[0].values) == '{"agent/loss": 1.0}'


def test_a_failing_recorder_does_not_affect_the_others() -> None:
    recorders = [Failing(fails) for fails in (False, True, False)]
    group = RecorderGroup(recorders)
    group.write(Record({}, 1))  # an empty record reaches none
    for name, call in (("write", lambda: group.write(RECORD)), ("close", group.close)):
        with pytest.raises(OSError, match=name):
            call()
    for recorder in recorders:
        assert recorder.records == [RECORD]
        assert recorder.calls == ["write", "close"]
