"""Tables: how a run ended, what a plan says, and what border-bench has measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from io import StringIO
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from border_cli.config import budget, resources, throughput
from border_cli.config.resources import Sizes
from border_cli.config.schema import TrainConfig
from border_cli.config.throughput import Measured
from border_cli.core import format
from border_cli.core.progress import Progress, RunResult
from border_cli.core.types import ActorStat, Evaluation
from border_cli.display.output import printable, wrapped
from border_cli.runtime import machine

_PLAIN_WIDTH = 1000
"""Columns without a terminal: nothing is cut or wrapped, so that the text can be searched."""
_WORDS = ("", "state", "settings", "run", "runs of", "algorithm")
"""Columns of words stand to the left, figures to the right."""


def make_table(title: str, *columns: str) -> Table:
    """A table without rows."""
    table = Table(title=title or None, title_justify="left", title_style="bold")
    for column in columns:
        table.add_column(column, justify="left" if column in _WORDS else "right", overflow="fold")
    return table


def add_row(table: Table, *cells: str) -> None:
    """A row of plain text: brackets in it are no markup."""
    table.add_row(*(Text(printable(cell)) for cell in cells))


def print_tables(console: Console, tables: Sequence[Table]) -> None:
    """Print tables with rounded boxes on a terminal, in plain ASCII elsewhere."""
    out = console
    if not console.is_terminal:
        out = Console(file=console.file, width=_PLAIN_WIDTH, color_system=None, quiet=console.quiet)
    for table in tables:
        table.box = box.ROUNDED if console.is_terminal else box.ASCII2
        _fit(table, out.width)
        out.print(table)


def _fit(table: Table, width: int) -> None:
    """Where a table is too wide, labels in its first column wrap. No word is broken that is at most a quarter as wide."""
    texts = [[cell.plain for cell in column.cells if isinstance(cell, Text)] for column in table.columns]
    excess = Console(width=_PLAIN_WIDTH).measure(table).maximum - width
    if excess <= 0 or not any(" " in label for label in texts[0]):
        return
    longest = [max(len(word) for text in cells for word in text.split()) for cells in texts]
    for column, cells, word in zip(table.columns, texts, longest, strict=True):
        column.no_wrap = word <= width // 4 and not any(" " in text for text in cells)
    table.columns[0].width = max(max(map(len, texts[0])) - excess, min(longest[0], width // 4))


def table_text(rows: Sequence[Sequence[str]], head: Sequence[str] = ()) -> str:
    """A table as text for stdout, without colours."""
    stdout, text = Console(), StringIO()
    table = make_table("", *(head or ("", *(str(i) for i in range(1, len(rows[0]))))))
    table.show_header = bool(head)
    for row in rows:
        add_row(table, *row)
    out = Console(
        file=text, width=stdout.width, force_terminal=stdout.is_terminal, color_system=None, _environ={}
    )
    print_tables(out, [table])
    return text.getvalue()


def print_lines(console: Console, *lines: tuple[str, str]) -> None:
    """Print each text with its name in front, if there is one."""
    for name, text in lines:
        if text:
            line = f"{name:<8} {text}" if name else text
            if console.is_terminal:
                line = wrapped(line, console.width, " " * 9)
            console.print(line, markup=False, highlight=False, soft_wrap=True)


# -- how a run ended ----------------------------------------------------------


def print_end_tables(console: Console, progress: Progress, result: RunResult, next_command: str = "") -> None:
    """Print how a run ended, a row per actor, and a command to continue with.

    Rates are over the whole run, shares of waiting over this launch.
    """
    target = "none" if progress.ratio_target is None else format.number(progress.ratio_target)
    rows = {
        "ended by": result.ended_by,
        "duration": format.duration(result.seconds),
        "opt steps": f"{result.opt_steps:,}",
        "env steps": f"{result.env_steps:,}",
        "opt steps/s": format.number(result.opt_steps_per_sec),
        "samples/s": format.number(result.samples_per_sec),
        "env steps per opt step": f"{format.number(result.samples_per_opt_step)} (target {target})",
    }
    if progress.asynchronous:
        rows["actors blocked"] = format.share(result.actors_blocked)
        rows["learner blocked"] = format.share(result.learner_blocked)
    if result.start is not None:
        rows["score at the start"] = f"{format.number(result.start)} at opt step 0"
    rows["last score"] = _score(result.last)
    unconfirmed = " (unconfirmed)" if result.best is not None and not result.best_confirmed else ""
    rows[f"best score{unconfirmed}"] = _score(result.best)
    tables = [_two_columns("trainer", rows)]
    if result.actors:
        tables.append(_actor_table(result.actors))
    print_tables(console, tables)
    print_lines(console, ("bound", result.bound), ("expected", result.expected), ("next", next_command))


def _score(score: Evaluation | None) -> str:
    return format.MISSING if score is None else f"{format.number(score.mean)} at opt step {score.opt_steps:,}"


def _actor_table(actors: Sequence[ActorStat]) -> Table:
    columns = ("actor", "incarnation", "env steps", "episodes", "samples/s", "blocked", "state")
    table = make_table("actors", *columns)
    for actor in actors:
        began = actor.seconds > 0
        counts = (str(actor.actor), str(actor.incarnation), f"{actor.env_steps:,}", f"{actor.episodes:,}")
        rate = format.number(actor.samples_per_sec if began else None)
        blocked = format.share(actor.blocked_seconds / actor.seconds if began else None)
        add_row(table, *counts, rate, blocked, actor.state)
    return table


def _two_columns(title: str, rows: Mapping[str, str]) -> Table:
    table = make_table(title, "", "value")
    for row in rows.items():
        add_row(table, *row)
    return table


# -- plan and bench -----------------------------------------------------------

_BOUND = {
    "acting": "the actors",
    "learning": "the learner",
    "CPUs": "the CPUs, which both share",
    "max_time": "trainer.max_time",
}


def print_plan(console: Console, config: TrainConfig, sizes: Sizes, measured: Measured, folder: Path) -> None:
    """Print what a run would do and take, in a directory below `folder`, and how fast it would be."""
    counts, cpus = budget.counts(config), machine.cpus()
    most = "" if counts.exact else "at most "
    surely = "" if counts.exact or counts.limit == "max_time" else ", or earlier"
    run = {"ends by": f"{counts.limit}{surely}"}
    for what, n in {
        "env steps": counts.env_steps,
        "opt steps": counts.opt_steps,
        "evaluations": counts.evaluations,
        "checkpoints written": counts.checkpoints,
    }.items():
        run[what] = "known at the end" if n is None else f"{most}{format.count(n)}"
    run["processes"] = format.count(resources.processes(config))
    run["compute threads"] = f"{resources.compute_threads(config)} on {format.counted(cpus, 'CPU')}"
    memory = _with_sum(resources.memory_need(config, sizes)) | {"free": machine.available_memory()}
    disk = _with_sum(resources.disk_need(config, sizes, config.checkpoint.replay == "full"))
    disk |= {"free": machine.free_disk(folder), "one checkpoint": sizes.fixed}
    disk["one with a full replay"] = sizes.fixed + sizes.replay
    tables = [_two_columns("run", run)]
    for title, parts in (("memory", memory), ("disk", disk)):
        tables.append(_two_columns(title, {what: format.size(n) for what, n in parts.items()}))
    print_tables(console, tables)
    print_speeds(console, config, measured)


def print_speeds(console: Console, config: TrainConfig, measured: Measured) -> None:
    """Print the speeds that were measured, and by arithmetic over them those of a run."""
    alone = {}
    for n, rate in measured.acting.items():
        alone[f"one actor, {format.counted(n, 'environment')}"] = f"{format.number(rate)} env steps/s"
    for (form, n), rate in measured.learning.items():
        alone[f"learner, {form}, {format.counted(n, 'thread')}"] = f"{format.number(rate)} opt steps/s"
    predicted = throughput.predict(config, measured, machine.cpus())
    seconds, bound_by = throughput.duration(config, measured, machine.cpus())
    together = {
        "env steps/s": format.number(predicted.env_steps),
        "opt steps/s": format.number(predicted.opt_steps),
        "opt steps are": measured.form,
        "slower side": _BOUND[bound_by],
        "training, without start, evaluations and checkpoints": format.duration(seconds),
    }
    print_tables(console, [_two_columns("alone", alone), _two_columns("together", together)])


def _with_sum(parts: Mapping[str, int]) -> dict[str, int]:
    return {**parts, "in all": sum(parts.values())}
