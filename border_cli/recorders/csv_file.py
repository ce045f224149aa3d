"""metrics.csv: one line per value, `opt_steps,env_steps,time,metric,value`, for spreadsheets and data frames."""

from __future__ import annotations

import contextlib
import csv
import io
from pathlib import Path

from border_cli.core.metrics import Record
from border_cli.recorders.jsonl import AppendedFile, whole_lines, writing

CSV_FILE = "metrics.csv"
_HEAD = ("opt_steps", "env_steps", "time", "metric", "value")
_KEY = "recorder.csv"


class CsvRecorder:
    """Appends the lines of a record at once. keep: lines of earlier launches that stay, the head included."""

    def __init__(self, path: Path, keep: int = 0) -> None:
        self._lines, end = whole_lines(path, keep)
        self._file = AppendedFile(path, end)

    def write(self, record: Record) -> None:
        """Append a line for each value. Raises ResourceError when the disk takes no more; then the file is as it was."""
        text = io.StringIO()
        rows = csv.writer(text, lineterminator="\n")  # quotes the names of an environment's own metrics
        if not self._lines:
            rows.writerow(_HEAD)
        at = record.opt_steps, record.env_steps, record.time
        rows.writerows((*at, name, float(value)) for name, value in record.values.items())
        data = text.getvalue().encode("utf-8")
        with writing(self._file.path, _KEY):
            self._file.append(data)
        self._lines += data.count(b"\n")

    def positions(self) -> dict[str, int]:
        """Lines in the file."""
        return {"csv": self._lines}

    def flush(self) -> None:
        """Bring what was written to the disk itself. Raises ResourceError as `write` does."""
        with writing(self._file.path, _KEY):
            self._file.sync()

    def close(self) -> None:
        """Flush and close; closing twice is no error."""
        if not self._file.closed:
            with contextlib.closing(self._file):
                self.flush()
