"""Replace a small file atomically, and open a file that another user may have made."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO


def replace_file(path: Path, content: bytes) -> None:
    """Replace the content of `path` atomically. Raises OSError, which leaves `path` unchanged."""
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        temporary.unlink(missing_ok=True)
        with temporary.open("xb") as file:  # "x": an existing file could be a link to anywhere
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        with contextlib.suppress(OSError):  # the first error is the one to raise
            temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def open_plain(path: Path, links: bool = True) -> Iterator[BinaryIO]:
    """Open a file that another user may have made, or a link if that is allowed.

    Raises OSError, or ValueError if it is no plain file.
    """
    # O_NONBLOCK: opening a pipe without a writer would block for ever.
    flags = os.O_RDONLY | os.O_NONBLOCK | (0 if links else os.O_NOFOLLOW)
    with open(path, "rb", opener=lambda name, _: os.open(name, flags)) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise ValueError(f"{path} is no plain file")
        yield file
