"""Views of a sweep: a table of its jobs redrawn in place; a line per change; tables at the end."""

from __future__ import annotations

import math
import sys
import time
from collections import Counter
from collections.abc import Sequence
from statistics import fmean

from rich import box
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from border_cli.core import format
from border_cli.core.progress import JobProgress
from border_cli.display.output import Output, printable, write_line
from border_cli.display.text import add_row, make_table, print_tables
from border_cli.display.views import ECHO, SILENCE_S, is_live, terminal_text
from border_cli.report.stats import Line
from border_cli.run.directory import shown
from border_cli.sweeps.jobs import DONE, FAILED, RUNNING, STATES, STOPPED, WAITING, Job, Sweep
from border_cli.sweeps.scheduler import SweepView
from border_cli.sweeps.tuning import Tuner

Rows = Sequence[tuple[Job, JobProgress]]

_STYLES = {DONE: "green", FAILED: "bold red", STOPPED: "yellow", WAITING: "dim", RUNNING: "bold green"}
_MARGIN = 8
"""Lines of the terminal that the jobs do not take."""
_WIDEST = 140
_SHOWN_TRIALS = 10
_ORDER = (RUNNING, FAILED, STOPPED, DONE, WAITING)
"""Which jobs are shown first where there is no room for all."""


def make_sweep_view(output: Output, sweep: Sweep, console_mode: str) -> SweepView:
    """The view for a value of `recorder.console`."""
    console = Console()
    if console_mode == "none":
        return SweepView()
    if console_mode == "screen" or (console_mode == "auto" and is_live(console)):
        return ScreenSweepView(output, sweep, console)
    return PlainSweepView(sweep)


def job_table(sweep: Sweep, rows: Rows, *live: str) -> Table:
    """A row for each of these jobs. live: columns that running jobs have beside the others."""
    columns = "job", "settings", "state", "time", *live, "last", "best"
    table = make_table(f"jobs, in {shown(sweep.folder)}", *columns)
    for job, p in rows:
        state = job.state
        if job.state == RUNNING:
            state = p.phase if p.fraction is None else f"{p.phase} {format.share(p.fraction)}"
        cells: dict[str, str | Text] = {
            "job": str(job.number),
            "settings": Text(printable(sweep.settings(job))),
            "state": Text(state, _STYLES[job.state]),
            "time": format.duration(p.seconds),
            "ETA": format.duration(p.eta_s),
            "last": format.number(p.last),
            "best": format.number(p.best),
        }
        table.add_row(*(cells[name] for name in columns))
    return table


class ScreenSweepView(SweepView):
    """A table of the jobs that is redrawn in place, below the notes."""

    def __init__(self, output: Output, sweep: Sweep, console: Console) -> None:
        self._output = output
        self._sweep = sweep
        self._console = console
        self._began = time.monotonic()

    def show(self, rows: Rows, eta_s: float | None, stage: str) -> None:
        def frame() -> str:  # drawn again when the size of the terminal changes
            room = max(3, self._console.height - _MARGIN)
            visible = sorted(sorted(rows, key=_interest)[:room], key=lambda row: row[0].number)
            table = job_table(self._sweep, visible, "ETA")
            table.box, table.border_style = box.ROUNDED, "dim"
            table.width = max(1, min(self._console.width - ECHO, _WIDEST))
            settings = table.columns[1]
            settings.ratio, settings.no_wrap, settings.overflow = 1, True, "ellipsis"
            counts = ", ".join(f"{n} {state}" for state, n in _counted_states(rows))
            more = f", {len(rows) - len(visible)} of them not shown" if len(rows) > len(visible) else ""
            jobs = f"{format.counted(len(rows), 'job')}: {counts}{more}"
            times = format.duration(time.monotonic() - self._began), f"ETA {format.duration(eta_s)}"
            text = "   ".join(filter(None, (stage, jobs, *times)))
            return terminal_text(self._console, Group(table, Text(text)))

        self._output.draw(frame)

    def note(self, message: str) -> None:
        write_line(self._output.stdout, message)

    def close(self) -> None:
        self._output.draw(None)


