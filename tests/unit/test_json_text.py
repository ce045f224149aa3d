"""JSON of anybody's making."""

from __future__ import annotations

import pytest

from border_cli.core import json_text


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"NaN", "NaN is not a number"),
        (b"[-Infinity]", "not a number"),
        (b"1e400", "too large a number"),
        (b"-1e400", "too large a number"),
        (b"9" * 42, "too large a number"),
        (b"9" * 5000, "too large a number"),
        (b"[" * 100_000, "nested too deeply"),
        (b"[" + b"[]," * 600_000 + b"[]]", "more items"),
        (b"\xff", "utf-8"),
        (b"[1", "delimiter"),
    ],
    ids=lambda value: value[:10] if isinstance(value, bytes) else "",
)
def test_what_is_refused(text: bytes, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        json_text.decode(text)


@pytest.mark.parametrize("value", [2**128 - 1, -(2**127), 1e308, -0.5, 0, 10**39, None, [1, {"a": "ü"}]])
def test_what_comes_back(value: object) -> None:
    assert json_text.decode(json_text.encode(value)) == value
