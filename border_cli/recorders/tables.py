"""Tables: at the end of a run what the trainer did and what each actor did, at the end of a sweep its jobs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from border_cli.core.progress import Progress, SweptJob
from border_cli.core.protocols import ActorStat
from border_cli.recorders import figures
from border_cli.recorders.outlet import Outlet, printable

_PLAIN_WIDTH = 1000
"""Columns where there is no terminal: nothing may be cut or wrapped that somebody wants to search for."""
_LEFT = ("", "state", "settings", "run")
"""Columns of words; figures stand to the right."""


@dataclass(frozen=True)
class RunEnd:
    """How a run ended, in words, and the share of this launch that the learner waited (None in sync).

    next_command: what a person may want to type now.
    """

    ended_by: str
    learner_blocked: float | None = None
    next_command: str = ""


def print_sweep_table(console: Console, jobs: Sequence[SweptJob]) -> None:
    """Print one row per job. A console that is gone is no error."""
    table = make_table("sweep", "job", "settings", "best score", "exit code", "run")
    for job in jobs:
        score = figures.MISSING if math.isnan(job.score) else figures.number(job.score)
        add_row(table, str(job.number), job.settings, score, str(job.exit_code), job.run_dir)
    print_tables(console, [table])


def print_end_tables(console: Console, progress: Progress, actors: Sequence[ActorStat], end: RunEnd) -> None:
    """Print both tables; the second only if there are actors. A console that is gone is no error."""
    tables = [trainer_table(progress, actors, end)]
    if actors:
        tables.append(actor_table(actors))
    print_tables(console, tables)
    if end.next_command:
        line = f"next     {end.next_command}"
        Outlet(lambda: console.file).attempt(
            lambda: console.print(line, markup=False, highlight=False, soft_wrap=True)
        )


def print_tables(console: Console, tables: Sequence[Table]) -> None:
    """As a terminal likes them, or a file. A console that is gone is no error."""
    outlet = Outlet(lambda: console.file)
    out = _fit_for(console)
    for table in tables:
        table.box = _box(console)
        outlet.attempt(partial(out.print, table))


def table_text(table: Table) -> str:
    """A table as text for stdout."""
    console = Console()
    table.box = _box(console)
    out = _fit_for(console)
    with out.capture() as captured:
        out.print(table)
    return captured.get()


def _fit_for(console: Console) -> Console:
    if console.is_terminal:
        return console
    return Console(file=console.file, width=_PLAIN_WIDTH, color_system=None)


def _box(console: Console) -> box.Box:
    return box.ROUNDED if console.is_terminal else box.ASCII2


def trainer_table(progress: Progress, actors: Sequence[ActorStat], end: RunEnd) -> Table:
    """One row per figure. Rates are over the whole run, shares of waiting over this launch."""
    table = make_table("trainer", "", "value")
    for row in _trainer_rows(progress, actors, end):
        add_row(table, *row)
    return table


def actor_table(actors: Sequence[ActorStat]) -> Table:
    """One row per actor, and their sum where there are several."""
    columns = ("actor", "incarnation", "env steps", "episodes", "samples/s", "blocked", "state")
    table = make_table("actors", *columns)
    for actor in actors:
        add_row(table, str(actor.actor), str(actor.incarnation), *_actor_figures(actor))
    if len(actors) > 1:
        table.add_section()
        add_row(table, "all", "", *_total_figures(actors))
    return table


def make_table(title: str, *columns: str) -> Table:
    """A table without rows."""
    table = Table(title=title, title_justify="left", title_style="bold", box=box.ASCII2)
    for column in columns:
        table.add_column(column, justify="left" if column in _LEFT else "right", overflow="fold")
    return table


def add_row(table: Table, *cells: str) -> None:
    """A row of plain text: brackets in it are no markup, and every encoding can hold it."""
    table.add_row(*(Text(printable(cell, "ascii")) for cell in cells))


def _trainer_rows(p: Progress, actors: Sequence[ActorStat], end: RunEnd) -> list[tuple[str, str]]:
    last = p.evaluations[-1] if p.evaluations else None
    rows = [
        ("ended by", end.ended_by),
        ("duration", figures.duration(p.seconds)),
        ("opt steps", f"{p.opt_steps:,}"),
        ("env steps", f"{p.env_steps:,}"),
        ("opt steps/s", figures.rate(_per_second(p.opt_steps, p.seconds))),
        ("samples/s", figures.rate(_per_second(p.env_steps, p.seconds))),
        ("env steps per opt step", f"{figures.number(p.ratio_actual)} (target {_target(p)})"),
        ("last score", _score(last)),
        ("best score", _score(p.best)),
    ]
    if p.asynchronous:
        blocked = figures.share(_blocked_share(actors)), figures.share(end.learner_blocked)
        rows[7:7] = [("actors blocked", blocked[0]), ("learner blocked", blocked[1])]
    return rows


def _target(p: Progress) -> str:
    return "none" if p.ratio_target is None else figures.number(p.ratio_target)


def _score(score: tuple[int, float] | None) -> str:
    return figures.MISSING if score is None else f"{figures.number(score[1])} at opt step {score[0]:,}"


def _actor_figures(actor: ActorStat) -> tuple[str, ...]:
    return (
        f"{actor.env_steps:,}",
        f"{actor.episodes:,}",
        figures.rate(_samples_per_sec(actor)),
        figures.share(_blocked_share([actor])),
        actor.state,
    )


def _total_figures(actors: Sequence[ActorStat]) -> tuple[str, ...]:
    """Sums; actors run side by side, so that their rates add up."""
    rates = [_samples_per_sec(actor) for actor in actors]
    return (
        f"{sum(actor.env_steps for actor in actors):,}",
        f"{sum(actor.episodes for actor in actors):,}",
        figures.rate(sum(rate for rate in rates if rate is not None)),
        figures.share(_blocked_share(actors)),
        "",
    )


def _blocked_share(actors: Sequence[ActorStat]) -> float | None:
    """Blocked time over lifetime, of all together; None before any has lived."""
    seconds = sum(actor.seconds for actor in actors)
    return sum(actor.blocked_seconds for actor in actors) / seconds if seconds > 0 else None


def _samples_per_sec(actor: ActorStat) -> float | None:
    return actor.samples_per_sec if actor.seconds > 0 else None


def _per_second(n: int, seconds: float) -> float | None:
    return n / seconds if seconds > 0 else None
