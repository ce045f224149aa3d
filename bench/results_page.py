"""docs/results.md, from what finished runs have left."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

from bench.report import machine, markdown, write_between_marks
from bench.table_of_runs import ROWS, Row
from border_cli.evaluation.statistics import mean_interval

PAGE = Path(__file__).parents[1] / "docs" / "results.md"
Results = dict[str, list[dict[str, Any]]]


def write_page(results: Results) -> bool:
    """Write the tables between the marks of the page; whether every row that is there holds what is promised."""
    bars = [row for row in ROWS if row.table == "bars"]
    parts = [
        f"{machine()}.",
        "### Bars",
        _bars(bars, results),
        "### Who acts: parity",
        _parity(results),
        "### Each run",
        _each(results),
    ]
    write_between_marks(PAGE, "\n" + "\n\n".join(parts) + "\n")
    return all(_holds(row, results[row.name]) is not False for row in bars)


def _means(found: list[dict[str, Any]]) -> list[float]:
    return [one["judged"]["mean"] for one in found]


def _holds(row: Row, found: list[dict[str, Any]]) -> bool | None:
    """None while a seed is missing."""
    if row.bar is None or len(found) < len(row.seeds):
        return None
    return row.bar.holds(_means(found))


def _bars(rows: list[Row], results: Results) -> str:
    head = [
        "environment",
        "agent",
        "seeds",
        "env steps",
        "mean of the best",
        "least",
        "promised",
        "holds",
        "published",
    ]
    lines = []
    for row in rows:
        found = results[row.name]
        cells = ["–", "–", "–"]
        if found:
            means = _means(found)
            cells = [f"{found[0]['env_steps']:,}", _with_interval(means), f"{min(means):.1f}"]
        verdict = {True: "yes", False: "**no**", None: "not yet run" if not found else "seeds missing"}[
            _holds(row, found)
        ]
        seeds = f"{len(found)} of {len(row.seeds)}"
        lines.append(
            [row.env, row.agent, seeds, *cells, str(row.bar), verdict, row.bar.published if row.bar else ""]
        )
    return markdown(head, lines)


def _parity(results: Results) -> str:
    head = [
        "environment",
        "agent",
        "way",
        "seeds",
        "mean of the best",
        "last, mean and 95% interval",
        "minutes",
    ]
    lines = []
    for row in (row for row in ROWS if row.table == "parity"):
        found = results[row.name]
        cells = ["–", "–", "–"]
        if found:
            minutes = statistics.median(one["minutes"] for one in found)
            cells = [
                _with_interval(_means(found)),
                _with_interval([one["last"] for one in found]),
                f"{minutes:.1f}",
            ]
        lines.append([row.env, row.agent, row.way, f"{len(found)} of {len(row.seeds)}", *cells])
    return markdown(head, lines)


def _each(results: Results) -> str:
    head = ["run", "best over new episodes", "at opt step", "last evaluation", "minutes", "commit"]
    lines = [
        [
            one["cell"],
            f"{one['judged']['mean']:.1f} ± {one['judged']['std']:.1f} ({one['judged']['episodes']:,})",
            f"{one['best_opt_steps']:,} of {one['opt_steps']:,}",
            f"{one['last']:.1f}",
            f"{one['minutes']:.1f}",
            one["commit"] + ("+" if one["dirty"] else ""),
        ]
        for found in results.values()
        for one in found
    ]
    return markdown(head, lines)


def _with_interval(values: list[float]) -> str:
    interval = mean_interval(tuple(values))
    mean = f"{statistics.fmean(values):.1f}"
    return mean if interval is None else f"{mean} ({interval[0]:.1f} to {interval[1]:.1f})"
