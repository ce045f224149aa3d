"""A file that only grows, by whole pieces: one that the disk does not take leaves nothing behind."""

from __future__ import annotations

import os
from pathlib import Path


class AppendedFile:
    """Opened or made at `path`. A piece is with the system, and readable by others, when `append` returns.

    keep: bytes that stay; what is behind them is cut off by the first piece, and not before there is one.
    """

    def __init__(self, path: Path, keep: int | None = None) -> None:
        self.path = path
        self._file = path.open("ab", buffering=0)
        end = self._file.tell()
        self._end = end if keep is None else keep
        self._torn = False
        self._behind = end > self._end

    @property
    def closed(self) -> bool:
        """Whether it is closed."""
        return self._file.closed

    def append(self, piece: bytes) -> None:
        """Append all of it, or raise OSError; what came in of it then is cut off again, at the latest by the next."""
        self._torn = self._torn or self._behind
        self._cut()
        self._torn, self._behind = True, False
        try:
            rest = memoryview(piece)
            while rest:
                rest = rest[self._file.write(rest) :]
        except OSError as e:
            self._cut_if_possible()
            raise _named(e, self.path) from e
        self._end += len(piece)
        self._torn = False

    def sync(self) -> None:
        """Bring it to the disk itself. Raises OSError."""
        try:
            os.fsync(self._file.fileno())
        except OSError as e:
            raise _named(e, self.path) from e

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


def _named(error: OSError, path: Path) -> OSError:
    """The same error with the file it is about, which a call on a descriptor does not know."""
    return OSError(error.errno, error.strerror, str(path))
