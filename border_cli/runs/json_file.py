"""The JSON files of a run directory: replaced in one step, so that a reader never sees half of one."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any

from border_cli.core import json_text

MAX_BYTES = 64 * 2**20
"""More than any file of ours has; a larger one is not read."""


def write_json(path: Path, data: Any) -> None:
    """Replace `path` by this data, numbers that are not finite as null.

    Raises OSError; then `path` is as it was.
    """
    content = json_text.encode(json_text.finite_or_null(data))
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError:
        with contextlib.suppress(OSError):  # the first error is the one worth telling
            temporary.unlink(missing_ok=True)
        raise


def read_json(path: Path) -> dict[str, Any]:
    """The object in a file. Raises OSError when it cannot be read, ValueError when it is no JSON object."""
    if path.stat().st_size > MAX_BYTES:
        raise ValueError(f"{path} is larger than {MAX_BYTES} bytes")
    data = json_text.decode(path.read_bytes())
    if not isinstance(data, dict):
        raise ValueError(f"{path} holds no JSON object")
    return data
