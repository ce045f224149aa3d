"""metrics.jsonl: one JSON object per record, only ever appended to."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from border_cli.core.errors import ResourceError
from border_cli.core.json_text import finite_or_null
from border_cli.core.metrics import Record


@contextlib.contextmanager
def writing(path: Path, key: str) -> Iterator[None]:
    """Raise ResourceError for an OSError inside. key: of the configuration, which turns this recorder off."""
    try:
        yield
    except OSError as e:
        reason = e.strerror or type(e).__name__
        raise ResourceError(f"{path} cannot be written: {reason}\n{key}=false trains without it") from e


class AppendedFile:
    """A file that is appended to. When `append` returns, other processes can read the piece.

    keep: length [bytes] of the part that stays; the first `append` cuts off what follows it.
    """

    def __init__(self, path: Path, keep: int) -> None:
        self.path = path
        self._file = path.open("ab", buffering=0)
        self._end = keep
        self._torn = False
        self._behind = self._file.tell() > keep

    @property
    def closed(self) -> bool:
        """Whether it is closed."""
        return self._file.closed

    def append(self, piece: bytes) -> None:
        """Append the piece or raise OSError; a partly written piece is cut off before the next write."""
        self._torn = self._torn or self._behind
        self._cut()
        self._torn, self._behind = True, False
        try:
            rest = memoryview(piece)
            while rest:
                rest = rest[self._file.write(rest) :]
        except OSError:
            self._cut_if_possible()
            raise
        self._end += len(piece)
        self._torn = False

    def sync(self) -> None:
        """Write everything to the disk itself. Raises OSError."""
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Release the file; closing twice is no error. Raises OSError."""
        if not self._file.closed:
            self._cut_if_possible()
            self._file.close()

    def _cut(self) -> None:
        if self._torn:
            self._file.truncate(self._end)
            self._torn = False

    def _cut_if_possible(self) -> None:
        try:
            self._cut()
        except OSError:
            self._torn = True  # the next piece tries again


METRICS_FILE = "metrics.jsonl"
_KEY = "recorder.jsonl"


class JsonlRecorder:
    """Appends `{"opt_steps", "env_steps", "time", <metric>…}` lines; numbers that are not finite are null.

    A line is in the file when `write` returns.
    keep: lines of earlier launches that stay; the first `write` cuts off what follows them.
    """

    def __init__(self, path: Path, keep: int = 0) -> None:
        self._written, end = whole_lines(path, keep)
        self._file = AppendedFile(path, end)

    def write(self, record: Record) -> None:
        """Append one line. Raises ResourceError when the disk takes no more; then the file is as it was."""
        head = {"opt_steps": record.opt_steps, "env_steps": record.env_steps, "time": record.time}
        line = json.dumps(finite_or_null(head | record.values), allow_nan=False) + "\n"
        with writing(self._file.path, _KEY):
            self._file.append(line.encode("ascii"))
        self._written += 1

    def positions(self) -> dict[str, int]:
        """Lines in the file."""
        return {"jsonl": self._written}

    def flush(self) -> None:
        """Bring what was written to the disk itself. Raises ResourceError as `write` does."""
        with writing(self._file.path, _KEY):
            self._file.sync()

    def close(self) -> None:
        """Flush and close; closing twice is no error."""
        if self._file.closed:
            return
        with contextlib.closing(self._file):
            self.flush()


def read_jsonl(path: Path) -> list[dict[str, Any]]:
    """All records of a file, oldest first. A last line without its end is torn, or being written: left out.

    Raises OSError, and ValueError for a line that is no object.
    """
    *lines, _ = path.read_bytes().split(b"\n")
    records = []
    for number, line in enumerate(lines, 1):
        try:
            records.append(json.loads(line))
        except ValueError as e:
            raise ValueError(f"{path}, line {number}: no JSON") from e
        if not isinstance(records[-1], dict):
            raise ValueError(f"{path}, line {number}: no JSON object")
    return records


def whole_lines(path: Path, most: int) -> tuple[int, int]:
    """The number of whole lines at the start of a file, at most `most`, and where the last one ends. No file: (0, 0)."""
    lines, end = 0, 0
    if path.exists():
        with path.open("rb") as file:
            for line in file:
                if lines == most or not line.endswith(b"\n"):
                    break
                lines, end = lines + 1, end + len(line)
    return lines, end
