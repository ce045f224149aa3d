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


class JsonlRecorder:
    """Appends `{"opt_steps", "env_steps", "time", <metric>…}` lines; numbers that are not finite are null.

    A line is in the file when `write` returns. What a crash left of a last line is cut off on opening.
    keep: lines of an earlier launch that stay, None for all; those after them belong to a past that did not count, and
    go when the first line is written.
    """

    def __init__(self, path: Path, keep: int | None = None) -> None:
        self._written, end = _whole_lines(path, keep)
        if keep is None and path.exists():
            os.truncate(path, end)
        self._file = AppendedFile(path, end)

    def write(self, record: Record) -> None:
        """Append one line. Raises ResourceError when the disk takes no more; then the file is as it was."""
        head = {"opt_steps": record.opt_steps, "env_steps": record.env_steps, "time": record.time}
        line = json.dumps(finite_or_null(head | record.values), allow_nan=False) + "\n"
        try:
            self._file.append(line.encode("ascii"))
        except OSError as e:
            raise _full(self._file.path, e) from e
        self._written += 1

    def positions(self) -> dict[str, int]:
        """Lines in the file."""
        return {"jsonl": self._written}

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


def _whole_lines(path: Path, most: int | None) -> tuple[int, int]:
    """How many whole lines a file begins with, `most` at the most, and where the last of them ends. None is there: 0, 0."""
    lines, end = 0, 0
    if path.exists():
        with path.open("rb") as file:
            for line in file:
                if lines == most or not line.endswith(b"\n"):
                    break
                lines, end = lines + 1, end + len(line)
    return lines, end


def _full(path: Path, error: OSError) -> ResourceError:
    reason = error.strerror or type(error).__name__
    return ResourceError(f"{path} cannot be written: {reason}\nrecorder.jsonl=false trains without it")
