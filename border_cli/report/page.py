"""The page report.html: tables, and curves that a browser draws with plotly.js; the same figures as JSON and CSV."""

from __future__ import annotations

import csv
import html
import itertools
import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from importlib import resources
from pathlib import Path
from string import Template
from typing import Any

import numpy as np

from border_cli.config.convert import as_typed
from border_cli.core.format import number
from border_cli.core.metrics import METRICS, Metric
from border_cli.core.spaces import Array
from border_cli.report import stats
from border_cli.report.runs import AXES, Group

_NUMBER = re.compile(r"-?[\d.,]+(e[-+]?\d+)?%?([ :]|$)")
"""A cell that begins with a figure, such as `12.5 (9.75 to 14.0)`. The name of a run, `10-15-00.123_dqn`, does not."""
_NAMED = 4
"""More agents or environments are not named in the title."""
FEW = 5
"""With fewer runs an interval means little, and the page shows the runs themselves."""
_POINTS = 150
"""Of a run's curve on the page at most; more are averaged."""
_RESAMPLES = 500
"""For the intervals on the page, of which there is one per metric, axis and place."""


class Report:
    """What is compared, and the results. metric: of the curves in JSON and CSV, and of those first shown."""

    def __init__(self, groups: Sequence[Group], metric: str) -> None:
        self.groups = groups
        self.metric = metric
        self.lines = [stats.line(group) for group in groups]
        self.improvements = stats.improvements(groups)


def table(lines: Sequence[stats.Line]) -> list[list[str]]:
    """Header and rows of the final table, as text."""
    rows = [["runs of", "runs", "env steps", "best score", "last score", "seconds", "expected"]]
    for group in lines:
        remarks = {
            f"{group.seeds} seeds" if group.seeds > 1 else "one seed": group.seeds < group.runs,
            f"{group.unfinished} unfinished": group.unfinished > 0,
            f"{group.runs - group.scored} without a score": group.scored < group.runs,
        }
        remark = ", ".join(text for text, holds in remarks.items() if holds)
        runs = f"{group.runs} ({remark})" if remark else f"{group.runs}"
        verdict = {True: "met", False: "not met", None: "no score"}[group.meets]
        expected = "-" if group.expected is None else f"{number(group.expected)}: {verdict}"
        scores = ("-" if score is None else str(score) for score in (group.best, group.last))
        rows.append([group.name, runs, f"{group.env_steps:,}", *scores, number(group.seconds), expected])
    if all(group.expected is None for group in lines):
        rows = [row[:-1] for row in rows]
    return rows


def title(report: Report) -> str:
    """What is compared: agents and environments."""
    agents = list(dict.fromkeys(group.algorithm.split(" ")[0] for group in report.groups))
    envs = list(dict.fromkeys(group.env for group in report.groups))
    return " on ".join(
        ", ".join(names) if len(names) <= _NAMED else f"{len(names)} {what}"
        for names, what in ((agents, "agents"), (envs, "environments"))
        if any(names)
    )


def html_page(report: Report) -> str:
    """The page. It needs no other file and no network. Raises ImportError without plotly."""
    from plotly.offline import get_plotlyjs

    tables = {
        "Probability of improvement, by last scores": improvement_rows(report.improvements),
        "Differences of the configurations": differences(report.groups),
    }
    files = resources.files("border_cli.report")
    notes = filter(None, (about(), few_runs(report.lines)))
    scores = [f'<p class="note">{html.escape(text)}</p>' for text in notes]
    parts = {
        "title": html.escape(title(report)),
        "scores": _grid(table(report.lines)) + "".join(scores),
        "tables": "".join(
            f"<h2>{heading}</h2>{_grid(rows)}" for heading, rows in tables.items() if len(rows) > 1
        ),
        "plotly": get_plotlyjs(),
        "data": json.dumps(_data(report), separators=(",", ":")).replace("<", "\\u003c"),
        "script": (files / "page.js").read_text(encoding="utf-8"),
    }
    return Template((files / "page.html").read_text(encoding="utf-8")).substitute(parts)


def _grid(rows: Sequence[Sequence[str]]) -> str:
    """A table. Columns of figures stand to the right, others to the left."""

    def row(cells: Sequence[str], tag: str) -> str:
        styled = (
            f"<{tag}{'' if right else ' class=text'}>{html.escape(cell)}</{tag}>"
            for cell, right in zip(cells, figures, strict=True)
        )
        return f"<tr>{''.join(styled)}</tr>"

    columns = ([cell for cell in column if cell != "-"] for column in zip(*rows[1:], strict=True))
    figures = [bool(cells) and all(map(_NUMBER.match, cells)) for cells in columns]
    body = "".join(row(cells, "td") for cells in rows[1:])
    return f'<div class="wide"><table><thead>{row(rows[0], "th")}</thead><tbody>{body}</tbody></table></div>'


def _data(report: Report) -> dict[str, Any]:
    """What page.js draws: of each group the curves by metric and axis."""
    names = sorted({name for group in report.groups for run in group.runs for name in run.curves})
    labels = _labels(list(dict.fromkeys(group.algorithm for group in report.groups)))
    groups: list[dict[str, Any]] = [
        {
            "label": labels[group.algorithm],
            "env": group.env,
            "runs": [run.path.name if run.seed is None else f"seed {run.seed}" for run in group.runs],
            "curves": {name: _curves(group, name) for name in names},
        }
        for group in report.groups
    ]
    # Metrics of agents are declared where the agent is imported.
    known = [METRICS.get(name, Metric(name, "", "", "")) for name in names]
    drawn = {axis for group in groups for curves in group["curves"].values() for axis in curves}
    return {
        "metric": report.metric,
        "few": any(group.runs < FEW for group in report.lines),
        "axes": {axis: text for axis, text in AXES.items() if axis in drawn},
        "envs": list(dict.fromkeys(group.env for group in report.groups)),
        "metrics": {metric.name: {"unit": metric.unit, "help": metric.help} for metric in known},
        "groups": groups,
    }


