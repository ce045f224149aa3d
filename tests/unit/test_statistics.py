"""Figures of an evaluation, by hand and against published quantiles."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest

from border_cli.core.protocols import Evaluation
from border_cli.evaluation.statistics import Statistics, mean_interval, summarise, t975


@pytest.mark.parametrize(
    ("freedom", "quantile"),
    [
        (1, 12.7062), (2, 4.3027), (5, 2.5706), (10, 2.2281), (19, 2.0930), (20, 2.0860), (21, 2.0796), (24, 2.0639),
        (30, 2.0423), (40, 2.0211), (60, 2.0003), (99, 1.9842), (120, 1.9799), (1000, 1.9623), (10**9, 1.9600),
    ],
)  # fmt: skip
def test_quantiles_of_students_t(freedom: int, quantile: float) -> None:
    assert t975(freedom) == pytest.approx(quantile, abs=6e-5)


def test_quantiles_fall_without_a_step_where_the_table_ends() -> None:
    quantiles = [t975(n) for n in range(1, 60)]
    assert quantiles == sorted(quantiles, reverse=True)
    steps = [a - b for a, b in pairwise(quantiles[14:])]
    assert all(earlier > 0.5 * later for earlier, later in pairwise(steps))


def test_the_interval_by_hand() -> None:
    # mean 3, sample variance (4 + 1 + 0 + 1 + 4) / 4 = 2.5, half = 2.7764 · sqrt(2.5 / 5)
    low, high = mean_interval((1.0, 2.0, 3.0, 4.0, 5.0)) or (math.nan, math.nan)
    assert low == pytest.approx(3 - 2.7764 * math.sqrt(0.5))
    assert high == pytest.approx(3 + 2.7764 * math.sqrt(0.5))


def test_equal_returns_have_an_interval_without_width() -> None:
    assert mean_interval((500.0,) * 100) == (500.0, 500.0)


def test_a_single_episode_has_no_interval() -> None:
    assert mean_interval((500.0,)) is None


def test_all_figures_by_hand() -> None:
    statistics = summarise(Evaluation(3, (1.0, 5.0, 3.0, 3.0), (10, 20, 30, 40)))
    interval = 3 - 3.1824 * math.sqrt(8 / 3 / 4), 3 + 3.1824 * math.sqrt(8 / 3 / 4)
    assert statistics.interval == pytest.approx(interval)
    assert statistics == Statistics(4, 3.0, math.sqrt(2), statistics.interval, 1.0, 5.0, 25.0, 10, 40)
