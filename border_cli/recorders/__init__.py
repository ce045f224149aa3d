"""A recorder in memory, and a group of recorders."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from border_cli.core.metrics import Record
from border_cli.core.protocols import Recorder
from border_cli.runtime.stopping import run_all


class BufferedRecorder(Recorder):
    """Keeps a copy of every record in memory, oldest first."""

    def __init__(self) -> None:
        self.records: list[Record] = []

    def write(self, record: Record) -> None:
        self.records.append(replace(record, values=dict(record.values)))

    def series(self, name: str) -> list[tuple[int, float]]:
        """(opt steps, value) of one metric, oldest first; empty when it was never recorded."""
        return [(record.opt_steps, record.values[name]) for record in self.records if name in record.values]


class RecorderGroup(Recorder):
    """Passes each record to all recorders; an error of one of them is raised after all others were called."""

    def __init__(self, recorders: Sequence[Recorder]) -> None:
        self._recorders = tuple(recorders)

    def write(self, record: Record) -> None:
        """Pass a record on, unless it is empty."""
        if record:
            run_all([partial(recorder.write, record) for recorder in self._recorders])

    def positions(self) -> dict[str, int]:
        return {name: n for recorder in self._recorders for name, n in recorder.positions().items()}

    def close(self) -> None:
        run_all([recorder.close for recorder in self._recorders])
