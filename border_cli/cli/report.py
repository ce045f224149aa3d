"""`border-report`: compare runs by their metrics.jsonl and summary.json, over seeds, with intervals."""

from __future__ import annotations

import json
import os
import re
from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from border_cli import report
from border_cli.cli.errors import run_command, show
from border_cli.cli.help import complete_command
from border_cli.cli.overrides import Parser, one_of, some_text
from border_cli.config.convert import nearest, nearest_line
from border_cli.core.errors import ExitCode, UsageError
from border_cli.display.format import number
from border_cli.display.tables import table_text
from border_cli.report import LEVEL, RESAMPLES, Band, Group, Interval, Line
from border_cli.runs.directory import RUNS, shown

HELP = """\
border-report compares runs: a table with intervals over their seeds, and learning curves.

  border-report [PATH …] [key=value …]

PATH is a run, a sweep, or any folder that contains runs; without one, ./runs. Runs that differ only
in their seed, or in settings that do not affect learning, are one group. Only metrics.jsonl,
summary.json and provenance.json are read. report.md and its pictures are written to a folder.

Settings
  out=FOLDER                where to write; by default report/ in the folder of all the runs
  metric=eval/return_mean   the metric whose curves are drawn
  debug=true                show tracebacks

Flags
  --json                    print everything as JSON instead of the table, and write nothing
  -sc install=bash          set up completion: eval "$(border-report -sc install=bash)";
                            also zsh, fish
  -h, --help  --version

Examples
  border-report
  border-report runs/sweeps/2026-11-22/10-15-00 out=report/lr
  border-report --json runs > report.json
"""
AXES = {"env_steps": "env steps", "seconds": "seconds"}
FEW = 5
"""With fewer runs an interval means little, and a picture shows the runs themselves."""
Curves = dict[str, dict[str, Band]]
"""By axis, then by the group's name."""


def main(argv: list[str] | None = None) -> int:
    """The command. argv: its arguments, by default those of the process. Returns the exit code."""
    return run_command(_dispatch, argv)


def _dispatch(argv: Sequence[str]) -> int:
    parser = Parser("border-report")
    parser.add_setting("out", some_text)
    parser.add_setting("metric", some_text, "eval/return_mean")
    parser.add_setting("debug", one_of("true", "false"))
    parser.add_argument("--json", action="store_true")
    flags, paths = parser.read_paths(argv)
    if parser.show_page(flags, HELP):
        return ExitCode.DONE
    if flags.shell_completion:
        return complete_command([*map(str, paths)], parser.suggestions)
    _report(flags, paths)
    return ExitCode.DONE


def _report(flags: Namespace, paths: Sequence[Path]) -> None:
    found = report.find_runs(paths or [RUNS])
    all_runs = [report.read_run(path, flags.metric) for path in found]
    read = [run for run in all_runs if run is not None]
    if not read:
        names = report.metrics_of(found)
        allowed = (
            f"metric=<one of {len(names)} names in metrics.jsonl>"
            if names
            else "runs that have recorded metrics"
        )
        raise UsageError(
            f"none of {len(found)} runs has a record of {flags.metric}\nallowed: {allowed}"
            f"{nearest_line(nearest(flags.metric, names, cutoff=0.3))}"
        )
    groups = report.grouped(read)
    lines = [report.line(group) for group in groups]
    curves = {axis: {group.name: report.band(group, axis) for group in groups} for axis in AXES}
    if flags.json:
        show(json.dumps(as_json(lines, curves, flags.metric), indent=1))
        return
    head, *rows = table(lines)
    show(table_text(rows, head))
    if len(read) < len(found):
        show(f"note: {len(found) - len(read)} of {len(found)} runs have no record of {flags.metric}")
    if few := few_runs(lines):
        show(f"note: {few}")
    common = Path(os.path.commonpath([run.path.parent for run in read]))
    out = Path(flags.out) if flags.out else shown(common / "report")
    _write(out, flags.metric, groups, lines, curves)


def _write(out: Path, metric: str, groups: Sequence[Group], lines: Sequence[Line], curves: Curves) -> None:
    """Write report.md and the pictures, and print where. Raises UsageError for a folder that cannot be written to."""
    if out.is_symlink():
        raise UsageError(f"{out} is a link, which may lead anywhere\nallowed: out=<folder>")
    page, pictures = out / "report.md", list[Path]()
    try:
        out.mkdir(parents=True, exist_ok=True)
        try:
            pictures = draw(curves, {group.name: group.env for group in groups}, metric, out)
        except ModuleNotFoundError:
            show("note: no pictures without matplotlib; install it with: pip install 'border-cli[report]'")
        page.unlink(missing_ok=True)  # a link there is not followed
        page.write_text(markdown(lines, metric, pictures), encoding="utf-8")
    except OSError as e:
        raise UsageError(f"{out} cannot be written: {e.strerror}\nallowed: out=<another folder>") from e
    for path in (page, *pictures):
        show(f"written: {path}")


