"""metrics.jsonl: one JSON object per record, only ever appended to."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import Any

from border_cli.core.errors import ResourceError
from border_cli.core.json_text import finite_or_null
from border_cli.core.record import Record
from border_cli.recorders.appending import AppendedFile

METRICS_FILE = "metrics.jsonl"
_BLOCK = 64 * 1024


class JsonlRecorder:
    """Appends `{"opt_steps", "env_steps", "time", <metric>…}` lines; numbers that are not finite are null.

    A line is in the file when `write` returns. What a crash left of a last line is cut off on opening.
    """

    def __init__(self, path: Path) -> None:
        _cut_torn_tail(path)
        self._file = AppendedFile(path)

    def write(self, record: Record) -> None:
        """Append one line. Raises ResourceError when the disk takes no more; then the file is as it was."""
        head = {"opt_steps": record.opt_steps, "env_steps": record.env_steps, "time": record.time}
        line = json.dumps(finite_or_null(head | record.values), allow_nan=False) + "\n"
        try:
            self._file.append(line.encode("ascii"))
        except OSError as e:
            raise _full(self._file.path, e) from e

    def flush(self) -> None:
        """Bring what was written to the disk itself. Raises ResourceError as `write` does."""
        try:
            self._file.sync()
        except OSError as e:
            raise _full(self._file.path, e) from e

    def close(self) -> None:
        """Flush and close; closing twice is no error."""
        if self._file.closed:
            return
        with contextlib.closing(self._file):
            self.flush()


def read_jsonl(path: Path) -> list[dict[str, Any]]:
    """All records of a file, oldest first. A last line without its end is torn, or being written: left out.

    Raises OSError when there is no such file, ValueError with its number for a line that is no object.
    """
    *lines, _ = path.read_bytes().split(b"\n")
    return [_parse(path, number, line) for number, line in enumerate(lines, 1)]


def _parse(path: Path, number: int, line: bytes) -> dict[str, Any]:
    try:
        data = json.loads(line)
    except ValueError as e:
        raise ValueError(f"{path}, line {number}: no JSON") from e
    if not isinstance(data, dict):
        raise ValueError(f"{path}, line {number}: no JSON object")
    return data


def _cut_torn_tail(path: Path) -> None:
    """Shorten the file to the end of its last whole line, so that what is appended starts a new one."""
    if not path.exists():
        return
    with path.open("r+b") as file:
        end = file.seek(0, os.SEEK_END)
        keep = _after_last_newline(file, end)
        if keep < end:
            file.truncate(keep)


def _after_last_newline(file: Any, end: int) -> int:
    """Offset after the last newline before `end`, 0 without any; reads backwards in blocks."""
    while end > 0:
        start = max(0, end - _BLOCK)
        file.seek(start)
        found = file.read(end - start).rfind(b"\n")
        if found >= 0:
            return int(start + found + 1)
        end = start
    return 0


def _full(path: Path, error: OSError) -> ResourceError:
    reason = error.strerror or type(error).__name__
    return ResourceError(f"{path} cannot be written: {reason}\nrecorder.jsonl=false trains without it")
