"""tensorboard/: an event per record, the typed values for the HParams tab, and a layout for the Custom Scalars tab."""

from __future__ import annotations

import io
import os
import socket
import time
from collections.abc import Mapping
from pathlib import Path

from border_cli.core.metrics import SCORE, Record
from border_cli.recorders.files import FileRecorder

EVENTS = "tensorboard"
_LAYOUT = {
    "returns": {
        "evaluations": SCORE,
        "training": "train/episode_return",
        "episode length": "train/episode_length",
    },
    "learning": {"losses and values": "agent/.*"},
    "speed": {
        "opt steps and env steps per second": "throughput/.*_per_sec",
        "share of time spent waiting": "async/.*_blocked",
        "env steps per opt step": "throughput/samples_per_opt_step",
        "policy lag": "async/policy_lag_.*",
    },
}
"""Of the Custom Scalars tab: by group and chart, a pattern of metrics."""


class TensorBoardRecorder(FileRecorder):
    """Writes one event per record, in a file for each launch.

    TensorBoard's step is the env step; opt_steps is a scalar.

    Args:
        purge_step: TensorBoard drops the events of earlier launches from this env step on. It is the env step after the
            checkpoint's, so what was recorded at the checkpoint's env step may appear twice.
        typed: the values that the commands of the run named, by key, for the HParams tab.
    """

    def __init__(
        self, folder: Path, purge_step: int = 0, typed: Mapping[str, str | float] | None = None
    ) -> None:
        # TensorBoard reads the files of a folder in the order of their names, and a run may be resumed within a second.
        stamps = [int(path.name.split(".")[3]) for path in folder.glob("events.out.tfevents.[0-9]*.*")]
        stamp = max(int(time.time()), max(stamps, default=0) + 1)
        name = f"events.out.tfevents.{stamp:010d}.{socket.gethostname()}.{os.getpid()}"
        super().__init__(folder / name)
        self.name = EVENTS
        self._typed = typed or {}
        self._purge_step = purge_step
        self._newest = 0

    def _encoded(self, record: Record) -> bytes:
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog  # takes a tenth of a second
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.record_writer import RecordWriter
        from torch.utils.tensorboard.summary import custom_scalars, hparams

        scalars = dict(record.values)
        # An evaluation in its own process is recorded after later opt steps: the count would go back.
        if record.opt_steps >= self._newest:
            self._newest = record.opt_steps
            scalars["opt_steps"] = float(record.opt_steps)
        values = [Summary.Value(tag=tag, simple_value=value) for tag, value in scalars.items()]
        now = time.time()
        events = [Event(wall_time=now, step=record.env_steps, summary=Summary(value=values))]
        if self._file.end == 0:
            start = SessionLog(status=SessionLog.START)
            charts = {
                group: {title: ("Multiline", [tag]) for title, tag in of_group.items()}
                for group, of_group in _LAYOUT.items()
            }
            _, typed, _ = hparams(dict(self._typed), {})
            head = Summary(value=[*typed.value, *custom_scalars(charts).value])
            events = [
                Event(wall_time=now, file_version="brain.Event:2"),
                Event(wall_time=now, step=self._purge_step, session_log=start),
                Event(wall_time=now, step=self._purge_step, summary=head),
                *events,
            ]
        data = io.BytesIO()
        writer = RecordWriter(data)
        for event in events:
            writer.write(event.SerializeToString())
        return data.getvalue()

    def positions(self) -> dict[str, int]:
        """None: a resumed run says from which step on TensorBoard drops what earlier launches wrote."""
        return {}
