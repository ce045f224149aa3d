"""JSON that is the same bytes for the same data, and holds no number that JSON does not know.

What is read may be of anybody's making: neither its nesting, nor its numbers, nor how much it holds can do harm.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

_MAX_DIGITS = 40
"""Of an integer: a generator's state has 39."""
_MAX_ITEMS = 2**20
"""Of all lists and objects together, by their punctuation: each of them takes many times its text in memory."""


def encode(data: Any) -> bytes:
    """Plain data as indented UTF-8 text with sorted keys.

    Raises ValueError for NaN or infinity (see `finite_or_null`), TypeError for what JSON cannot hold.
    """
    text = json.dumps(data, sort_keys=True, indent=2, allow_nan=False, ensure_ascii=False)
    return f"{text}\n".encode()


def decode(text: bytes) -> Any:
    """The inverse of `encode`. Every number in it is finite, and an integer has 40 digits at most.

    Raises ValueError for what is no UTF-8 JSON, for other numbers, for a key that an object has twice (of which one
    would silently be taken), and for more items than any file of ours has.
    """
    if sum(map(text.count, (b",", b"[", b"{"))) > _MAX_ITEMS:
        raise ValueError("it holds more items than any file of a run")
    try:
        return json.loads(
            text.decode("utf-8"),
            object_pairs_hook=_object,
            parse_constant=_refuse,
            parse_float=_finite,
            parse_int=_integer,
        )
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


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    data = dict(pairs)
    if len(data) < len(pairs):
        raise ValueError("it has a key twice")
    return data


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text[:_MAX_DIGITS]} is too large a number")
    return value


def _integer(text: str) -> int:
    if len(text) > _MAX_DIGITS + 1:
        raise ValueError(f"{text[:_MAX_DIGITS]}… is too large a number")
    return int(text)


def _refuse(name: str) -> Any:
    raise ValueError(f"{name} is not a number")
