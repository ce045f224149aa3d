"""tensorboard/: the same scalars as event files, written without torch and without TensorFlow."""

from __future__ import annotations

import contextlib
import io
import os
import socket
import time
from pathlib import Path

from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.record_writer import RecordWriter

from border_cli.core.metrics import Record
from border_cli.recorders.files import AppendedFile, writing

EVENTS = "tensorboard"


class TensorBoardRecorder:
    """Writes one event per record, in a file for each launch. An event is in the file when `write` returns.

    TensorBoard's step is the env step; opt_steps is a scalar. All methods raise ResourceError when the disk takes no more.

    Args:
        purge_step: TensorBoard drops the events of earlier launches from this env step on. The step after that of the
            checkpoint: what was recorded at the same step after it then stands twice.
    """

    def __init__(self, folder: Path, purge_step: int = 0) -> None:
        self._folder = folder
        self._purge_step = purge_step
        self._newest = 0
        self._file: AppendedFile | None = None

    def write(self, record: Record) -> None:
        """Append one event; on an error the file is as it was."""
        scalars = dict(record.values)
        # An evaluation in its own process is recorded after later opt steps: the count would go back.
        if record.opt_steps >= self._newest:
            self._newest = record.opt_steps
            scalars["opt_steps"] = float(record.opt_steps)
        values = [Summary.Value(tag=tag, simple_value=value) for tag, value in scalars.items()]
        self._append(values, record.env_steps)

    def video(self, path: Path, gif: bytes, size: tuple[int, int], opt_steps: int, env_steps: int) -> None:
        """Append a film as an animated image."""
        image = Summary.Image(height=size[0], width=size[1], colorspace=3, encoded_image_string=gif)
        self._append([Summary.Value(tag="video/episode", image=image)], env_steps)

    def _append(self, values: list[Summary.Value], step: int) -> None:
        now = time.time()
        events = [Event(wall_time=now, step=step, summary=Summary(value=values))]
        with writing(self._folder, "recorder.tensorboard"):
            if self._file is None:
                self._folder.mkdir(parents=True, exist_ok=True)
                self._file = AppendedFile(_new_file(self._folder))
            if self._file.end == 0:
                start = SessionLog(status=SessionLog.START)
                events.insert(0, Event(wall_time=now, file_version="brain.Event:2"))
                events.insert(1, Event(wall_time=now, step=self._purge_step, session_log=start))
            data = io.BytesIO()
            writer = RecordWriter(data)
            for event in events:
                writer.write(event.SerializeToString())
            self._file.append(data.getvalue())

    def positions(self) -> dict[str, int]:
        """None: a resumed run says from which step on TensorBoard drops what earlier launches wrote."""
        return {}

    def flush(self) -> None:
        """Bring what was written to the disk itself."""
        if self._file is not None:
            with writing(self._folder, "recorder.tensorboard"):
                self._file.sync()

    def close(self) -> None:
        """Flush and close; closing twice is no error."""
        if self._file is not None and not self._file.closed:
            with contextlib.closing(self._file):
                self.flush()


def _new_file(folder: Path) -> Path:
    """A name as TensorBoard expects it: the newest file of a folder sorts last, even if the clock was set back."""
    stamps = [int(path.name.split(".")[3]) for path in folder.glob("events.out.tfevents.[0-9]*.*")]
    stamp = max(int(time.time()), max(stamps, default=0) + 1)
    return folder / f"events.out.tfevents.{stamp:010d}.{socket.gethostname()}.{os.getpid()}"
