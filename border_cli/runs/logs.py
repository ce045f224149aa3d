"""Where log records of a run go: everything to train.log, warnings also to the person watching.

What ended the run is told on stderr at its end; its record carries TOLD, so that it is not shown a second time here.
"""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

TOLD: dict[str, object] = {"told": True}
"""`extra` of a record that a person is told in another way."""


class _NoteHandler(logging.Handler):
    """Gives the text of a record to a view."""

    def __init__(self, note: Callable[[str], None]) -> None:
        super().__init__(logging.WARNING)
        self._note = note

    def emit(self, record: logging.LogRecord) -> None:
        """One record."""
        if not getattr(record, "told", False):
            self._note(f"{record.levelname.lower()}: {record.getMessage()}")


class _FileHandler(logging.FileHandler):
    """train.log. A line that a full disk does not take is left out: it must not end the run, nor fill stderr."""

    def handleError(self, record: logging.LogRecord) -> None:
        """Called while the error of one record is handled."""
        if isinstance(sys.exc_info()[1], OSError):
            self._forget()
        else:
            super().handleError(record)

    def close(self) -> None:
        """Close, whatever the disk says."""
        try:
            super().close()
        except OSError:
            self._forget()

    def _forget(self) -> None:
        """Go on in a new stream: the old one would try to write the same bytes again before any others."""
        stream, self.stream = self.stream, None  # the next record opens it again
        if stream is not None:
            with contextlib.suppress(OSError):
                stream.close()


@contextmanager
def log_to(path: Path, note: Callable[[str], None]) -> Iterator[None]:
    """For as long as this lasts, log to this file, and warnings to `note`; then the root logger is as it was."""
    file = _FileHandler(path, encoding="utf-8")
    file.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(processName)s %(name)s: %(message)s"))
    notes = _NoteHandler(note)
    root, package = logging.getLogger(), logging.getLogger("border_cli")
    level = package.level
    package.setLevel(logging.INFO)
    for handler in (file, notes):
        root.addHandler(handler)
    try:
        yield
    finally:
        package.setLevel(level)
        for handler in (file, notes):
            root.removeHandler(handler)
            handler.close()
