"""Curves of one line."""

from __future__ import annotations

import math
import sys

import pytest

from border_cli.recorders.sparkline import ASCII, BLOCKS, encodes_blocks, sparkline

BIG = sys.float_info.max


def test_one_character_per_value_from_lowest_to_highest() -> None:
    assert sparkline([0, 1, 2, 3, 4, 5, 6, 7], 8) == BLOCKS
    assert sparkline([5, 4, 3, 2, 1, 0], 20, ascii_only=True) == ASCII[::-1]


def test_more_values_than_characters_are_averaged_in_groups() -> None:
    # groups of 2: means 1, 5, 9
    assert sparkline([0, 2, 4, 6, 8, 10], 3) == "▁▅█"
    # 5 values in 2 groups: (0, 0) and (0, 3, 6)
    assert sparkline([0, 0, 0, 3, 6], 2) == "▁█"


@pytest.mark.parametrize("value", [0.0, -3.5, 1e300])
def test_equal_values_run_at_half_height(value: float) -> None:
    assert sparkline([value] * 3, 10) == "▅▅▅"


def test_what_is_not_finite_leaves_a_gap() -> None:
    assert sparkline([math.nan, 0, math.inf, 1], 4) == " ▁ █"
    assert sparkline([math.nan] * 4, 2) == "  "
    assert sparkline([math.nan, 1.0, 2.0, 2.0], 2) == "▁█"


@pytest.mark.parametrize(("values", "width"), [([], 10), ([1.0], 0), ([1.0], -1)])
def test_nothing_to_draw(values: list[float], width: int) -> None:
    assert sparkline(values, width) == ""


def test_the_largest_floats_do_not_overflow() -> None:
    assert sparkline([-BIG, 0, BIG], 3) == "▁▅█"
    assert sparkline([BIG, BIG, -BIG, -BIG], 2) == "█▁"


@pytest.mark.parametrize(
    ("encoding", "holds"), [("utf-8", True), ("ascii", False), ("latin-1", False), ("no-such", False)]
)
def test_which_encodings_hold_blocks(encoding: str, holds: bool) -> None:
    assert encodes_blocks(encoding) is holds
