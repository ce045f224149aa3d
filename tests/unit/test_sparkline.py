"""Curves drawn in one line of text."""

from __future__ import annotations

import math

import pytest

from border_cli.core.format import BLOCKS, sparkline


@pytest.mark.parametrize(
    ("values", "width", "line"),
    [
        ([0, 1, 2, 3, 4, 5, 6, 7], 8, BLOCKS),
        # more values than characters are averaged in groups: of 2, with means 1, 5, 9; then (0, 0) and (0, 3, 6)
        ([0, 2, 4, 6, 8, 10], 3, "▁▅█"),
        ([0, 0, 0, 3, 6], 2, "▁█"),
        # equal values are drawn at half height
        *(([value] * 3, 10, "▅▅▅") for value in (0.0, -3.5, 1e300)),
        # values that are not finite leave a gap
        ([math.nan, 0, math.inf, 1], 4, " ▁ █"),
        ([math.nan] * 4, 2, "  "),
        ([math.nan, 1.0, 2.0, 2.0], 2, "▁█"),
        ([], 10, ""),
        ([1.0], 0, ""),
        ([1.0], -1, ""),
    ],
)
def test_by_hand(values: list[float], width: int, line: str) -> None:
    assert sparkline(values, width) == line
