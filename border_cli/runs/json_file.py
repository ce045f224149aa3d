"""The small files of a run directory: replaced in one step, so that a reader never sees half of one."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from border_cli.core import json_text
from border_cli.runtime.files import open_plain, replace_file

MAX_BYTES = 64 * 2**20
"""More than any file of ours has; a larger one is not read."""


def write_json(path: Path, data: Any) -> None:
    """Replace `path` by this data, numbers that are not finite as null.

    Raises OSError; then `path` is as it was.
    """
    replace_file(path, json_text.encode(json_text.finite_or_null(data)))


def read_json(path: Path) -> dict[str, Any]:
    """The object in a file. Raises OSError when it cannot be read, ValueError when it is no JSON object."""
    data = json_text.decode(read_limited(path, MAX_BYTES))
    if not isinstance(data, dict):
        raise ValueError(f"{path} holds no JSON object")
    return data


def read_limited(path: Path, limit: int) -> bytes:
    """A file that may be of anybody's making. Raises OSError, ValueError for what is no plain file, or above `limit`."""
    with open_plain(path) as file:
        if os.fstat(file.fileno()).st_size > limit:
            raise ValueError(f"{path} is larger than {limit} bytes")
        return file.read(limit)
