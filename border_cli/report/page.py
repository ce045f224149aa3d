"""A report as report.md, as report.html with the pictures inside, and as JSON; the curves as pictures and CSV."""

from __future__ import annotations

import base64
import csv
import html
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from markdown import markdown

from border_cli.config.convert import as_typed
from border_cli.core.format import number
from border_cli.core.metrics import SCORE
from border_cli.report.runs import Group
from border_cli.report.stats import (
    LEVEL,
    RESAMPLES,
    Band,
    Improvement,
    Line,
    band,
    improvements,
    last_scores,
    line,
)

_NUMBER = re.compile(r"-?[\d.,]+(e[-+]?\d+)?%?([ :]|$)")
"""A cell that begins with a figure, such as `12.5 (9.75 to 14.0)`. The name of a run, `10-15-00.123_dqn`, does not."""
_NAMED = 4
"""More agents or environments are not named in the title."""
AXES = {"env_steps": "env steps", "seconds": "seconds"}
FEW = 5
"""With fewer runs an interval means little, and a picture shows the runs themselves."""
_LABELS = {SCORE: "return of evaluations", "train/episode_return": "return of training episodes"}
Curves = dict[str, dict[str, Band]]
"""By axis, then by the group's name."""


class Report:
    """What is compared, and the results. metric: of the curves."""

    def __init__(self, groups: Sequence[Group], metric: str) -> None:
        self.groups = groups
        self.metric = metric
        self.lines = [line(group) for group in groups]
        self.scores = last_scores(groups)
        self.improvements = improvements(self.scores)
        self.curves: Curves = {axis: {group.name: band(group, axis) for group in groups} for axis in AXES}


def table(lines: Sequence[Line]) -> list[list[str]]:
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


def markdown_page(report: Report, pictures: Mapping[Path, str]) -> str:
    """The page report.md. pictures: with their headings."""
    parts = [f"# {title(report)}", _grid(table(report.lines)), about(report.metric), few_runs(report.lines)]
    for path, heading in pictures.items():
        parts += [f"## {heading}", f"![{heading}]({path.name})"]
    for heading, rows in (
        ("Probability of improvement, by last scores", improvement_rows(report.improvements)),
        ("Differences of the configurations", differences(report.groups)),
    ):
        if len(rows) > 1:
            parts += [f"## {heading}", _grid(rows)]
    return html.escape("\n\n".join(filter(None, parts)), quote=False) + "\n"


def html_page(page: str, pictures: Iterable[Path]) -> str:
    """The page report.html, from that in Markdown. It needs no other file and no network."""
    body = markdown(page, extensions=["tables"])
    for path in pictures:
        encoded = base64.b64encode(path.read_bytes()).decode("ascii")
        body = body.replace(f'src="{path.name}"', f'src="data:image/png;base64,{encoded}"')
    heading = page.partition("\n")[0].removeprefix("# ")
    head = f'<meta charset="utf-8"><title>{heading}</title><style>{_STYLE}</style>'
    return f'<!doctype html><html lang="en"><head>{head}</head><body>\n{body}\n</body></html>\n'


def as_json(report: Report) -> dict[str, Any]:
    """Scores, probabilities and curves, as plain data."""
    return {
        "metric": report.metric,
        "statistic": f"interquartile mean, {LEVEL:.0%} percentile bootstrap interval over runs",
        "groups": [asdict(line) | {"meets_expectation": line.meets} for line in report.lines],
        "improvements": [asdict(pair) for pair in report.improvements],
        "curves": {
            axis: {
                name: {"at": band.at.tolist(), "intervals": [asdict(interval) for interval in band.intervals]}
                for name, band in bands.items()
            }
            for axis, bands in report.curves.items()
        },
    }


