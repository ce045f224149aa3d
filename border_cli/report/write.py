"""report.md, its pictures, and the same as JSON."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from border_cli.recorders.figures import number
from border_cli.report.compare import Band, Line
from border_cli.report.statistics import LEVEL, RESAMPLES, Interval

AXES = {"env_steps": "env steps", "seconds": "seconds"}
Curves = dict[str, dict[str, Band]]
"""By axis, then by name of the group."""
FEW = 5
"""With fewer runs than that an interval says little, and a picture shows the runs themselves."""


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
    head = ["runs of", "runs", "env steps", "best score", "last score", "seconds", "expected"]
    return [head, *([*_cells(one)] for one in lines)]


def markdown(lines: Sequence[Line], metric: str, pictures: Sequence[Path]) -> str:
    """The whole page."""
    head, *rows = table(lines)
    grid = [head, ["---"] * len(head), *rows]
    parts = [
        "# Report",
        "\n".join(f"| {' | '.join(cell.replace('|', '/') for cell in row)} |" for row in grid),
        f"Scores are interquartile means over runs with {LEVEL:.0%} bootstrap intervals ({RESAMPLES:,} resamples of "
        "runs; Agarwal et al., 2021). Best: of the model that each run kept as its best, over the episodes that "
        "confirmed it: the largest mean of several candidates, and so a little too high (`border-eval` judges it anew); "
        f"last: of each run's last evaluation. Curves: `{metric}`, as far as every run of a group goes.",
        *filter(None, [few_runs(lines)]),
        *(f"![{path.stem}]({path.name})" for path in pictures),
    ]
    return "\n\n".join(parts) + "\n"


def few_runs(lines: Sequence[Line]) -> str:
    """What to think of the intervals of few runs; empty where all groups have enough."""
    if all(one.runs >= FEW for one in lines):
        return ""
    return f"An interval over fewer than {FEW} runs is hardly more than their least and greatest, and no 95% certainty."


def draw(curves: Curves, envs: Mapping[str, str], metric: str, folder: Path) -> list[Path]:
    """One picture per environment and axis. Raises ModuleNotFoundError where matplotlib is not installed.

    envs: of each group by its name; where there are several, the names of their pictures begin with them.
    """
    import matplotlib

    matplotlib.use("Agg")
    written = []
    several = len(set(envs.values())) > 1
    for axis, bands in curves.items():
        for env in dict.fromkeys(envs[name] for name in bands):
            prefix = re.sub(r"\W+", "-", env).strip("-") + "_" if several else ""
            written.append(folder / f"{prefix}{axis}.png")
            own = {name: band for name, band in bands.items() if envs[name] == env}
            _picture(own, AXES[axis], metric, env, written[-1])
    return written


def _picture(bands: Mapping[str, Band], axis: str, metric: str, title: str, path: Path) -> None:
    from matplotlib import pyplot

    figure, plot = pyplot.subplots(figsize=(8, 5 + 0.2 * len(bands)), layout="constrained")
    for name, band in bands.items():
        (drawn,) = plot.plot(band.at, [one.value for one in band.intervals], label=name)
        if band.values.shape[1] < FEW:
            plot.plot(band.at, band.values, color=drawn.get_color(), alpha=0.3, linewidth=0.8)
            continue
        low, high = ([getattr(one, end) for one in band.intervals] for end in ("low", "high"))
        plot.fill_between(band.at, low, high, color=drawn.get_color(), alpha=0.2)
    plot.set(xlabel=axis, ylabel=metric, title=title)
    plot.grid(alpha=0.3)
    figure.legend(loc="outside lower center", ncols=1, fontsize="small")
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def _cells(one: Line) -> list[str]:
    return [
        one.name,
        _runs(one),
        f"{one.env_steps:,}",
        _shown(one.best),
        _shown(one.last),
        number(one.seconds),
        _verdict(one),
    ]


def _runs(one: Line) -> str:
    remarks = (
        (one.seeds < one.runs, f"{one.seeds} seeds" if one.seeds > 1 else "one seed"),
        (one.unfinished, f"{one.unfinished} unfinished"),
        (one.scored < one.runs, f"{one.runs - one.scored} without a score"),
    )
    said = ", ".join(text for holds, text in remarks if holds)
    return f"{one.runs} ({said})" if said else f"{one.runs}"


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
