"""TensorBoard's event files of earlier launches: cut to what counts, so that each step of a curve is there once.

An event file is a row of frames: length (8 bytes, little-endian), a checksum of that (4), an encoded event, a checksum of
that (4). A launch writes a file of its own, whose name begins with the time; the first event only says what the file is.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from google.protobuf.message import DecodeError
from tensorboard.compat.proto.event_pb2 import Event

_PATTERN = "events.out.tfevents.[0-9]*.*"
_LENGTH = struct.Struct("<Q")
_CHECKSUM_BYTES = 4
_MAX_EVENT_BYTES = 2**24
"""More than any record has: what claims more is torn."""


def event_files(folder: Path) -> list[Path]:
    """Those of a folder, oldest first."""
    return sorted(path for path in folder.glob(_PATTERN) if path.name.split(".")[3].isdigit())


def keep_records(folder: Path, keep: int | None) -> int:
    """Keep the first `keep` records of all files together, or all; cut what is torn. How many there are then."""
    kept = 0
    for path in event_files(folder):
        if kept == keep:
            path.unlink()
            continue
        kept += _cut(path, None if keep is None else keep - kept)
    return kept


def _cut(path: Path, keep: int | None) -> int:
    """Shorten one file to its first `keep` records, or to its last whole frame; its number of records."""
    records, end = 0, 0
    with path.open("r+b") as file:
        for frame_end, is_record in _frames(file):
            if is_record and records == keep:
                break
            records, end = records + is_record, frame_end
        file.truncate(end)
    return records


def _frames(file: BinaryIO) -> Iterator[tuple[int, bool]]:
    """Where each whole frame ends, and whether it holds a record."""
    end, size = 0, os.fstat(file.fileno()).st_size
    while head := file.read(_LENGTH.size + _CHECKSUM_BYTES):
        length = (
            _LENGTH.unpack(head[: _LENGTH.size])[0] if len(head) == _LENGTH.size + _CHECKSUM_BYTES else size
        )
        end += len(head) + length + _CHECKSUM_BYTES
        if length > _MAX_EVENT_BYTES or end > size:
            return
        try:
            event = Event.FromString(file.read(length))
        except DecodeError:
            return
        file.read(_CHECKSUM_BYTES)
        yield end, bool(event.summary.value)
