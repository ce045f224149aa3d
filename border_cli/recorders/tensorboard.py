"""tensorboard/: the same scalars as event files, written without torch and without TensorFlow."""

from __future__ import annotations

import io
import os
import socket
import time
from pathlib import Path

from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.record_writer import RecordWriter

from border_cli.core.metrics import Record
from border_cli.recorders.files import FileRecorder

EVENTS = "tensorboard"


class TensorBoardRecorder(FileRecorder):
    """Writes one event per record, in a file for each launch.

    TensorBoard's step is the env step; opt_steps is a scalar.

    Args:
        purge_step: TensorBoard drops the events of earlier launches from this env step on. The step after that of the
            checkpoint: what was recorded at the same step after it then stands twice.
    """

    option = "tensorboard"

    def __init__(self, folder: Path, purge_step: int = 0) -> None:
        # TensorBoard reads the files of a folder in the order of their names, and the clock may have been set back.
        stamps = [int(path.name.split(".")[3]) for path in folder.glob("events.out.tfevents.[0-9]*.*")]
        stamp = max(int(time.time()), max(stamps, default=0) + 1)
        name = f"events.out.tfevents.{stamp:010d}.{socket.gethostname()}.{os.getpid()}"
        super().__init__(folder / name)
        self.name = EVENTS
        self._purge_step = purge_step
        self._newest = 0

    def _encoded(self, record: Record) -> bytes:
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
            events.insert(0, Event(wall_time=now, file_version="brain.Event:2"))
            events.insert(1, Event(wall_time=now, step=self._purge_step, session_log=start))
        data = io.BytesIO()
        writer = RecordWriter(data)
        for event in events:
            writer.write(event.SerializeToString())
        return data.getvalue()

    def positions(self) -> dict[str, int]:
        """None: a resumed run says from which step on TensorBoard drops what earlier launches wrote."""
        return {}
