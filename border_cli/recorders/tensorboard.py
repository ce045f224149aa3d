"""tensorboard/: the same scalars as event files, written without torch and without TensorFlow."""

from __future__ import annotations

import time
from pathlib import Path

from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from border_cli.core.errors import ResourceError
from border_cli.core.record import Record
from border_cli.recorders.event_files import keep_records

ENV_STEPS = "env_steps"
"""Tag of the count of env steps, so that curves can be read over it too."""
_QUEUE = 1000
_FLUSH_S = 10


class TensorBoardRecorder:
    """Writes one event per record; x is its opt_steps, and only its wall time knows the time of day.

    keep: records of earlier launches that stay, None for all (see `event_files`).
    """

    def __init__(self, folder: Path, keep: int | None = None) -> None:
        self._folder = folder
        self._written = keep_records(folder, keep)
        self._writer = EventFileWriter(str(folder), max_queue_size=_QUEUE, flush_secs=_FLUSH_S)
        self._closed = False
        self._newest = 0

    def write(self, record: Record) -> None:
        """Hand one event to the writer's thread. Raises ResourceError when an earlier one was not written."""
        scalars = dict(record.values)
        # An evaluation beside training is recorded after later opt steps: it would take the env steps back.
        if record.opt_steps >= self._newest:
            self._newest = record.opt_steps
            scalars[ENV_STEPS] = float(record.env_steps)
        values = [Summary.Value(tag=tag, simple_value=value) for tag, value in scalars.items()]
        event = Event(wall_time=time.time(), step=record.opt_steps, summary=Summary(value=values))
        try:
            self._writer.add_event(event)
        except OSError as e:
            raise self._full(e) from e
        self._written += 1

    def positions(self) -> dict[str, int]:
        """Records in all event files of the folder."""
        return {"tensorboard": self._written}

    def flush(self) -> None:
        """Wait until every event is in the file. Raises ResourceError as `write` does."""
        try:
            self._writer.flush()
        except OSError as e:
            raise self._full(e) from e

    def close(self) -> None:
        """Flush, end the thread, close the file; closing twice is no error."""
        if self._closed:
            return
        self._closed = True
        try:
            self._writer.close()
        except OSError as e:
            raise self._full(e) from e

    def _full(self, error: OSError) -> ResourceError:
        reason = error.strerror or type(error).__name__
        return ResourceError(
            f"{self._folder} cannot be written: {reason}\nrecorder.tensorboard=false trains without it"
        )