def _grid(rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown. Columns of figures stand to the right, others to the left."""
    known = ([cell for cell in column if cell != "-"] for column in zip(*rows[1:], strict=True))
    ends = ["---:" if cells and all(map(_NUMBER.match, cells)) else "---" for cells in known]
    grid = [rows[0], ends, *rows[1:]]
    return "\n".join(f"| {' | '.join(cell.replace('|', '/') for cell in row)} |" for row in grid)


def about(metric: str) -> str:
    """What the scores and the curves are."""
    return (
        f"Scores are interquartile means over runs with {LEVEL:.0%} bootstrap intervals ({RESAMPLES:,} resamples of "
        "runs; Agarwal et al., 2021). *Best* is the score of the model that each run kept as its best, *last* that of its "
        "last model, on the same episodes, which had no part in the choice. "
        f"Curves show `{metric}`, over env steps up to the end of the shortest run of a group; over seconds a run that has "
        "ended keeps its last value."
    )


def few_runs(lines: Sequence[Line]) -> str:
    """A warning about the intervals of few runs; empty where all groups have enough."""
    if all(line.runs >= FEW for line in lines):
        return ""
    return (
        f"An interval over fewer than {FEW} runs never reaches beyond their smallest and largest value, "
        f"and contains the true value in clearly less than {LEVEL:.0%} of cases."
    )


def improvement_rows(pairs: Sequence[Improvement]) -> list[list[str]]:
    """Header and rows: P(row > column) of last scores."""
    rows = [["algorithm", "higher than", "probability", "environments"]]
    return rows + [[pair.x, pair.y, str(pair.probability), str(len(pair.envs))] for pair in pairs]


def differences(groups: Sequence[Group]) -> list[list[str]]:
    """Header and rows: the values of the configuration that differ between groups."""
    configs = [group.runs[0].compared for group in groups]
    keys = dict.fromkeys(key for config in configs for key in config)
    rows = [["key", *(group.name for group in groups)]]
    for key in keys:
        values = [as_typed(config[key]) if key in config else "" for config in configs]
        if len(set(values)) > 1:
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
                for step, value in zip(run.curve.env_steps.tolist(), run.curve.values.tolist(), strict=True):
                    rows.writerow([group.algorithm, group.env, seed, metric, int(step), repr(value)])


# -- pictures, by matplotlib -------------------------------------------------


def draw(curves: Curves, envs: Mapping[str, str], metric: str, folder: Path) -> dict[Path, str]:
    """Draw the interquartile mean of each group, with its interval or with its few runs. Returns a heading by picture.

    One picture per environment and axis, in which labels leave out the words that all groups have. envs: by the group's
    name. It needs matplotlib.
    """
    written = {}
    several, label = len(set(envs.values())) > 1, _LABELS.get(metric, metric)
    for axis, bands in curves.items():
        for env in dict.fromkeys(envs[name] for name in bands):
            of_env = {name: band for name, band in bands.items() if envs[name] == env}
            words = [name.split() for name in of_env]
            shared = set.intersection(*map(set, words)) if len(words) > 1 else set()
            labels = [" ".join(word for word in name if word not in shared) or name[0] for name in words]
            if len(set(labels)) < len(labels):
                labels = list(of_env)
            labelled = dict(zip(labels, of_env.values(), strict=True))
            prefix = re.sub(r"\W+", "-", env).strip("-") + "_" if several else ""
            path = folder / f"{prefix}{axis}.png"
            path.unlink(missing_ok=True)  # a link there is not followed
            _figure(labelled, xlabel=AXES[axis], ylabel=label, title=env).savefig(path, dpi=120)
            written[path] = f"{label.capitalize()} over {AXES[axis]}{f': {env}' if several else ''}"
    return written


def _figure(bands: Mapping[str, Band], **texts: str) -> Any:
    """A figure with these bands, by label. If there are more bands than colours, line styles differ too."""
    from cycler import cycler
    from matplotlib import rcParams
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 5 + 0.2 * len(bands)), layout="constrained")
    plot, colors = figure.subplots(), rcParams["axes.prop_cycle"].by_key()["color"]
    if len(bands) > len(colors):
        plot.set_prop_cycle(cycler(linestyle=["-", "--", "-.", ":"]) * cycler(color=colors))
    for label, curve in bands.items():
        marker = "o" if min(len(at) for at, _ in curve.runs) <= FEW else None
        means = [interval.value for interval in curve.intervals]
        every = max(1, len(means) // FEW)
        (drawn,) = plot.plot(curve.at, means, marker=marker, markevery=every, label=label)
        color, style = drawn.get_color(), drawn.get_linestyle()
        if len(curve.runs) >= FEW:
            low, high = ([getattr(interval, end) for interval in curve.intervals] for end in ("low", "high"))
            plot.fill_between(curve.at, low, high, color=color, alpha=0.2)
        elif len(curve.runs) > 1:
            for at, values in curve.runs:
                plot.plot(at, values, color=color, linestyle=style, alpha=0.3, linewidth=0.8)
    plot.set(**texts)
    plot.grid(alpha=0.3)
    figure.legend(loc="outside lower center", ncols=1, fontsize="small")
    return figure


_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 70rem; margin: 2rem auto; padding: 0 1rem; color: #222; }
table { border-collapse: collapse; margin: 1rem 0; display: block; overflow-x: auto; font-size: 14px; }
th, td { border: 1px solid #ddd; padding: .3rem .6rem; text-align: left; white-space: nowrap; }
th:first-child, td:first-child { white-space: normal; }
th { background: #f5f5f5; }
img { max-width: 100%; }
"""
