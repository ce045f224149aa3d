"""Recorders in memory, groups of recorders, and one that may fail for a while without ending the run."""

from __future__ import annotations

import logging
import time
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


FIRST_RETRY_S, LAST_RETRY_S = 1.0, 30.0
WARN_S = 60.0
_LACKS = (OSError, ResourceError)
"""Errors of a disk or a system that cannot take more data. Anything else is a defect, and is raised."""
_logger = logging.getLogger(__name__)


class TolerantRecorder:
    """Passes records on to `recorder`. Those that it could not write are counted in `dropped`.

    After a failure it is not called for FIRST_RETRY_S, then twice as long each time, up to LAST_RETRY_S. A warning with its
    name is given at most once in WARN_S. now: a monotonic clock in seconds.
    """

    def __init__(self, recorder: Recorder, name: str, now: Callable[[], float] = time.monotonic) -> None:
        self.name = name
        self.dropped = 0
        self._recorder = recorder
        self._now = now
        self._retry_s = 0.0  # 0 while all is well
        self._retry_at = 0.0
        self._warn_at = 0.0

    def write(self, record: Record) -> None:
        """Pass it on, or count it as dropped."""
        if self._retry_s and self._now() < self._retry_at:
            self.dropped += 1
            return
        try:
            self._recorder.write(record)
        except _LACKS as e:
            self.dropped += 1
            self._failed(e)
        else:
            if self._retry_s:
                self._retry_s = 0.0
                _logger.info("%s is written again; it lacks %d records", self.name, self.dropped)

    def video(self, path: Path, gif: bytes, size: tuple[int, int], opt_steps: int, env_steps: int) -> None:
        """Pass a film on to a recorder that takes films."""
        if (take := getattr(self._recorder, "video", None)) is not None and not self._retry_s:
            try:
                take(path, gif, size, opt_steps, env_steps)
            except _LACKS as e:
                self._failed(e)

    def positions(self) -> dict[str, int]:
        """Positions after the records that were written."""
        return self._recorder.positions()

    def flush(self) -> None:
        """Flush, unless it fails at present."""
        if self._retry_s:
            return
        try:
            self._recorder.flush()
        except _LACKS as e:
            self._failed(e)

    def close(self) -> None:
        """Close. What cannot be written then is a warning, not an error."""
        try:
            self._recorder.close()
        except _LACKS as e:
            self._failed(e)
        if self.dropped:
            _logger.warning("%s lacks %d records", self.name, self.dropped)

    def _failed(self, error: Exception) -> None:
        self._retry_s = min(2 * self._retry_s, LAST_RETRY_S) or FIRST_RETRY_S
        self._retry_at = self._now() + self._retry_s
        if self._now() >= self._warn_at:
            self._warn_at = self._now() + WARN_S
            _logger.warning(
                "%s; %d records dropped so far, training continues", first_line(error), self.dropped
            )