def as_json(lines: Sequence[Line], curves: Curves, metric: str) -> dict[str, Any]:
    """What `--json` prints."""
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
    """Header and rows of the final table, as text."""
    rows = [["runs of", "runs", "env steps", "best score", "last score", "seconds", "expected"]]
    for one in lines:
        remarks = {
            f"{one.seeds} seeds" if one.seeds > 1 else "one seed": one.seeds < one.runs,
            f"{one.unfinished} unfinished": one.unfinished > 0,
            f"{one.runs - one.scored} without a score": one.scored < one.runs,
        }
        remark = ", ".join(text for text, holds in remarks.items() if holds)
        runs = f"{one.runs} ({remark})" if remark else f"{one.runs}"
        verdict = {True: "met", False: "not met", None: "no score"}[one.meets]
        expected = "-" if one.expected is None else f"{number(one.expected)}: {verdict}"
        scores = (_shown(one.best), _shown(one.last))
        rows.append([one.name, runs, f"{one.env_steps:,}", *scores, number(one.seconds), expected])
    return rows


def markdown(lines: Sequence[Line], metric: str, pictures: Sequence[Path]) -> str:
    """The page report.md."""
    head, *rows = table(lines)
    grid = [head, ["---"] * len(head), *rows]
    parts = [
        "# Report",
        "\n".join(f"| {' | '.join(cell.replace('|', '/') for cell in row)} |" for row in grid),
        f"Scores are interquartile means over runs with {LEVEL:.0%} bootstrap intervals ({RESAMPLES:,} resamples of "
        "runs; Agarwal et al., 2021). *Best* is the score of the model that each run kept as its best, on the episodes "
        "that confirmed it. It is the largest mean of several candidates and therefore a little too high; `border-eval` "
        "evaluates the model on episodes that had no part in choosing it. *Last* is the last evaluation of each run. "
        f"Curves show `{metric}`, up to the end of the shortest run of a group.",
        few_runs(lines),
        *(f"![{path.stem}]({path.name})" for path in pictures),
    ]
    return "\n\n".join(filter(None, parts)) + "\n"


def few_runs(lines: Sequence[Line]) -> str:
    """A warning about the intervals of few runs; empty where all groups have enough."""
    if all(one.runs >= FEW for one in lines):
        return ""
    return (
        f"An interval over fewer than {FEW} runs hardly reaches beyond their smallest and largest value, "
        "and contains the true mean in clearly less than 95% of cases."
    )


def draw(curves: Curves, envs: Mapping[str, str], metric: str, folder: Path) -> list[Path]:
    """One picture per environment and axis: of each group its mean with a band, or with the curves of its few runs.

    envs: by the group's name. Raises ModuleNotFoundError where matplotlib is not installed.
    """
    from matplotlib.figure import Figure

    written = []
    several = len(set(envs.values())) > 1
    for axis, bands in curves.items():
        for env in dict.fromkeys(envs[name] for name in bands):
            prefix = re.sub(r"\W+", "-", env).strip("-") + "_" if several else ""
            written.append(folder / f"{prefix}{axis}.png")
            own = {name: band for name, band in bands.items() if envs[name] == env}
            figure = Figure(figsize=(8, 5 + 0.2 * len(own)), layout="constrained")
            plot = figure.subplots()
            for name, band in own.items():
                (drawn,) = plot.plot(band.at, [one.value for one in band.intervals], label=name)
                color = drawn.get_color()
                if len(band.runs) >= FEW:
                    low, high = ([getattr(one, end) for one in band.intervals] for end in ("low", "high"))
                    plot.fill_between(band.at, low, high, color=color, alpha=0.2)
                elif len(band.runs) > 1:
                    for at, values in band.runs:
                        plot.plot(at, values, color=color, alpha=0.3, linewidth=0.8)
            plot.set(xlabel=AXES[axis], ylabel=metric, title=env)
            plot.grid(alpha=0.3)
            figure.legend(loc="outside lower center", ncols=1, fontsize="small")
            written[-1].unlink(missing_ok=True)  # a link there is not followed
            figure.savefig(written[-1], dpi=120)
    return written


def _shown(score: Interval | None) -> str:
    if score is None:
        return "-"
    if score.low == score.high:
        return number(score.value)
    return f"{number(score.value)} ({number(score.low)} to {number(score.high)})"
