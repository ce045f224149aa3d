"""Tables: how a run ended, and what a plan says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from io import StringIO
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from border_cli.config import budget, resources, throughput
from border_cli.config.resolve import envs_per_actor
from border_cli.config.resources import Sizes
from border_cli.config.schema import TrainConfig
from border_cli.config.throughput import Bench, Measured
from border_cli.core import format
from border_cli.core.progress import Progress, RunResult
from border_cli.core.types import ActorStat, Evaluation
from border_cli.display.output import printable, wrapped
from border_cli.runtime import machine

_PLAIN_WIDTH = 1000
"""Columns without a terminal: nothing is cut or wrapped, so that the text can be searched."""
_LEFT = ("", "state", "settings", "run")
"""Columns of words; figures stand to the right."""


def print_end_tables(console: Console, progress: Progress, result: RunResult, next_command: str = "") -> None:
    """Print how a run ended, a row per actor, and a command to continue with."""
    tables = [trainer_table(progress, result)]
    if result.actors:
        tables.append(actor_table(result.actors))
    print_tables(console, tables)
    print_lines(console, ("bound", result.bound), ("expected", result.expected), ("next", next_command))


def print_lines(console: Console, *lines: tuple[str, str]) -> None:
    """Print each text with its name in front, if there is one."""
    for name, text in lines:
        if text:
            line = f"{name:<8} {text}" if name else text
            if console.is_terminal:
                line = wrapped(line, console.width, " " * 9)
            console.print(line, markup=False, highlight=False, soft_wrap=True)


def print_tables(console: Console, tables: Sequence[Table]) -> None:
    """Print tables with rounded boxes on a terminal, in plain ASCII elsewhere."""
    out = console
    if not console.is_terminal:
        out = Console(file=console.file, width=_PLAIN_WIDTH, color_system=None, quiet=console.quiet)
    for table in tables:
        table.box = _box(console)
        out.print(table)


def table_text(rows: Sequence[Sequence[str]], head: Sequence[str] = ()) -> str:
    """A table as text for stdout, without colours; its first column stands to the left, figures to the right.

    Where the terminal is too narrow, no word is broken that is at most a quarter as wide.
    """
    console = Console()
    width = console.width if console.is_terminal else _PLAIN_WIDTH
    table = Table(show_header=bool(head), box=_box(console))
    for i, cells in enumerate(zip(*rows, strict=True)):
        longest = max((len(word) for cell in cells for word in cell.split()), default=0)
        table.add_column(head[i] if head else "", justify="right" if i else "left", overflow="fold")
        table.columns[i].no_wrap = longest <= width // 4 and not any(" " in cell for cell in cells)
    for row in rows:
        table.add_row(*map(Text, row))
    excess = Console(width=_PLAIN_WIDTH).measure(table).maximum - width
    if excess > 0:
        labels = [row[0] for row in rows]
        longest = max((len(word) for label in labels for word in label.split()), default=0)
        table.columns[0].width = max(max(map(len, labels)) - excess, min(longest, width // 4))
    text = StringIO()
    Console(file=text, width=width, color_system=None).print(table)
    return text.getvalue()


def _box(console: Console) -> box.Box:
    return box.ROUNDED if console.is_terminal else box.ASCII2


def trainer_table(progress: Progress, result: RunResult) -> Table:
    """One row per figure. Rates are over the whole run, shares of waiting over this launch."""
    p = progress
    target = "none" if p.ratio_target is None else format.number(p.ratio_target)
    rows = [
        ("ended by", result.ended_by),
        ("duration", format.duration(p.seconds)),
        ("opt steps", f"{p.opt_steps:,}"),
        ("env steps", f"{p.env_steps:,}"),
        ("opt steps/s", format.number(_per_second(p.opt_steps, p.seconds))),
        ("samples/s", format.number(_per_second(p.env_steps, p.seconds))),
        ("env steps per opt step", f"{format.number(p.ratio_actual)} (target {target})"),
    ]
    if p.asynchronous:
        rows.append(("actors blocked", format.share(result.actors_blocked)))
        rows.append(("learner blocked", format.share(result.learner_blocked)))
    best = "best score" if result.best_confirmed or result.best is None else "best score (unconfirmed)"
    if result.start is not None:
        rows.append(("score at the start", f"{format.number(result.start)} at opt step 0"))
    rows += [("last score", _score(result.last)), (best, _score(result.best))]
    return _table("trainer", dict(rows))


def actor_table(actors: Sequence[ActorStat]) -> Table:
    """One row per actor."""
    columns = ("actor", "incarnation", "env steps", "episodes", "samples/s", "blocked", "state")
    table = make_table("actors", *columns)
    for actor in actors:
        began = actor.seconds > 0
        add_row(
            table,
            str(actor.actor),
            str(actor.incarnation),
            f"{actor.env_steps:,}",
            f"{actor.episodes:,}",
            format.number(actor.samples_per_sec if began else None),
            format.share(actor.blocked_seconds / actor.seconds if began else None),
            actor.state,
        )
    return table


def make_table(title: str, *columns: str) -> Table:
    """A table without rows."""
    table = Table(title=title, title_justify="left", title_style="bold", box=box.ASCII2)
    for column in columns:
        table.add_column(column, justify="left" if column in _LEFT else "right", overflow="fold")
    return table


def add_row(table: Table, *cells: str) -> None:
    """A row of plain text: brackets in it are no markup."""
    table.add_row(*(Text(printable(cell)) for cell in cells))


def _score(score: Evaluation | None) -> str:
    return format.MISSING if score is None else f"{format.number(score.mean)} at opt step {score.opt_steps:,}"


def _per_second(n: int, seconds: float) -> float | None:
    return n / seconds if seconds > 0 else None


_NOT_INCLUDED = "without start, evaluations and checkpoints"
_BOUND = {
    "acting": "the actors",
    "learning": "the learner",
    "CPUs": "the CPUs, which both share",
    "max_time": "trainer.max_time",
}


def print_plan(console: Console, config: TrainConfig, sizes: Sizes, measured: Measured, folder: Path) -> None:
    """Print what a run would do and take, in a directory below `folder`, by arithmetic over measured speeds."""
    counts, cpus = budget.counts(config), machine.cpus()
    speeds = measured.speeds(envs_per_actor(config))
    seconds, bound_by = throughput.duration(config, speeds, cpus)
    most = "" if counts.exact else "at most "
    numbers = {
        "env steps": counts.env_steps,
        "opt steps": counts.opt_steps,
        "evaluations": counts.evaluations,
        "checkpoints written": counts.checkpoints,
    }
    surely = "" if counts.exact or counts.limit == "max_time" else ", or earlier"
    run = {"ends by": f"{counts.limit}{surely}"}
    for what, n in numbers.items():
        run[what] = "known at the end" if n is None else f"{most}{format.count(n)}"
    run["processes"] = format.count(resources.processes(config))
    run["compute threads"] = f"{resources.compute_threads(config)} on {format.counted(cpus, 'CPU')}"
    checkpoints = {"one checkpoint": sizes.fixed, "one with a full replay": sizes.fixed + sizes.replay}
    free_memory, free_disk = machine.available_memory(), machine.free_disk(folder)
    disk = resources.disk_need(config, sizes, config.checkpoint.replay == "full")
    time = {
        "env steps/s of one actor alone": format.number(speeds.env_steps),
        "opt steps/s of the learner alone": format.number(speeds.opt_steps),
        "opt steps are": measured.opt_steps_are,
        "slower side": _BOUND[bound_by],
        "training": format.duration(seconds),
    }
    tables = [
        _table("run", run),
        _table("memory", _sizes(resources.memory_need(config, sizes), {"free": free_memory})),
        _table("disk", _sizes(disk, {"free": free_disk, **checkpoints})),
        _table(f"time, {_NOT_INCLUDED}", time),
    ]
    print_tables(console, tables)


def print_bench(console: Console, bench: Bench) -> None:
    """Print what border-bench measured, predicts and recommends."""
    p = bench.predicted
    predicted = {
        "env steps/s": format.number(p.env_steps),
        f"{bench.opt_steps_are} opt steps/s": format.number(p.opt_steps),
        "opt steps/s with what is recommended": format.number(bench.recommended_opt_steps),
        "slower side": _BOUND[p.bound_by],
    }
    alone = {what: f"{format.number(rate)} {unit}/s" for what, (rate, unit) in bench.ceilings.items()}
    print_tables(console, [_table("alone", alone), _table(f"together, {_NOT_INCLUDED}", predicted)])
    print_lines(console, ("try", " ".join(bench.recommended)))


def _table(title: str, rows: Mapping[str, str]) -> Table:
    table = make_table(title, "", "value")
    for row in rows.items():
        add_row(table, *row)
    return table


def _sizes(parts: Mapping[str, int], others: Mapping[str, int]) -> dict[str, str]:
    """These numbers of bytes, and the sum of the first ones."""
    return {what: format.size(n) for what, n in {**parts, "in all": sum(parts.values()), **others}.items()}
