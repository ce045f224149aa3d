"""Contract tests of every recorder."""

from __future__ import annotations

import io
import math
from collections.abc import Callable
from pathlib import Path

import pytest

from border_cli.core.metrics import METRICS, Record
from border_cli.core.protocols import Recorder
from border_cli.display.views import PlainView
from border_cli.recorders import BufferedRecorder, RecorderGroup
from border_cli.recorders.files import CsvRecorder, JsonlRecorder
from border_cli.recorders.recorder_process import RemoteRecorder
from border_cli.recorders.tensorboard import TensorBoardRecorder

MAKERS: dict[str, Callable[[Path], Recorder]] = {
    "jsonl": lambda folder: JsonlRecorder(folder / "metrics.jsonl"),
    "tensorboard": lambda folder: TensorBoardRecorder(folder / "tensorboard"),
    "csv": lambda folder: CsvRecorder(folder / "metrics.csv"),
    "remote": lambda folder: RemoteRecorder("buffered", BufferedRecorder, 30.0),
    "buffered": lambda folder: BufferedRecorder(),
    "null": lambda folder: Recorder(),
    "plain": lambda folder: PlainView(io.StringIO()),
    "fanout": lambda folder: RecorderGroup([BufferedRecorder(), JsonlRecorder(folder / "metrics.jsonl")]),
}

pytestmark = pytest.mark.usefixtures("light_forkserver")


@pytest.fixture(params=MAKERS)
def recorder(request: pytest.FixtureRequest, tmp_path: Path) -> Recorder:
    return MAKERS[request.param](tmp_path)


def test_it_accepts_every_record_unchanged(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every metric, numbers that are not finite, names of an environment's metrics, a step that comes twice."""
    monkeypatch.setitem(METRICS, 'env/größe, "x"', METRICS["eval/return_mean"])
    numbers = (math.nan, math.inf, -math.inf, 1e300, -0.0)
    values = [dict.fromkeys(METRICS, 1.0), *({"eval/return_mean": number} for number in numbers)]
    for of_record in values:
        record = Record(dict(of_record), opt_steps=1, env_steps=2, time=0.5)
        recorder.write(record)
        assert record == Record(of_record, opt_steps=1, env_steps=2, time=0.5)
    recorder.close()
    recorder.close()


def test_close_works_without_a_record(recorder: Recorder) -> None:
    recorder.close()
