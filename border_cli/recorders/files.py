"""metrics.jsonl, a JSON object per record, and metrics.csv, a line per value. Both are only appended to."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from border_cli.core.errors import ResourceError
from border_cli.core.json_text import finite_or_null
from border_cli.core.metrics import Record

METRICS_FILE = "metrics.jsonl"
CSV_FILE = "metrics.csv"


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

    Args:
        keep: length [bytes] of the part that stays; the first `append` cuts off what follows it.

    Attributes:
        end: where the next piece begins [bytes].
    """

    def __init__(self, path: Path, keep: int = 0) -> None:
        self._file = path.open("ab", buffering=0)
        self.end = min(keep, self._file.tell())

    def append(self, piece: bytes) -> None:
        """Append the piece. Raises OSError; then the next call cuts off what was written of it, if this one cannot."""
        self._file.truncate(self.end)
        rest = memoryview(piece)
        try:
            while rest:
                rest = rest[self._file.write(rest) :]
        except OSError:
            with contextlib.suppress(OSError):  # the first error is the one to raise
                self._file.truncate(self.end)
            raise
        self.end += len(piece)

    def sync(self) -> None:
        """Write everything to the disk itself. Raises OSError."""
        os.fsync(self._file.fileno())

    @property
    def closed(self) -> bool:
        """Whether it is closed."""
        return self._file.closed

    def close(self) -> None:
        """Release the file; closing twice is no error."""
        self._file.close()


class FileRecorder(ABC):
    """Appends records to a file. A record is in the file when `write` returns.

    All methods raise ResourceError when the disk takes no more.

    Args:
        keep: lines of earlier launches that stay; the first `write` cuts off what follows them.

    Attributes:
        name: of the recorder's option, and of its position in checkpoints.
    """

    name: str

    def __init__(self, path: Path, keep: int = 0) -> None:
        self._path = path
        with self._writing():
            self._lines, end = _whole_lines(path, keep)
            self._file = AppendedFile(path, end)

    @abstractmethod
    def _encoded(self, record: Record) -> bytes:
        """What is appended for a record."""

    def write(self, record: Record) -> None:
        """Append one record; on an error the file is as it was."""
        piece = self._encoded(record)
        with self._writing():
            self._file.append(piece)
        self._lines += piece.count(b"\n")

    def positions(self) -> dict[str, int]:
        """Lines in the file. Their length would depend on the clock."""
        return {self.name: self._lines}

    def flush(self) -> None:
        """Bring what was written to the disk itself."""
        with self._writing():
            self._file.sync()

    def close(self) -> None:
        """Flush and close; closing twice is no error."""
        if not self._file.closed:
            with self._writing(), contextlib.closing(self._file):
                self._file.sync()

    def _writing(self) -> contextlib.AbstractContextManager[None]:
        return writing(self._path, f"recorder.{self.name}")


class JsonlRecorder(FileRecorder):
    """Appends `{"opt_steps", "env_steps", "time", <metric>…}` lines; numbers that are not finite are null."""

    name = "jsonl"

    def _encoded(self, record: Record) -> bytes:
        head = {"opt_steps": record.opt_steps, "env_steps": record.env_steps, "time": record.time}
        line = json.dumps(finite_or_null(head | record.values), allow_nan=False)
        return f"{line}\n".encode("ascii")


class CsvRecorder(FileRecorder):
    """Appends a line `opt_steps,env_steps,time,metric,value` for each value, for spreadsheets and data frames."""

    name = "csv"

    def _encoded(self, record: Record) -> bytes:
        text = io.StringIO()
        rows = csv.writer(text, lineterminator="\n")  # quotes the names of an environment's own metrics
        if self._file.end == 0:
            rows.writerow(("opt_steps", "env_steps", "time", "metric", "value"))
        at = record.opt_steps, record.env_steps, record.time
        rows.writerows((*at, name, float(value)) for name, value in record.values.items())
        return text.getvalue().encode("utf-8")


def _whole_lines(path: Path, most: int) -> tuple[int, int]:
    """The number of whole lines at the start of a file, at most `most`, and where they end [bytes]. No file: (0, 0)."""
    lines, end = 0, 0
    if path.exists():
        with path.open("rb") as file:
            for line in file:
                if lines == most or not line.endswith(b"\n"):
                    break
                lines, end = lines + 1, end + len(line)
    return lines, end


def read_jsonl(path: Path, most: int | None = None) -> list[dict[str, Any]]:
    """All records of a file, or its first `most`, oldest first. A last line without its end is torn: left out.

    Raises OSError, and ValueError for a line that is no object.
    """
    *lines, _ = path.read_bytes().split(b"\n")
    records = []
    for number, line in enumerate(lines[:most], 1):
        try:
            records.append(json.loads(line))
        except ValueError as e:
            raise ValueError(f"{path}, line {number}: no JSON") from e
        if not isinstance(records[-1], dict):
            raise ValueError(f"{path}, line {number}: no JSON object")
    return records
