"""metrics.jsonl, a JSON object per record; metrics.csv, a line per value."""

from __future__ import annotations

import csv
import io
import itertools
import json
import logging
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

from border_cli.core.errors import UsageError
from border_cli.core.metrics import Record
from border_cli.core.protocols import Recorder
from border_cli.core.state import finite_or_null

METRICS_FILE = "metrics.jsonl"
CSV_FILE = "metrics.csv"
_logger = logging.getLogger(__name__)


class AppendedFile:
    """A file that is appended to. When `append` returns, other processes can read the piece.

    keep: length [bytes] of the part that stays; the first `append` cuts off what follows it · end: where the next piece
    begins [bytes].
    """

    def __init__(self, path: Path, keep: int = 0) -> None:
        self.path = path.absolute()  # an environment may change the current folder
        self.end = keep

    def append(self, piece: bytes) -> None:
        """Append the piece. Raises OSError; then the next call cuts off what was written of it."""
        self.path.parent.mkdir(exist_ok=True)
        with self.path.open("ab") as file:
            start = min(self.end, file.tell())
            file.truncate(start)
            file.write(piece)
        self.end = start + len(piece)


class FileRecorder(Recorder, ABC):
    """Appends records to a file. A record is in the file when `write` returns.

    If the disk is full, training continues without the records that could not be written: `dropped` counts them, and
    one warning names the cause.

    keep: lines of earlier launches that stay; the first `write` cuts off what follows them · option: that turns the
    recorder on, and the name of its position in checkpoints. Raises UsageError if the file cannot be read.
    """

    option: str

    def __init__(self, path: Path, keep: int = 0) -> None:
        self.name = path.name
        self._lines = end = 0
        try:
            if path.exists():
                with path.open("rb") as file:
                    lines = [line for line in itertools.islice(file, keep) if line.endswith(b"\n")]
                self._lines, end = len(lines), sum(map(len, lines))
        except OSError as e:
            raise UsageError(f"{path} cannot be read: {e.strerror}") from e
        self._file = AppendedFile(path, end)

    @abstractmethod
    def _encoded(self, record: Record) -> bytes:
        """What is appended for a record."""

    def write(self, record: Record) -> None:
        """Append a record, or count it as dropped; what was written of it goes with the next record."""
        piece = self._encoded(record)
        try:
            self._file.append(piece)
        except OSError as e:
            if not self.dropped:
                problem = f"{self._file.path} cannot be written: {e.strerror or type(e).__name__}"
                _logger.warning("%s; records may be lost, training continues", problem)
            self.dropped += 1
        else:
            self._lines += piece.count(b"\n")

    def positions(self) -> dict[str, int]:
        """Lines in the file. Their length would depend on the clock."""
        return {self.option: self._lines}

    def close(self) -> None:
        """Say how many records are missing."""
        if self.dropped:
            _logger.warning("%s lacks %d records", self.name, self.dropped)


class JsonlRecorder(FileRecorder):
    """Appends `{"opt_steps", "env_steps", "time", <metric>…}` lines; numbers that are not finite are null."""

    option = "jsonl"

    def _encoded(self, record: Record) -> bytes:
        head = {"opt_steps": record.opt_steps, "env_steps": record.env_steps, "time": record.time}
        line = json.dumps(finite_or_null(head | record.values), allow_nan=False)
        return f"{line}\n".encode("ascii")


class CsvRecorder(FileRecorder):
    """Appends a line `opt_steps,env_steps,time,metric,value` for each value, for spreadsheets and data frames."""

    option = "csv"

    def _encoded(self, record: Record) -> bytes:
        text = io.StringIO()
        rows = csv.writer(text, lineterminator="\n")  # quotes the names of an environment's own metrics
        if self._file.end == 0:
            rows.writerow(("opt_steps", "env_steps", "time", "metric", "value"))
        at = record.opt_steps, record.env_steps, record.time
        rows.writerows((*at, name, float(value)) for name, value in record.values.items())
        return text.getvalue().encode("utf-8")


def read_jsonl(path: Path, most: int | None = None) -> list[dict[str, Any]]:
    """All records of a file, or its first `most`, oldest first. An incomplete last line is left out.

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
