"""JSON that is the same bytes for the same data, and holds no number that JSON does not know."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any


def encode(data: Any) -> bytes:
    """Plain data as indented UTF-8 text with sorted keys.

    Raises ValueError for NaN or infinity (see `finite_or_null`), TypeError for what JSON cannot hold.
    """
    text = json.dumps(data, sort_keys=True, indent=2, allow_nan=False, ensure_ascii=False)
    return f"{text}\n".encode()


def decode(text: bytes) -> Any:
    """The inverse of `encode`. Raises ValueError for what is no UTF-8 JSON, and for NaN and infinity."""
    try:
        return json.loads(text.decode("utf-8"), parse_constant=_refuse)
    except RecursionError as e:
        raise ValueError("nested too deeply") from e


def finite_or_null(data: Any) -> Any:
    """A copy of plain data in which every number that is not finite is None. Tuples become lists."""
    if isinstance(data, float):
        return data if math.isfinite(data) else None
    if isinstance(data, Mapping):
        return {key: finite_or_null(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [finite_or_null(value) for value in data]
    return data


def _refuse(name: str) -> Any:
    raise ValueError(f"{name} is not a number")
