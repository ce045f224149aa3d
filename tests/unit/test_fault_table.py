"""Every row of the fault tables in docs/project/reliability*.md has tests with its id in their names."""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
PAGES = sorted((TESTS.parent / "docs" / "project").glob("reliability*.md"))
ROWS = {
    "a": "actors and environments: 1 2 3 4 5 6 7 8 9 10 11 12",
    "b": "ratio, memory: 1 2 3 4 5",
    "c": "checkpoints: 1 2 3 4 5 6 7 8 9 10 11",
    "d": "signals: 1 2 3 4 5 6 8 9 10",
    "e": "numbers: 1 2 3 4 5",
    "f": "resources: 1 2 3 4 6",
    "g": "repetition: 1 2 3 4 6",
    "h": "records: 1 2 3 4 5",
    "i": "trust and input: 1 2 3 4 5 6 7",
    "j": "habits of environments: 1 2 3 4 5 6 7 8 9 10",
}
"""d7 and f5 are campaigns (`tests/campaigns`), g5 is a table of docs/results/modes.md."""
IDS = [f"{section}{n}" for section, rows in ROWS.items() for n in rows.partition(": ")[2].split()]
CAMPAIGN = re.compile(r"`python -m tests\.campaigns (\S+)`")


@functools.cache
def ids_in(path: Path) -> set[str]:
    """Return the row ids in the test names of a file."""
    ids: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef) and (row := re.match(r"test((_[a-j]\d+)+)_", node.name)):
            ids |= set(row[1].strip("_").split("_"))
    return ids


def promises() -> dict[str, tuple[list[str], list[str]]]:
    """Return ids and places of each row of the pages, by its first cell."""
    rows = [
        [cell.strip() for cell in line.split("|")[1:-1]]
        for page in PAGES
        for line in page.read_text(encoding="utf-8").splitlines()
        if re.match(r"\| [a-j]\d+", line)
    ]
    return {row[0]: (row[0].split(", "), row[3].split(", ")) for row in rows}


def campaigns() -> set[str]:
    """Return the names of the campaigns."""
    tree = ast.parse((TESTS / "campaigns" / "__main__.py").read_text(encoding="utf-8"))
    lists = [node.value for node in ast.walk(tree) if isinstance(node, ast.keyword) and node.arg == "choices"]
    return {name for names in lists for name in ast.literal_eval(names)}


def file_of(place: str) -> Path:
    """Return the path of a place. Without a folder it is in tests/faults."""
    return TESTS.parent / place if "/" in place else TESTS / "faults" / place


def test_every_row_has_a_test_and_every_id_in_a_test_name_has_a_row() -> None:
    assert {row for path in TESTS.rglob("test_*.py") for row in ids_in(path)} == set(IDS)
    assert {row for rows, _ in promises().values() for row in rows} == {*IDS, "d7", "f5", "g5"}


@pytest.mark.parametrize(("rows", "places"), promises().values(), ids=promises())
def test_a_row_names_the_files_of_its_tests(rows: list[str], places: list[str]) -> None:
    shown: set[str] = set()
    for place in places:
        if campaign := CAMPAIGN.fullmatch(place):
            assert campaign[1] in campaigns()
            shown |= set(rows)
        elif place == "`make results`":
            shown |= set(rows)
        else:
            assert file_of(place).is_file(), place
            ids = ids_in(file_of(place)) & set(rows)
            assert ids, f"{place} has no test of {', '.join(rows)}"
            shown |= ids
    assert shown == set(rows), "its other tests are elsewhere"
