"""The files of each recorder, also on a disk that fails for some time."""

from __future__ import annotations

import fcntl
import itertools
import logging
import math
import os
import re
import resource
import signal
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
from tensorboard.plugins.custom_scalar.layout_pb2 import Layout
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

from border_cli.core.errors import UsageError
from border_cli.core.metrics import Record
from border_cli.recorders import BufferedRecorder, RecorderGroup
from border_cli.recorders.files import (
    CsvRecorder,
    FileRecorder,
    JsonlRecorder,
    read_jsonl,
)
from border_cli.recorders.tensorboard import TensorBoardRecorder
from border_cli.run.directory import log_to
from tests.faults.amounts import times

RECORD = Record({"train/episode_return": 12.5, "eval/return_mean": 20.0}, opt_steps=3, env_steps=40, time=1.5)


class Failing(BufferedRecorder):
    """Stores its records, and then fails."""

    def write(self, record: Record) -> None:
        super().write(record)
        raise OSError("write")

    def close(self) -> None:
        raise OSError("close")


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
def test_a_resumed_recorder_continues_at_its_position(tmp_path: Path, kind: type[FileRecorder]) -> None:
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
        values = {v.tag: v.tensor.float_val[0] for v in event.summary.value if v.tensor.float_val}
        if values:
            events.append((event.step, values))
    return events


def test_a_later_file_of_tensorboard_has_a_later_name_whatever_the_clock_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = []
    for now in (100.0, 100.9, 50.0):
        monkeypatch.setattr("border_cli.recorders.tensorboard.time.time", lambda now=now: now)
        recorder = TensorBoardRecorder(tmp_path)
        recorder.write(Record({"a": 1.0}, 1, 1, 1.0))
        recorder.close()
        names.append({path.name for path in tmp_path.glob("events*")})
    assert [max(after - before) > max(before) for before, after in itertools.pairwise(names)] == [True, True]


def test_tensorboard_has_the_typed_values_and_a_layout(tmp_path: Path) -> None:
    recorder = TensorBoardRecorder(tmp_path, typed={"agent": "dqn", "agent.lr": 1e-3})
    recorder.write(RECORD)
    read = EventAccumulator(str(tmp_path)).Reload()
    (content,) = read.PluginTagToContent("hparams").values()
    values = HParamsPluginData.FromString(content).session_start_info.hparams
    assert (values["agent"].string_value, values["agent.lr"].number_value) == ("dqn", 1e-3)
    (event,) = read.Tensors("custom_scalars__config__")
    charts = [
        chart
        for group in Layout.FromString(event.tensor_proto.string_val[0]).category
        for chart in group.chart
    ]
    assert [list(chart.multiline.tag) for chart in charts][:2] == [
        ["eval/return_mean"],
        ["train/episode_return"],
    ]


def test_a_failing_recorder_does_not_affect_the_others() -> None:
    recorders = [BufferedRecorder(), Failing(), BufferedRecorder()]
    group = RecorderGroup(recorders)
    group.write(Record({}, 1))  # an empty record reaches none
    for name, call in (("write", lambda: group.write(RECORD)), ("close", group.close)):
        with pytest.raises(OSError, match=name):
            call()
    for recorder in recorders:
        assert recorder.records == [RECORD]


# -- on a disk that fails for some time ------------------------------------


def record(opt_steps: int) -> Record:
    return Record({"eval/return_mean": 1.0}, opt_steps, opt_steps)