def _curves(group: Group, metric: str) -> dict[str, Any]:
    """By axis, the mean of a group, its interval if it has enough runs, and each run."""
    curves = {}
    for axis in AXES:
        if (curve := stats.band(group, metric, axis, _RESAMPLES)) is None:
            continue
        curves[axis] = {
            "at": _short(curve.at),
            "mean": _short([interval.value for interval in curve.intervals]),
            "runs": [[_short(places), _short(values)] for places, values in curve.runs],
        }
        if len(curve.runs) >= FEW:
            curves[axis]["low"] = _short([interval.low for interval in curve.intervals])
            curves[axis]["high"] = _short([interval.high for interval in curve.intervals])
    return curves


def _short(values: Array | Sequence[float]) -> list[float]:
    """Values for the page, in five digits: means of neighbours where they are more than _POINTS."""
    array = np.asarray(values, np.float64)
    if len(array) > _POINTS:
        array = np.array([part.mean() for part in np.array_split(array, _POINTS)])
    return [float(f"{value:.5g}") for value in array.tolist()]


def as_json(report: Report) -> dict[str, Any]:
    """Scores, probabilities and curves, as plain data."""
    curves: dict[str, dict[str, Any]] = {axis: {} for axis in AXES}
    for axis, group in itertools.product(AXES, report.groups):
        if (curve := stats.band(group, report.metric, axis)) is not None:
            intervals = [asdict(interval) for interval in curve.intervals]
            curves[axis][group.name] = {"at": curve.at.tolist(), "intervals": intervals}
    return {
        "metric": report.metric,
        "statistic": f"interquartile mean, {stats.LEVEL:.0%} percentile bootstrap interval over runs",
        "groups": [asdict(line) | {"meets_expectation": line.meets} for line in report.lines],
        "improvements": [asdict(pair) for pair in report.improvements],
        "curves": curves,
    }


def _labels(names: Sequence[str]) -> dict[str, str]:
    """By name, the names of algorithms without the words that all of them have."""
    words = [name.split() for name in names]
    shared = set.intersection(*map(set, words)) if len(names) > 1 else set()
    labels = [" ".join(word for word in name if word not in shared) or name[0] for name in words]
    return dict(zip(names, labels if len(set(labels)) == len(labels) else names, strict=True))


def about() -> str:
    """What the scores and the curves are."""
    return (
        f"Scores are interquartile means over runs, with {stats.LEVEL:.0%} bootstrap intervals for {stats.LEAST} or more "
        f"runs ({stats.RESAMPLES:,} resamples of runs; Agarwal et al., 2021). Best is the score of the model that each run "
        "kept as its best, last that of its last model, on the same episodes, which had no part in the choice. "
        "Curves are interquartile means, over env steps up to the end of the shortest run of a group; over seconds a run "
        "that has ended keeps its last value."
    )


def few_runs(lines: Sequence[stats.Line]) -> str:
    """A warning about the intervals of few runs; empty where no group has such an interval."""
    if not any(stats.LEAST <= line.runs < FEW for line in lines):
        return ""
    return (
        f"An interval over fewer than {FEW} runs never reaches beyond their smallest and largest value, "
        f"and contains the true value in clearly less than {stats.LEVEL:.0%} of cases."
    )


def improvement_rows(pairs: Sequence[stats.Improvement]) -> list[list[str]]:
    """Header and rows: P(row > column) of last scores."""
    rows = [["algorithm", "higher than", "probability", "environments"]]
    return rows + [[pair.x, pair.y, str(pair.probability), str(len(pair.envs))] for pair in pairs]


def differences(groups: Sequence[Group]) -> list[list[str]]:
    """Header and rows: the values of the configuration that differ between groups.

    A key that some agents do not have, with one value in all others, is left out unless it was typed.
    """
    configs = [group.runs[0].compared for group in groups]
    typed = {key for group in groups for key in group.runs[0].typed}
    rows = [["key", *(group.name for group in groups)]]
    for key in dict.fromkeys(key for config in configs for key in config):
        values = [as_typed(config[key]) if key in config else "" for config in configs]
        if len(set(values) - {""}) > 1 or (key in typed and "" in values):
            rows.append([key, *values])
    return rows


def write_curves(path: Path, groups: Iterable[Group], metric: str) -> None:
    """Write the curves of all runs as tidy CSV, a line per value. Raises OSError.

    Further runs of the same seed are written as seeds "1-2", "1-3".
    """
    with path.open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow(("exp_name", "env_name", "seed", "metric", "env_step", "value"))
        for group in groups:
            repeats = Counter[int | None]()
            for run in group.runs:
                seed = "" if run.seed is None else str(run.seed)
                repeats[run.seed] += 1
                if repeats[run.seed] > 1:
                    seed += f"-{repeats[run.seed]}"
                curve = run.curves[metric]
                for step, value in zip(curve.env_steps.tolist(), curve.values.tolist(), strict=True):
                    rows.writerow([group.algorithm, group.env, seed, metric, int(step), repr(value)])