def _interest(row: tuple[Job, JobProgress]) -> tuple[int, int]:
    """A sort key: jobs to show first come first. Of finished jobs these are the newest, of others the oldest."""
    job = row[0]
    return _ORDER.index(job.state), -job.number if job.state == DONE else job.number


def _counted_states(rows: Rows) -> list[tuple[str, int]]:
    """How many jobs are in each state, without those in which none is."""
    states = Counter(job.state for job, _ in rows)
    return [(state, states[state]) for state in STATES if states[state]]


class PlainSweepView(SweepView):
    """A line of text per change, and one about the whole sweep after a long silence."""

    def __init__(self, sweep: Sweep) -> None:
        self._sweep = sweep
        self._due = time.monotonic() + SILENCE_S

    def show(self, rows: Rows, eta_s: float | None, stage: str) -> None:
        if time.monotonic() < self._due:
            return
        words = [f"{state}={n}" for state, n in _counted_states(rows)]
        if stage:  # of jobs that are made one by one
            words.insert(0, f"{stage},")
        else:
            fractions = math.fsum(p.fraction or 0.0 for _, p in rows)
            words.append(f"progress={format.share(fractions / len(rows))}")
        if eta_s is not None:
            words.append(f"eta={format.duration(eta_s)}")
        self._line(f"sweep: {' '.join(words)}")

    def changed(self, job: Job) -> None:
        words = [f"{self._sweep.title(job)}: {job.state}"]
        scores = {"best": job.best, "last": job.last}.items()
        words += [f"{name}={format.number(score)}" for name, score in scores if score is not None]
        if job.state in (DONE, STOPPED):
            words.append(f"time={format.duration(job.progress.seconds)}")
        self._line(" ".join(words))

    def _line(self, message: str) -> None:
        self._due = time.monotonic() + SILENCE_S
        write_line(sys.stdout, message)


def print_sweep_tables(console: Console, sweep: Sweep, results: Sequence[Line]) -> None:
    """Print a row per job, and a row per configuration."""
    jobs = job_table(sweep, [(job, job.progress) for job in sweep.jobs])
    title = "configurations: interquartile means over runs, with 95% intervals"
    groups = make_table(title, "settings", "runs", "best", "last", "time")
    for line in results:
        scores = str(line.best), str(line.last)
        add_row(groups, line.name, str(line.runs), *scores, format.duration(line.seconds))
    print_tables(console, [jobs, groups] if results else [jobs])


def print_tuning_tables(console: Console, tuner: Tuner) -> None:
    """Print the best trials, and what those that were confirmed reach on fresh seeds."""
    # When the command has ended, a trial that still has runs to do is unfinished.
    counted = Counter("unfinished" if trial.state == RUNNING else trial.state for trial in tuner.trials)
    states, ranking = ", ".join(f"{n} {s}" for s, n in counted.items()), tuner.ranking[:_SHOWN_TRIALS]
    title = f"best {len(ranking)} of {format.counted(len(tuner.trials), 'trial')}: {states}"
    tables = [make_table(title, "trial", "settings", "score")]
    for trial in ranking:
        add_row(tables[0], str(trial.number), trial.settings, format.number(trial.score))
    if confirmed := [trial for trial in tuner.confirmed if trial.fresh]:
        table = make_table("confirmed on fresh seeds", "trial", "runs", "score", "lowest", "highest")
        for trial in sorted(confirmed, key=lambda trial: -fmean(trial.fresh)):
            figures = (format.number(of(trial.fresh)) for of in (fmean, min, max))
            add_row(table, str(trial.number), str(len(trial.fresh)), *figures)
        tables.append(table)
    print_tables(console, tables)
