"""`make readme`: the table of docs/metrics.md, from what the code declares."""

from __future__ import annotations

from pathlib import Path

from bench.report import markdown, write_between_marks
from border_cli.config.registry import AGENTS
from border_cli.core.metrics import METRICS

METRICS_PAGE = Path(__file__).parents[1] / "docs" / "metrics.md"


def metrics_table() -> str:
    """Every metric with its unit, its meaning, and whether it may differ between two runs of one seed."""
    for agent in AGENTS.values():
        agent.load()  # declares its own
    rows = [
        [f"`{one.name}`", one.unit, one.help, "yes" if one.kind == "clock" else ""]
        for one in sorted(METRICS.values(), key=lambda one: one.name)
    ]
    return markdown(["metric", "unit", "meaning", "depends on timing"], rows)


if __name__ == "__main__":
    write_between_marks(METRICS_PAGE, f"\n{metrics_table()}\n")
