"""The table that `border-eval` prints."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from border_cli.evaluation.statistics import Statistics
from border_cli.recorders.figures import number
from border_cli.recorders.outlet import printable
from border_cli.recorders.tables import table_text


def eval_table(statistics: Statistics, facts: Sequence[tuple[str, str]]) -> str:
    """The figures of an evaluation as text for stdout. facts: rows to put above them."""
    table = Table(show_header=False)
    table.add_column(justify="left", overflow="fold")
    table.add_column(justify="right", overflow="fold")
    encoding = sys.stdout.encoding or "utf-8"
    for row in (*facts, *_rows(statistics)):
        table.add_row(*(Text(_held_by(encoding, cell)) for cell in row))
    return table_text(table)


def _rows(s: Statistics) -> list[tuple[str, str]]:
    interval = "-" if s.interval is None else f"{number(s.interval[0])} to {number(s.interval[1])}"
    return [
        ("return", f"{number(s.mean)} ± {number(s.std)}"),
        ("95% interval of the mean", interval),
        ("least, greatest return", f"{number(s.min)}, {number(s.max)}"),
        ("episode length", f"{number(s.length_mean)} ({s.length_min:,} to {s.length_max:,})"),
    ]


def _held_by(encoding: str, text: str) -> str:
    """Text that stdout can take; a ± that it cannot is spelt out."""
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        text = text.replace("±", "+-")
    return printable(text, encoding)