@pytest.fixture
def limit() -> Iterator[None]:
    """Restore RLIMIT_FSIZE after the test."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


def lines_of(path: Path) -> list[int]:
    """Return the opt steps of a metrics.jsonl."""
    return [line["opt_steps"] for line in read_jsonl(path)]


def allow_bytes(n: int) -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (n, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))


def test_h3_a_failure_costs_records(tmp_path: Path, limit: None, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "metrics.jsonl"
    recorder = JsonlRecorder(path)
    for opt_steps in range(1, 7):
        full = opt_steps in (2, 3, 5)
        allow_bytes(path.stat().st_size + 10 if full else resource.RLIM_INFINITY)
        recorder.write(record(opt_steps))
    recorder.close()
    assert lines_of(path) == [1, 4, 6]
    assert (recorder.dropped, recorder.positions()) == (3, {"jsonl": 3})
    assert caplog.messages == [
        f"{path} cannot be written: File too large; records may be lost, training continues",
        "metrics.jsonl lacks 3 records",
    ]


def test_a_file_of_an_earlier_launch_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=re.escape(f"{tmp_path} cannot be read: Is a directory")):
        JsonlRecorder(tmp_path, keep=1)


@pytest.mark.parametrize("kind", ["jsonl", "tensorboard"])
def test_h3_a_partly_written_record_is_removed(
    tmp_path: Path, limit: None, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    events = kind == "tensorboard"
    folder = tmp_path / kind
    folder.mkdir()
    recorder: FileRecorder = (
        TensorBoardRecorder(folder) if events else JsonlRecorder(folder / "metrics.jsonl")
    )
    recorder.write(record(1))
    (path,) = folder.iterdir()
    size = path.stat().st_size
    allow_bytes(size + 10)
    recorder.write(record(2))
    assert recorder.dropped == 1
    assert f"{path} cannot be written: File too large" in caplog.text
    allow_bytes(resource.RLIM_INFINITY)
    recorder.write(record(3))
    recorder.close()
    assert ([step for step, _ in scalars(folder)] if events else lines_of(path)) == [1, 3]


def test_h3_a_log_only_drops_lines(tmp_path: Path, limit: None, capsys: pytest.CaptureFixture[str]) -> None:
    path, log = tmp_path / "train.log", logging.getLogger("border_cli.test")
    with log_to(path, lambda note: None):
        log.info("first")
        allow_bytes(path.stat().st_size + 5)
        log.info("second")
        log.info("third")
        allow_bytes(resource.RLIM_INFINITY)
        log.info("fourth")
        allow_bytes(path.stat().st_size)
        log.info("fifth")
        allow_bytes(
            resource.RLIM_INFINITY
        )  # here, not at the teardown, because pytest may write to a file in between
    text = path.read_text()
    assert "first" in text and "fourth" in text
    assert all(text.count(word) <= 1 for word in ("second", "third", "fifth"))
    assert capsys.readouterr().err == ""


def write_for_ever(folder: Path, pipe: int) -> None:
    recorders = JsonlRecorder(folder / "metrics.jsonl"), TensorBoardRecorder(folder / "tensorboard")
    for step in itertools.count(1):
        for recorder in recorders:
            recorder.write(Record({"eval/return_mean": step / 2}, step, step))
        os.write(pipe, b".")


def forked() -> int:
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", DeprecationWarning
        )  # this process has threads, which the child does not need
        return os.fork()


@pytest.mark.skipif(sys.platform != "linux", reason="sets the size of a pipe")
def test_h1_records_written_before_a_kill_are_readable(tmp_path: Path) -> None:
    """Each writer is killed at another step. All records that it reported are in both files, in order and complete, because
    each record is passed to the system before the next one.
    """
    for i in range(times(3, 50)):
        folder, steps = tmp_path / str(i), 1 + 37 * i
        folder.mkdir()
        reader, writer = os.pipe()
        fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4096)  # so the writer cannot get far ahead
        pid = forked()
        if pid == 0:
            try:
                write_for_ever(folder, writer)
            finally:
                os._exit(1)
        os.close(writer)
        said = 0
        while said < steps:
            said += len(os.read(reader, steps - said))
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        while rest := os.read(reader, 4096):
            said += len(rest)
        os.close(reader)
        events = scalars(folder / "tensorboard")
        for written in (lines_of(folder / "metrics.jsonl"), [step for step, _ in events]):
            assert written == list(range(1, len(written) + 1))
            assert said <= len(written) <= said + 1
        assert all(values["eval/return_mean"] == step / 2 for step, values in events)


def test_h1_an_incomplete_last_line_is_ignored_by_readers(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    recorder = JsonlRecorder(path)
    recorder.write(record(1))
    recorder.write(record(2))
    recorder.close()
    whole = path.read_bytes()
    for end in range(whole.index(b"\n") + 1, len(whole)):
        path.write_bytes(whole[:end])
        assert lines_of(path) == [1]
