"""Numbers as short text."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import pytest

from border_cli.core import format

NAN, INF = math.nan, math.inf


@pytest.mark.parametrize(
    ("shown", "texts"),
    [
        (
            format.count,
            {None: "-", NAN: "-", INF: "-", 0: "0", 31_000: "31,000", 12_345_678.0: "12,345,678"},
        ),
        (
            format.number,
            {
                **{None: "-", NAN: "nan", -INF: "-inf", 0: "0.00", 0.00123: "0.0012", -0.5: "-0.50"},
                **{2.003: "2.00", 487.25: "487.2", -1234.5: "-1,234", 1e300: "1e+300"},
            },
        ),
        (format.share, {None: "-", NAN: "-", 0.0: "0%", 0.634: "63%", 1.0: "100%"}),
        (
            format.duration,
            {None: "-", INF: "-", -1.0: "-", 0.9: "0:00:00", 3_723.0: "1:02:03", 183_845.0: "2d 03:04:05"},
        ),
        (
            format.size,
            {0: "0 B", 1023: "1023 B", 1536: "1.5 KiB", 4_000_000: "3.8 MiB", 2**80: "1073741824.0 PiB"},
        ),
        (lambda n: format.counted(n, "actor"), {0: "0 actors", 1: "1 actor", 8: "8 actors"}),
    ],
    ids=["count", "number", "share", "duration", "size", "counted"],
)
def test_a_number_as_text(shown: Callable[[object], str], texts: Mapping[object, str]) -> None:
    assert {value: shown(value) for value in texts} == texts
