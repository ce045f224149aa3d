"""Views of a sweep: a table of its jobs redrawn in place; a line per change."""

from __future__ import annotations

import math
import sys
import time
from collections import Counter
from collections.abc import Sequence
from statistics import fmean

from rich import box
from rich.console import Console, Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from border_cli.core.progress import JobProgress
from border_cli.display import format
from border_cli.display.output import Output, printable, write_line
from border_cli.display.tables import add_row, make_table, print_tables
from border_cli.display.views import ECHO, SILENCE_S, is_live, terminal_text
from border_cli.runs.directory import shown
from border_cli.sweeps.jobs import DONE, FAILED, RUNNING, STATES, STOPPED, WAITING, Job, Sweep
from border_cli.sweeps.results import Result
from border_cli.sweeps.scheduler import SweepView
from border_cli.sweeps.tuning import Tuner

_STYLES = {DONE: "green", FAILED: "bold red", STOPPED: "yellow", WAITING: "dim"}
_MARGIN = 8
"""Lines of the terminal that the jobs do not take."""
_BAR = 12
_WIDE = 100
"""Columns of a terminal that has room for everything; a narrower one shows the settings of the jobs instead."""
_SHOWN_TRIALS = 10
_ORDER = (RUNNING, FAILED, STOPPED, DONE, WAITING)
"""Which jobs are shown first where there is no room for all."""


def make_sweep_view(output: Output, sweep: Sweep, title: str, console_mode: str) -> SweepView:
    """The view for a value of `recorder.console`."""
    console = Console()
    if console_mode == "none":
        return SweepView()
    if console_mode == "screen" or (console_mode == "auto" and is_live(console)):
        return ScreenSweepView(output, sweep, title, console)
    return PlainSweepView(sweep)


Rows = Sequence[tuple[Job, JobProgress]]


class ScreenSweepView(SweepView):
    """A table of the jobs that is redrawn in place, below the notes."""

    def __init__(self, output: Output, sweep: Sweep, title: str, console: Console) -> None:
        self._output = output
        self._settings: dict[int, str] = {}
        self._sweep = sweep
        self._title = title
        self._console = console
        self._latest: tuple[Rows, float | None, str] = ((), None, "")
        self._began = time.monotonic()

    def show(self, rows: Rows, eta_s: float | None, stage: str) -> None:
        self._latest = rows, eta_s, stage
        self._output.draw(lambda: terminal_text(self._console, self._table(*self._latest)))

    def note(self, message: str) -> None:
        write_line(self._output.stdout, message)

    def close(self) -> None:
        self._output.draw(None)

    def _table(self, rows: Rows, eta_s: float | None, stage: str) -> Group:
        ascii_only = not self._console.encoding.startswith("utf")
        table = Table(
            title=Text(printable(self._title, self._console.encoding), "bold"),
            title_justify="left",
            box=box.ASCII if ascii_only else box.ROUNDED,
            border_style="dim",
            width=max(1, min(self._console.width - ECHO, 140)),
        )
        columns = ["job", "settings", "state", "progress", "ETA", "last", "best", "opt steps/s"]
        if self._console.width < _WIDE:
            columns = [name for name in columns if name not in ("progress", "opt steps/s")]
        for name in columns:
            left = name in ("settings", "state", "progress")
            wide = {"ratio": 1, "overflow": "ellipsis"} if name == "settings" else {}
            table.add_column(name, justify="left" if left else "right", no_wrap=True, **wide)  # type: ignore[arg-type]
        shown = self._shown(rows)
        for job, _ in rows:  # a tuning adds jobs
            if job.number not in self._settings:
                self._settings[job.number] = self._sweep.settings(job)
        for job, p in shown:
            style = _STYLES.get(job.state, "bold green" if p.phase == "training" else "bold yellow")
            fraction = ProgressBar(total=1.0, completed=p.fraction or 0.0, width=_BAR, complete_style="green")
            cells: dict[str, RenderableType] = {
                "job": str(job.number),
                "settings": Text(printable(self._settings[job.number], self._console.encoding)),
                "state": Text(p.phase if job.state == RUNNING else job.state, style),
                "progress": fraction if p.fraction is not None else "",
                "ETA": "" if p.eta_s is None else format.duration(p.eta_s),
                "last": "" if p.last is None else format.number(p.last),
                "best": "" if p.best is None else format.number(p.best),
                "opt steps/s": "" if p.opt_steps_per_sec is None else format.rate(p.opt_steps_per_sec),
            }
            table.add_row(*(cells[name] for name in columns))
        states = Counter(job.state for job, _ in rows)
        counts = ", ".join(f"{states[state]} {state}" for state in STATES if states[state])
        seconds = time.monotonic() - self._began
        eta = "unknown" if eta_s is None else format.duration(eta_s)
        hidden = len(rows) - len(shown)
        more = f", {hidden} of them not shown" if hidden else ""
        jobs = f"{format.counted(len(rows), 'job')}: {counts}{more}"
        line = "   ".join([*([stage] if stage else []), jobs, format.duration(seconds), f"ETA {eta}"])
        return Group(table, Text(line))

    def _shown(self, rows: Rows) -> Rows:
        room = max(3, self._console.height - _MARGIN)
        if len(rows) <= room:
            return rows
        by_interest = sorted(rows, key=lambda row: (_ORDER.index(row[0].state), _newest_first(row[0])))
        return sorted(by_interest[:room], key=lambda row: row[0].number)


