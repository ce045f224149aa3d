"""Small files that are replaced in one step, so that a reader never sees half of one."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


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
