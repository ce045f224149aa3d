"""JSON that is the same bytes for the same data, holds only finite numbers, and is limited in size when it is read."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from typing import Any, BinaryIO

MAX_BYTES = 8 * 2**20
"""A larger file is not read. No JSON file of a run reaches this size."""


def encode(data: Any) -> bytes:
    """Plain data as indented UTF-8 text with sorted keys.

    Raises ValueError for NaN or infinity (see `finite_or_null`), TypeError for what JSON cannot hold.
    """
    text = json.dumps(data, sort_keys=True, indent=2, allow_nan=False, ensure_ascii=False)
    return f"{text}\n".encode(
        "utf-8", "backslashreplace"
    )  # JSON's escapes for bytes of a path that are not UTF-8


def decode(text: bytes) -> Any:
    """The inverse of `encode`. Raises ValueError for anything else, such as NaN or an object that has a key twice."""
    try:
        return json.loads(text.decode("utf-8"), object_pairs_hook=_object, parse_constant=_refuse)
    except RecursionError as e:
        raise ValueError("nested too deeply") from e


def read(file: BinaryIO) -> bytes:
    """The content of an open JSON file. Raises ValueError for one that is larger than MAX_BYTES."""
    if os.fstat(file.fileno()).st_size > MAX_BYTES:
        raise ValueError(f"it is larger than {MAX_BYTES} bytes")
    return file.read(MAX_BYTES)


def finite_or_null(data: Any) -> Any:
    """A copy of plain data in which every number that is not finite is None. Tuples become lists."""
    if isinstance(data, float):
        return data if math.isfinite(data) else None
    if isinstance(data, Mapping):
        return {key: finite_or_null(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [finite_or_null(value) for value in data]
    return data


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    data = dict(pairs)
    if len(data) < len(pairs):
        raise ValueError("it has a key twice")
    return data


def _refuse(name: str) -> Any:
    raise ValueError(f"{name} is not a number")
