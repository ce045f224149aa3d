"""`border-report`: compare runs by their metrics.jsonl and summary.json, over seeds, with intervals."""

from __future__ import annotations

import importlib.util
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from border_cli.cli.entry import command, show
from border_cli.cli.overrides import Parser
from border_cli.config.schema import option
from border_cli.core.errors import UsageError, nearest
from border_cli.core.metrics import SCORE
from border_cli.display.text import table_text
from border_cli.report.page import (
    Report,
    as_json,
    few_runs,
    html_page,
    improvement_rows,
    table,
    write_curves,
)
from border_cli.report.runs import find_runs, grouped, read_run
from border_cli.run.directory import RUNS, SWEEP_FILE, shown, writing
from border_cli.sweeps.jobs import DONE, RUNNING, STOPPED, Sweep
from border_cli.sweeps.study import STUDY_FILE

_SHOWN_PAIRS = 10
"""Pairs of algorithms in the terminal at most."""


@dataclass
class _Settings:
    out: str | None = option(None, "the folder to write to")
    metric: str = option(SCORE, "the metric of --json and curves.csv, and the first one of the page")
    debug: bool = option(False, "show tracebacks")


@command
def main(argv: Sequence[str]) -> None:
    """The command."""
    parser = Parser("border-report", _Settings)
    parser.add_argument("--json", action="store_true")
    flags, paths, _ = parser.read_paths(argv)
    if parser.answers(flags):
        return
    run_dirs = find_runs(paths or [RUNS])
    every = [read_run(path) for path in run_dirs]
    read = [run for run in every if flags.metric in run.curves]
    if not read:
        names = sorted({name for run in every for name in run.curves})
        match = nearest(flags.metric, names, cutoff=0.3)
        evaluated = any(name.startswith("eval/") for name in names)
        if flags.metric.startswith("eval/") and not evaluated and "train/episode_return" in names:
            match = "train/episode_return"
        raise UsageError(
            f"none of {len(run_dirs)} runs has a record of {flags.metric}",
            nearest=match and f"metric={match}",
            allowed=names or "runs that have recorded metrics",
        )
    report = Report(grouped(read), flags.metric)
    if flags.json:
        show(json.dumps(as_json(report), indent=1))
        return
    head, *rows = table(report.lines)
    show(table_text(rows, head))
    head, *pairs = improvement_rows(report.improvements)
    if pairs:
        show(table_text(pairs[:_SHOWN_PAIRS], head))
    if len(pairs) > _SHOWN_PAIRS:
        show(f"note: {len(pairs) - _SHOWN_PAIRS} more pairs are in report.html")
    if len(read) < len(run_dirs):
        show(f"note: {len(run_dirs) - len(read)} of {len(run_dirs)} runs have no record of {flags.metric}")
    for note in _notes_on_sweeps(paths or [RUNS]):
        show(f"note: {note}")
    if few := few_runs(report.lines):
        show(f"note: {few}")
    common = Path(os.path.commonpath([run.path.parent for run in read]))
    _write(report, Path(flags.out) if flags.out else shown(common / "report"))


def _notes_on_sweeps(paths: Sequence[Path]) -> Iterator[str]:
    """Lines about the jobs that are not done, of the sweeps among the paths."""
    for path in paths:
        if (path / SWEEP_FILE).is_file():
            sweep = Sweep.read(path)
            ended = (DONE, STOPPED) if (path / STUDY_FILE).exists() else (DONE,)  # or its trial was pruned
            left = [job for job in sweep.jobs if job.state not in ended]
            for job in left[:3]:
                # A job that was running may have been killed with the sweep.
                state = "has not ended" if job.state == RUNNING else f"is {job.state}"
                yield f"job {job.number} ({sweep.settings(job)}) {state}{f': {job.error}' if job.error else ''}"
            if len(left) > 3:
                yield f"{len(left) - 3} more jobs of {len(sweep.jobs)} are not done"


def _write(report: Report, out: Path) -> None:
    """Write the page and the curves, and print where. Raises UsageError or ResourceError where that is impossible."""
    if out.is_symlink():
        raise UsageError(f"{out} is a link, which may lead anywhere", allowed="out=<folder>")
    page, curves = out / "report.html", out / "curves.csv"
    with writing(out, "out=<another folder>"):
        out.mkdir(parents=True, exist_ok=True)
        for path in (page, curves):
            path.unlink(missing_ok=True)  # a link there is not followed
        write_curves(curves, report.groups, report.metric)
        if importlib.util.find_spec("plotly"):
            page.write_text(html_page(report), encoding="utf-8", errors="replace")
        else:
            show("note: no page without plotly; install it with: pip install 'border-cli[report]'")
    for path in filter(Path.exists, (page, curves)):
        show(f"written: {path}")
