"""Generated tables of the documentation are up to date, and the parts of the results table."""

from __future__ import annotations

import pytest

from bench.readme_table import METRICS_PAGE, README, metrics_table, table
from bench.results import Cell, _mean_of_first, config_hash
from bench.results_page import second_half
from bench.table_of_runs import ROWS, Bar
from border_cli.config.presets import shipped


def test_bars_by_hand() -> None:
    assert Bar("", mean=2.0).holds([1.0, 3.0], [0.0, 0.0])
    assert not Bar("", mean=2.1).holds([1.0, 3.0], [0.0, 0.0])
    assert Bar("", median=-110, least=-140).holds([-139.0, -105.0, -100.0], [0.0] * 3)
    assert not Bar("", median=-110, least=-140).holds([-141.0, -105.0, -100.0], [0.0] * 3)
    assert not Bar("", median=2.5).holds([1.0, 2.0, 2.0, 9.0], [0.0] * 4)
    assert Bar("", rise=1.0).holds([-20.0], [1.0])
    assert not Bar("", rise=1.0).holds([20.0], [0.9])
    assert str(Bar("", median=-110, least=-140)) == "median -110, none below -140"


def test_the_mean_of_the_first_thirty_episodes() -> None:
    assert _mean_of_first([(20, 1.0), (20, 4.0), (9, 100.0)]) == pytest.approx((20 + 10 * 4) / 30)
    assert _mean_of_first([(2, 3.0)]) == 3.0
    assert _mean_of_first([]) == 0.0


def test_the_second_half_of_a_curve_has_the_middle_of_an_odd_number() -> None:
    assert second_half([(1, 0.1, 100.0), (2, 0.2, 3.0), (3, 0.3, 5.0)]) == 4.0
    assert second_half([(1, 0.1, 100.0), (2, 0.2, 3.0)]) == 3.0


def test_every_row_has_a_unique_name_and_a_preset_unless_it_measures_defaults() -> None:
    assert len({row.name for row in ROWS}) == len(ROWS)
    for row in ROWS:
        assert (f"{row.agent}_{row.env}" in shipped()) == (row.table != "defaults"), row.name


def test_keys_that_do_not_affect_learning_are_not_in_the_hash() -> None:
    args = Cell(ROWS[0], 1).args
    same = config_hash(args)
    assert config_hash([*Cell(ROWS[0], 2).args, "recorder.console=none"]) == same
    assert config_hash([*args, "agent.lr=0.5"]) != same


def test_tables_of_the_pages_are_up_to_date() -> None:
    """`make readme` writes them."""
    assert table() in README.read_text(encoding="utf-8")
    assert metrics_table() in METRICS_PAGE.read_text(encoding="utf-8")