def _newest_first(job: Job) -> int:
    return -job.number if job.state == DONE else job.number


class PlainSweepView(SweepView):
    """A line of text per change, and one about the whole sweep after a long silence."""

    def __init__(self, sweep: Sweep) -> None:
        self._sweep = sweep
        self._due = time.monotonic() + SILENCE_S

    def show(self, rows: Rows, eta_s: float | None, stage: str) -> None:
        if time.monotonic() < self._due:
            return
        states = Counter(job.state for job, _ in rows)
        words = [f"{state}={states[state]}" for state in STATES if states[state]]
        if stage:  # of jobs that are made one by one
            words.insert(0, f"{stage},")
        else:
            words.append(
                f"progress={format.share(math.fsum(p.fraction or 0.0 for _, p in rows) / len(rows))}"
            )
        if eta_s is not None:
            words.append(f"eta={format.duration(eta_s)}")
        self._line(f"sweep: {' '.join(words)}")

    def changed(self, job: Job) -> None:
        words = [f"job {job.number} ({self._sweep.settings(job)}): {job.state}"]
        for name, value in (("best", job.best), ("last", job.last)):
            if value is not None:
                words.append(f"{name}={format.number(value)}")
        if job.state in (DONE, STOPPED) and job.seconds is not None:
            words.append(f"time={format.duration(job.seconds)}")
        self._line(" ".join(words))

    def _line(self, message: str) -> None:
        self._due = time.monotonic() + SILENCE_S
        write_line(sys.stdout, message)


def print_sweep_tables(console: Console, sweep: Sweep, found: Sequence[Result]) -> None:
    """Print a row per job, and a row per configuration."""
    title = f"jobs, in {shown(sweep.folder)}"
    columns = ["job", "settings", "state", "exit code", "best", "last", "time", "run"]
    if console.is_terminal and console.width < _WIDE:
        columns = [name for name in columns if name not in ("exit code", "run")]
    jobs = make_table(title, *columns)
    for job in sweep.jobs:
        best, last = (format.MISSING if one is None else format.number(one) for one in (job.best, job.last))
        seconds = format.MISSING if job.seconds is None else format.duration(job.seconds)
        code = format.MISSING if job.exit_code is None else str(job.exit_code)
        cells = {
            "job": str(job.number),
            "settings": sweep.settings(job),
            "state": job.state,
            "exit code": code,
        }
        cells |= {"best": best, "last": last, "time": seconds, "run": job.run_dir.name}
        add_row(jobs, *(cells[name] for name in columns))
    tables = [jobs]
    if found:
        title = "configurations: interquartile means over runs, with 95% intervals"
        groups = make_table(title, "settings", "runs", "best", "last", "time")
        for one in found:
            scores = (str(one.best), str(one.last))
            add_row(groups, one.name, str(len(one.jobs)), *scores, format.duration(one.seconds))
        tables.append(groups)
    print_tables(console, tables)


def print_tuning_tables(console: Console, tuner: Tuner) -> None:
    """Print the best trials, and what those that were confirmed reach on fresh seeds."""
    # When the command has ended, a trial that still has runs to do is unfinished.
    named = {one.number: "unfinished" if one.state == RUNNING else one.state for one in tuner.trials}
    states = Counter(named.values())
    ranking = tuner.ranking[:_SHOWN_TRIALS]
    title = f"best {len(ranking)} of {format.counted(len(tuner.trials), 'trial')}: " + ", ".join(
        f"{n} {s}" for s, n in states.items()
    )
    trials = make_table(title, "trial", "settings", "score")
    for trial in ranking:
        values = " ".join(f"{key}={value}" for key, value in trial.params.items())
        score = format.MISSING if trial.score is None else format.number(trial.score)
        add_row(trials, str(trial.number), values, score)
    tables = [trials]
    if confirmed := [one for one in tuner.confirmations if one.scores]:
        table = make_table("confirmed on fresh seeds", "trial", "runs", "score", "lowest", "highest")
        for one in sorted(confirmed, key=lambda one: -fmean(one.scores)):
            figures = (format.number(of(one.scores)) for of in (fmean, min, max))
            add_row(table, str(one.trial), str(len(one.scores)), *figures)
        tables.append(table)
    print_tables(console, tables)
