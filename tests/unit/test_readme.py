"""Tables of the documentation are what the program is today. `make readme` writes them."""

from __future__ import annotations

from bench.metrics_table import METRICS_PAGE, metrics_table
from bench.readme_table import README, table


def test_agents_and_environments_are_what_the_command_offers() -> None:
    assert table() in README.read_text(encoding="utf-8")


def test_metrics_are_those_that_the_code_declares() -> None:
    assert metrics_table() in METRICS_PAGE.read_text(encoding="utf-8")
