"""report.md, its pictures, and the same as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from border_cli.recorders.figures import number
from border_cli.report.compare import Band, Line
from border_cli.report.statistics import LEVEL, RESAMPLES, Interval

AXES = {"env_steps": "env steps", "seconds": "seconds"}
Curves = dict[str, dict[str, Band]]
"""By axis, then by name of the group."""


def as_json(lines: Sequence[Line], curves: Curves, metric: str) -> dict[str, Any]:
    """Plain data."""
    return {
        "metric": metric,
        "statistic": f"interquartile mean, {LEVEL:.0%} percentile bootstrap interval over runs",
        "groups": [asdict(one) | {"meets_expectation": one.meets} for one in lines],
        "curves": {
            axis: {
                name: {"at": band.at.tolist(), "intervals": [asdict(one) for one in band.intervals]}
                for name, band in bands.items()
            }
            for axis, bands in curves.items()
        },
    }


def table(lines: Sequence[Line]) -> list[list[str]]:
    """Head and rows of the final table, as text."""
    head = ["runs of", "seeds", "env steps", "best score", "last score", "seconds", "expected"]
    return [head, *([*_cells(one)] for one in lines)]


def markdown(lines: Sequence[Line], metric: str, pictures: Sequence[Path]) -> str:
    """The whole page."""
    head, *rows = table(lines)
    grid = [head, ["---"] * len(head), *rows]
    parts = [
        "# Report",
        "\n".join(f"| {' | '.join(cell.replace('|', '/') for cell in row)} |" for row in grid),
        f"Scores are interquartile means over seeds with {LEVEL:.0%} bootstrap intervals ({RESAMPLES:,} resamples of "
        "runs; Agarwal et al., 2021). Best: of the model that each run kept as its best, over the episodes that "
        f"confirmed it; last: of each run's last evaluation. Curves: `{metric}`, as far as every run of a group goes.",
        *(f"![{path.stem}]({path.name})" for path in pictures),
    ]
    return "\n\n".join(parts) + "\n"


def draw(curves: Curves, metric: str, folder: Path) -> list[Path]:
    """One picture per axis. Raises ModuleNotFoundError where matplotlib is not installed."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    written = []
    for axis, bands in curves.items():
        figure, plot = pyplot.subplots(figsize=(8, 5), layout="constrained")
        for name, band in bands.items():
            (drawn,) = plot.plot(band.at, [one.value for one in band.intervals], label=name)
            low, high = ([getattr(one, end) for one in band.intervals] for end in ("low", "high"))
            plot.fill_between(band.at, low, high, color=drawn.get_color(), alpha=0.2)
        plot.set_xlabel(AXES[axis])
        plot.set_ylabel(metric)
        plot.grid(alpha=0.3)
        plot.legend(fontsize="small")
        written.append(folder / f"{axis}.png")
        figure.savefig(written[-1], dpi=120)
        pyplot.close(figure)
    return written


def _cells(one: Line) -> list[str]:
    unfinished = f" ({one.unfinished} unfinished)" if one.unfinished else ""
    return [
        one.name,
        f"{one.runs}{unfinished}",
        f"{one.env_steps:,}",
        _shown(one.best),
        _shown(one.last),
        number(one.seconds),
        _verdict(one),
    ]


def _shown(score: Interval | None) -> str:
    if score is None:
        return "-"
    if score.low == score.high:
        return number(score.value)
    return f"{number(score.value)} ({number(score.low)} to {number(score.high)})"


def _verdict(one: Line) -> str:
    if one.expected is None:
        return "-"
    verdict = {True: "met", False: "not met", None: "no score"}[one.meets]
    return f"{number(one.expected)}: {verdict}"
