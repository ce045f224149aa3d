"""Recorders in memory, groups of recorders, and one that may fail for a while without ending the run."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from border_cli.core.errors import ResourceError, first_line
from border_cli.core.metrics import METRICS, Record
from border_cli.core.protocols import Recorder
from border_cli.runtime.files import run_all


class NullRecorder:
    """Keeps nothing."""

    def write(self, record: Record) -> None:
        """Drop the record."""

    def positions(self) -> dict[str, int]:
        """No record is kept."""
        return {}

    def flush(self) -> None:
        """Nothing is held back."""

    def close(self) -> None:
        """Nothing to release."""


class BufferedRecorder(NullRecorder):
    """Keeps every record in memory, oldest first, as copies that later changes of a record do not reach."""

    def __init__(self) -> None:
        self.records: list[Record] = []

    def write(self, record: Record) -> None:
        """Keep a copy."""
        self.records.append(replace(record, values=dict(record.values)))

    def series(self, name: str) -> list[tuple[int, float]]:
        """(opt steps, value) of one metric, oldest first; empty when it was never recorded."""
        return [(record.opt_steps, record.values[name]) for record in self.records if name in record.values]


class RecorderGroup:
    """Passes each record to all recorders; an error of one of them is raised after all the others had their turn."""

    def __init__(self, recorders: Sequence[Recorder]) -> None:
        self._recorders = tuple(recorders)
        self._newest: dict[str, int] = {}

    def write(self, record: Record) -> None:
        """Pass a record on, unless it is empty.

        Raises ValueError, before any recorder sees it, for a metric that is not declared in `core.metrics`, and for one
        whose opt_steps go back.
        """
        undeclared = sorted(record.values.keys() - METRICS.keys())
        if undeclared:
            raise ValueError(
                f"metrics that are not declared: {', '.join(undeclared)} (see border_cli.core.metrics)"
            )
        for name in record.values:
            newest = self._newest.get(name, 0)
            if record.opt_steps < newest:
                raise ValueError(f"{name}: opt_steps went back from {newest} to {record.opt_steps}")
        if not record:
            return
        self._newest.update(dict.fromkeys(record.values, record.opt_steps))
        run_all([partial(recorder.write, record) for recorder in self._recorders])

    def positions(self) -> dict[str, int]:
        """The positions of all recorders."""
        return {name: n for recorder in self._recorders for name, n in recorder.positions().items()}

    def flush(self) -> None:
        """Flush all."""
        run_all([recorder.flush for recorder in self._recorders])

    def close(self) -> None:
        """Close all."""
        run_all([recorder.close for recorder in self._recorders])


_logger = logging.getLogger(__name__)


class TolerantRecorder:
    """Passes records on to `recorder`, which may fail for lack of disk or memory (ResourceError).

    Training continues without the records that could not be written: `dropped` counts them, and a single warning names the
    cause. Any other error is a defect, and is raised.
    """

    def __init__(self, recorder: Recorder, name: str) -> None:
        self.name = name
        self.dropped = 0
        self._recorder = recorder
        self._has_warned = False

    def write(self, record: Record) -> None:
        """Pass it on, or count it as dropped."""
        self.dropped += not self._tried(lambda: self._recorder.write(record))

    def video(self, path: Path, gif: bytes, size: tuple[int, int], opt_steps: int, env_steps: int) -> None:
        """Pass a film on to a recorder that takes films."""
        if (take := getattr(self._recorder, "video", None)) is not None:
            self._tried(lambda: take(path, gif, size, opt_steps, env_steps))

    def positions(self) -> dict[str, int]:
        """Positions after the records that were written."""
        return self._recorder.positions()

    def flush(self) -> None:
        """Flush."""
        self._tried(self._recorder.flush)

    def close(self) -> None:
        """Close, and say how many records are missing."""
        self._tried(self._recorder.close)
        if self.dropped:
            _logger.warning("%s lacks %d records", self.name, self.dropped)

    def _tried(self, call: Callable[[], object]) -> bool:
        try:
            call()
        except ResourceError as e:
            if not self._has_warned:
                _logger.warning("%s; records may be lost, training continues", first_line(e))
            self._has_warned = True
            return False
        return True
