"""One recorder in front of many: the place where every record is checked before any sink sees it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from border_cli.core.metrics import METRICS
from border_cli.core.protocols import Recorder
from border_cli.core.record import Record
from border_cli.core.stages import run_all


class FanOut:
    """Passes each record to all recorders, once it is known to hold declared metrics that go forward.

    An error of one recorder is raised after all the others had their turn.
    """

    def __init__(self, recorders: Sequence[Recorder]) -> None:
        self._recorders = tuple(recorders)
        self._newest: dict[str, int] = {}

    def write(self, record: Record) -> None:
        """Pass a record on; an empty one is nobody's.

        Raises ValueError, before any recorder sees it, for a metric that nobody declared in
        `core.metrics`, and for one whose opt_steps go back.
        """
        if not record:
            return
        self._check(record)
        self._newest.update(dict.fromkeys(record.values, record.opt_steps))
        run_all([partial(recorder.write, record) for recorder in self._recorders])

    def positions(self) -> dict[str, int]:
        """Those of all."""
        return {name: n for recorder in self._recorders for name, n in recorder.positions().items()}

    def flush(self) -> None:
        """Flush all."""
        run_all([recorder.flush for recorder in self._recorders])

    def close(self) -> None:
        """Close all."""
        run_all([recorder.close for recorder in self._recorders])

    def _check(self, record: Record) -> None:
        undeclared = sorted(record.values.keys() - METRICS.keys())
        if undeclared:
            raise ValueError(
                f"metrics that nobody declared: {', '.join(undeclared)} (see border_cli.core.metrics)"
            )
        for name in record.values:
            newest = self._newest.get(name, 0)
            if record.opt_steps < newest:
                raise ValueError(f"{name}: opt_steps went back from {newest} to {record.opt_steps}")
