"""Replacing a small file in one step, and opening one that anybody may have put there."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO


def replace_file(path: Path, content: bytes) -> None:
    """Replace `path` by this content. Raises OSError; then `path` is as it was."""
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        temporary.unlink(missing_ok=True)
        with temporary.open("xb") as file:  # a new one: what another put there may be a link to anywhere
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError:
        with contextlib.suppress(OSError):  # the first error is the one worth telling
            temporary.unlink(missing_ok=True)
        raise


@contextlib.contextmanager
def open_plain(path: Path | str, folder: int | None = None) -> Iterator[BinaryIO]:
    """A file that may be of anybody's making, to be read. Raises OSError, ValueError for what is no plain file.

    folder: descriptor of the one that it has to be in, itself and not as a link.
    """
    # O_NONBLOCK: opening a pipe that nobody writes to would wait for ever.
    flags = os.O_RDONLY | os.O_NONBLOCK | (0 if folder is None else os.O_NOFOLLOW)
    with open(path, "rb", opener=lambda name, _: os.open(name, flags, dir_fd=folder)) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise ValueError(f"{path} is no plain file")
        yield file
