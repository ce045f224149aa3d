"""tensorboard/: the same scalars as event files, written without torch and without TensorFlow."""

from __future__ import annotations

import contextlib
import io
import os
import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from google.protobuf.message import DecodeError
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.record_writer import RecordWriter

from border_cli.core.metrics import Record
from border_cli.recorders.jsonl import AppendedFile, writing

_PATTERN = "events.out.tfevents.[0-9]*.*"
_LENGTH = struct.Struct("<Q")
_CHECKSUM_BYTES = 4
_MAX_EVENT_BYTES = 2**24
"""More than any record has: what claims more is torn."""


def event_files(folder: Path) -> list[Path]:
    """The event files of a folder, oldest first."""
    return sorted(path for path in folder.glob(_PATTERN) if path.name.split(".")[3].isdigit())


def keep_records(folder: Path, keep: int) -> int:
    """Keep the first `keep` records of all files together, as far as they are whole. Returns the number kept."""
    kept = 0
    for path in event_files(folder):
        if kept == keep:
            path.unlink()
            continue
        end = 0
        with path.open("r+b") as file:
            for frame_end, is_record in _frames(file):
                if is_record and kept == keep:
                    break
                kept, end = kept + is_record, frame_end
            file.truncate(end)
    return kept


def _frames(file: BinaryIO) -> Iterator[tuple[int, bool]]:
    """Where each whole frame ends, and whether it holds a record."""
    end, size = 0, os.fstat(file.fileno()).st_size
    while head := file.read(_LENGTH.size + _CHECKSUM_BYTES):
        if len(head) < _LENGTH.size + _CHECKSUM_BYTES:
            return
        length = _LENGTH.unpack_from(head)[0]
        end += len(head) + length + _CHECKSUM_BYTES
        if length > _MAX_EVENT_BYTES or end > size:
            return
        try:
            event = Event.FromString(file.read(length))
        except DecodeError:
            return
        file.read(_CHECKSUM_BYTES)
        yield end, any(not value.HasField("image") for value in event.summary.value)


EVENTS = "tensorboard"
OTHER_AXIS = {"env_steps": "opt_steps", "opt_steps": "env_steps"}
"""The count that is written as a scalar, by the count that is TensorBoard's step."""
_KEY = "recorder.tensorboard"


class TensorBoardRecorder:
    """Writes one event per record. An event is in the file when `write` returns.

    Args:
        keep: records of earlier launches that stay; the others go when the first record is written.
        step: which count is TensorBoard's step, "env_steps" or "opt_steps". The other one is a scalar.
    """

    def __init__(self, folder: Path, keep: int = 0, step: str = "env_steps") -> None:
        self._folder = folder
        self._keep = keep
        self._step = step
        self._written = keep
        self._newest = 0
        self._file: AppendedFile | None = None
        if not event_files(folder):
            self._begin()

    def _begin(self) -> AppendedFile:
        with writing(self._folder, _KEY):
            self._folder.mkdir(parents=True, exist_ok=True)
            self._written = keep_records(self._folder, self._keep)
            file = AppendedFile(_new_file(self._folder), 0)
            file.append(_framed(Event(wall_time=time.time(), file_version="brain.Event:2")))
        self._file = file
        return file

    def write(self, record: Record) -> None:
        """Append one event. Raises ResourceError when the disk takes no more; then the file is as it was."""
        scalars, counts = dict(record.values), {"env_steps": record.env_steps, "opt_steps": record.opt_steps}
        # An evaluation in its own process is recorded after later opt steps: its counts would go back.
        if record.opt_steps >= self._newest:
            self._newest = record.opt_steps
            scalars[OTHER_AXIS[self._step]] = float(counts[OTHER_AXIS[self._step]])
        values = [Summary.Value(tag=tag, simple_value=value) for tag, value in scalars.items()]
        event = Event(wall_time=time.time(), step=counts[self._step], summary=Summary(value=values))
        file = self._file or self._begin()
        with writing(self._folder, _KEY):
            file.append(_framed(event))
        self._written += 1

    def video(self, path: Path, gif: bytes, size: tuple[int, int], opt_steps: int, env_steps: int) -> None:
        """Append a film as an animated image. It does not count as a record."""
        image = Summary.Image(height=size[0], width=size[1], colorspace=3, encoded_image_string=gif)
        step = env_steps if self._step == "env_steps" else opt_steps
        value = Summary.Value(tag="video/episode", image=image)
        event = Event(wall_time=time.time(), step=step, summary=Summary(value=[value]))
        file = self._file or self._begin()
        with writing(self._folder, _KEY):
            file.append(_framed(event))

    def positions(self) -> dict[str, int]:
        """Records in all event files of the folder."""
        return {"tensorboard": self._written}

    def flush(self) -> None:
        """Bring what was written to the disk itself. Raises ResourceError as `write` does."""
        if self._file is not None:
            with writing(self._folder, _KEY):
                self._file.sync()

    def close(self) -> None:
        """Flush and close; closing twice is no error."""
        if self._file is None or self._file.closed:
            return
        with contextlib.closing(self._file):
            self.flush()


def _new_file(folder: Path) -> Path:
    """A name as TensorBoard expects it: the newest file of a folder sorts last, independent of the clock."""
    stamps = [int(path.name.split(".")[3]) for path in event_files(folder)]
    stamp = max(int(time.time()), max(stamps, default=0) + 1)
    return folder / f"events.out.tfevents.{stamp:010d}.{socket.gethostname()}.{os.getpid()}"


def _framed(event: Event) -> bytes:
    """One record of an event file: length and data, each with its checksum."""
    frame = io.BytesIO()
    RecordWriter(frame).write(event.SerializeToString())
    return frame.getvalue()
