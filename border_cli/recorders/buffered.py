"""Records in memory, for people who train from Python and for tests; and the recorder that keeps nothing."""

from __future__ import annotations

from dataclasses import replace

from border_cli.core.record import Record


class BufferedRecorder:
    """Keeps every record, oldest first, as copies that later changes of a record do not reach."""

    def __init__(self) -> None:
        self.records: list[Record] = []

    def write(self, record: Record) -> None:
        """Keep a copy."""
        self.records.append(replace(record, values=dict(record.values)))

    def series(self, name: str) -> list[tuple[int, float]]:
        """(opt steps, value) of one metric, oldest first; empty when it was never recorded."""
        return [(record.opt_steps, record.values[name]) for record in self.records if name in record.values]

    def positions(self) -> dict[str, int]:
        """None of it lasts."""
        return {}

    def flush(self) -> None:
        """Nothing is held back."""

    def close(self) -> None:
        """The records stay readable."""


class NullRecorder:
    """Keeps nothing."""

    def write(self, record: Record) -> None:
        """Forget it."""

    def positions(self) -> dict[str, int]:
        """None of it lasts."""
        return {}

    def flush(self) -> None:
        """Nothing is held back."""

    def close(self) -> None:
        """Nothing to release."""
