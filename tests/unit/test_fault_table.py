"""Every fault that is promised to be survived has a test that carries its id, and a line in docs/reliability.md."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
PAGE = TESTS.parent / "docs" / "reliability.md"
ROWS = {
    "a": "actors and environments: 1 2 3 4 5 6 7 8 9 10 11 12",
    "b": "ratio, memory: 1 2 3 4 5",
    "c": "checkpoints: 1 2 3 4 5 6 7 8 9 10 11",
    "d": "signals: 1 2 3 4 5 6 8 9",
    "e": "numbers: 1 2 3 4 5",
    "f": "resources: 1 2 3 4 6",
    "g": "repetition: 1 2 3 4 6",
    "h": "records: 1 2 3 4",
    "i": "trust and input: 1 2 3 4 5 6 7",
}
"""d7 and f5 are campaigns (`tests/campaigns`), g5 is a table of docs/results.md."""
IDS = [f"{section}{n}" for section, rows in ROWS.items() for n in rows.partition(": ")[2].split()]


def ids_of_tests() -> set[str]:
    found: set[str] = set()
    for path in TESTS.rglob("test_*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef) and (row := re.match(r"test((_[a-i]\d+)+)_", node.name)):
                found |= set(row[1].strip("_").split("_"))
    return found


@pytest.mark.parametrize("row", IDS)
def test_a_row_has_a_test(row: str) -> None:
    assert row in ids_of_tests(), row


@pytest.mark.parametrize("row", [*IDS, "d7", "f5", "g5"])
def test_a_row_stands_in_the_page(row: str) -> None:
    assert re.search(rf"\b{row}\b", PAGE.read_text(encoding="utf-8"))


def test_no_test_carries_an_id_that_is_none() -> None:
    assert ids_of_tests() <= set(IDS)
