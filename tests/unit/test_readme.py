"""README is what the program is today."""

from __future__ import annotations

from bench.readme_table import README, table


def test_its_table_is_what_the_command_offers() -> None:
    """`make readme` writes it."""
    assert table() in README.read_text(encoding="utf-8")
