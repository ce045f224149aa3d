"""tensorboard/: the same scalars as event files, written without torch and without TensorFlow."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import time
from pathlib import Path

from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.compat.tensorflow_stub.pywrap_tensorflow import masked_crc32c

from border_cli.core.errors import ResourceError
from border_cli.core.record import Record
from border_cli.recorders.appending import AppendedFile
from border_cli.recorders.event_files import event_files, keep_records

EVENTS = "tensorboard"
ENV_STEPS = "env_steps"
"""Tag of the count of env steps, so that curves can be read over it too."""
_VERSION = "brain.Event:2"


class TensorBoardRecorder:
    """Writes one event per record; x is its opt_steps, and only its wall time knows the time of day.

    An event is in the file when `write` returns. keep: records of earlier launches that stay, None for all (see
    `event_files`); where there are some, nothing is changed before the first record is written.
    """

    def __init__(self, folder: Path, keep: int | None = None) -> None:
        self._folder = folder
        self._keep = keep
        self._written = keep or 0
        self._newest = 0
        self._file: AppendedFile | None = None
        if not event_files(folder):
            self._begin()

    def _begin(self) -> AppendedFile:
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._written = keep_records(self._folder, self._keep)
            file = AppendedFile(_new_file(self._folder))
            file.append(_framed(Event(wall_time=time.time(), file_version=_VERSION).SerializeToString()))
        except OSError as e:
            raise self._full(e) from e
        self._file = file
        return file

    def write(self, record: Record) -> None:
        """Append one event. Raises ResourceError when the disk takes no more; then the file is as it was."""
        scalars = dict(record.values)
        # An evaluation beside training is recorded after later opt steps: it would take the env steps back.
        if record.opt_steps >= self._newest:
            self._newest = record.opt_steps
            scalars[ENV_STEPS] = float(record.env_steps)
        values = [Summary.Value(tag=tag, simple_value=value) for tag, value in scalars.items()]
        self._append(Event(wall_time=time.time(), step=record.opt_steps, summary=Summary(value=values)))
        self._written += 1

    def positions(self) -> dict[str, int]:
        """Records in all event files of the folder."""
        return {"tensorboard": self._written}

    def flush(self) -> None:
        """Bring what was written to the disk itself. Raises ResourceError as `write` does."""
        try:
            if self._file is not None:
                self._file.sync()
        except OSError as e:
            raise self._full(e) from e

    def close(self) -> None:
        """Flush and close; closing twice is no error."""
        if self._file is None or self._file.closed:
            return
        with contextlib.closing(self._file):
            self.flush()

    def _append(self, event: Event) -> None:
        file = self._file or self._begin()
        try:
            file.append(_framed(event.SerializeToString()))
        except OSError as e:
            raise self._full(e) from e

    def _full(self, error: OSError) -> ResourceError:
        reason = error.strerror or type(error).__name__
        return ResourceError(
            f"{self._folder} cannot be written: {reason}\nrecorder.tensorboard=false trains without it"
        )


def _new_file(folder: Path) -> Path:
    """A name as TensorBoard looks for: the newest file of a folder comes last, whatever the clock says."""
    stamps = [int(path.name.split(".")[3]) for path in event_files(folder)]
    stamp = max(int(time.time()), max(stamps, default=0) + 1)
    return folder / f"events.out.tfevents.{stamp:010d}.{socket.gethostname()}.{os.getpid()}"


def _framed(data: bytes) -> bytes:
    """One record of an event file: length and data, each with its checksum."""
    length = struct.pack("<Q", len(data))
    return b"".join((length, _checksum(length), data, _checksum(data)))


def _checksum(data: bytes) -> bytes:
    return struct.pack("<I", masked_crc32c(data))
