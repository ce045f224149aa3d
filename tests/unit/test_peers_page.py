"""The section of docs/performance.md that `make peers` writes."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.peers.__main__ import _with_table
from bench.report import machine, read_between_marks, write_between_marks

CARTPOLE = "| CartPole to 475 | reached |\n| --- | --- |\n| border-train | 1 of 2 |"
PONG = "| DQN, Pong | opt steps/s |\n| --- | --- |\n| border-train | 3 |"


def test_a_table_replaces_that_of_its_task_and_tables_are_in_the_order_of_the_tasks() -> None:
    both = _with_table(f"an older machine.\n\n{PONG}", CARTPOLE)
    assert both == f"{machine()}.\n\n{CARTPOLE}\n\n{PONG}"
    newer = CARTPOLE.replace("1 of 2", "2 of 2")
    assert _with_table(both, newer) == f"{machine()}.\n\n{newer}\n\n{PONG}"


def test_text_between_marks_is_replaced_and_read_again(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- a: written by the benchmark -->\nold\n<!-- end of a -->\nafter\n")
    assert read_between_marks(page, "a") == "old"
    write_between_marks(page, "new\n\nlines", "a")
    assert read_between_marks(page, "a") == "new\n\nlines"
    assert page.read_text().startswith("before\n") and page.read_text().endswith("-->\nafter\n")
    with pytest.raises(ValueError, match="no place for b"):
        read_between_marks(page, "b")
