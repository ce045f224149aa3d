"""Tables: how a run ended, and what a plan says."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from io import StringIO

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from border_cli.config.resolve import n_actors
from border_cli.config.schema import TrainConfig
from border_cli.config.throughput import Bench, Plan
from border_cli.core.progress import Progress, RunResult
from border_cli.core.types import ActorStat, Evaluation
from border_cli.display import format
from border_cli.display.advice import advice
from border_cli.display.output import printable

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
            if console.is_terminal and name not in (
                "next",
                "try",
                "best",
            ):  # what is to be copied stays in one piece
                line = textwrap.fill(line, console.width, subsequent_indent=" " * 9, break_on_hyphens=False)
            console.print(line, markup=False, highlight=False, soft_wrap=True)


def print_tables(console: Console, tables: Sequence[Table]) -> None:
    """Print tables with rounded boxes on a terminal, in plain ASCII elsewhere."""
    out = console
    if not console.is_terminal:
        out = Console(file=console.file, width=_PLAIN_WIDTH, color_system=None)
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
        ("opt steps/s", format.rate(_per_second(p.opt_steps, p.seconds))),
        ("samples/s", format.rate(_per_second(p.env_steps, p.seconds))),
        ("env steps per opt step", f"{format.number(p.ratio_actual)} (target {target})"),
    ]
    if p.asynchronous:
        rows.append(("actors blocked", format.share(result.actors_blocked)))
        rows.append(("learner blocked", format.share(result.learner_blocked)))
    best = "best score" if result.best_confirmed or result.best is None else "best score (unconfirmed)"
    if result.start is not None:
        rows.append(("score at the start", f"{format.number(result.start)} at opt step 0"))
    rows += [("last score", _score(result.last)), (best, _score(result.best))]
    table = make_table("trainer", "", "value")
    for row in rows:
        add_row(table, *row)
    return table


def actor_table(actors: Sequence[ActorStat]) -> Table:
    """One row per actor, and their sum where there are several."""
    columns = ("actor", "incarnation", "env steps", "episodes", "samples/s", "blocked", "state")
    table = make_table("actors", *columns)
    for actor in actors:
        add_row(table, str(actor.actor), str(actor.incarnation), *_figures([actor]), actor.state)
    if len(actors) > 1:
        table.add_section()
        add_row(table, "all", "", *_figures(actors), "")
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


def _score(score: Evaluation | None) -> str:
    return format.MISSING if score is None else f"{format.number(score.mean)} at opt step {score.opt_steps:,}"


def _figures(actors: Sequence[ActorStat]) -> tuple[str, ...]:
    """Sums over these actors. They run side by side, so their rates add up."""
    seconds = sum(actor.seconds for actor in actors)
    blocked = sum(actor.blocked_seconds for actor in actors) / seconds if seconds > 0 else None
    rates = [actor.samples_per_sec for actor in actors if actor.seconds > 0]
    return (
        f"{sum(actor.env_steps for actor in actors):,}",
        f"{sum(actor.episodes for actor in actors):,}",
        format.rate(sum(rates) if rates else None),
        format.share(blocked),
    )


def _per_second(n: int, seconds: float) -> float | None:
    return n / seconds if seconds > 0 else None


_BOUND = {
    "acting": "the actors",
    "learning": "the learner",
    "CPUs": "the CPUs, which both share",
    "max_time": "trainer.max_time",
}


def print_plan(console: Console, plan: Plan) -> None:
    """Print what a run would do and take."""
    counts, one = plan.counts, plan.checkpoint
    does = make_table("run", "", "value")
    ends_surely = counts.exact or counts.limit == "max_time"
    add_row(does, "ends by", counts.limit if ends_surely else f"{counts.limit}, or earlier")
    for what, n in (
        ("env steps", counts.env_steps),
        ("opt steps", counts.opt_steps),
        ("evaluations", counts.evaluations),
        ("checkpoints written", counts.checkpoints),
    ):
        most = "" if counts.exact else "at most "
        add_row(does, what, "known at the end" if n is None else f"{most}{format.count(n)}")
    add_row(does, "processes", format.count(plan.processes))
    add_row(does, "compute threads", f"{plan.threads} on {format.counted(plan.cpus, 'CPU')}")

    memory = make_table("memory", "", "bytes")
    _add_sizes(memory, plan.memory)
    add_row(memory, "free", format.size(plan.free_memory))

    disk = make_table("disk", "", "bytes")
    add_row(disk, "one checkpoint", format.size(one.fixed))
    add_row(disk, "one with a full replay", format.size(one.fixed + one.replay))
    disk.add_section()
    _add_sizes(disk, plan.disk)
    add_row(disk, "free", format.size(plan.free_disk))

    time = make_table("time (estimate)", "", "value")
    add_row(time, "env steps/s of one actor alone", format.rate(plan.speeds.env_steps))
    add_row(time, "opt steps/s of the learner alone", format.rate(plan.speeds.opt_steps))
    add_row(time, "opt steps are", plan.opt_steps_are)
    add_row(time, "slower side", _BOUND[plan.duration.bound_by])
    add_row(time, "training", format.duration(plan.duration.seconds))
    add_row(time, "not included", "start, evaluations, checkpoints")
    print_tables(console, [does, memory, disk, time])


def print_bench(console: Console, config: TrainConfig, found: Bench, cores: int | None) -> None:
    """Print what border-bench measured, predicts and recommends."""
    ceilings = make_table("alone", "", "per second", "")
    for what, (rate, unit) in found.ceilings.items():
        add_row(ceilings, what, format.rate(rate), unit)
    p, predicted = found.predicted, make_table("together", "", "predicted")
    add_row(predicted, "env steps/s", format.rate(p.env_steps))
    add_row(predicted, f"{found.opt_steps_are} opt steps/s", format.rate(p.opt_steps))
    add_row(predicted, "opt steps/s with what is recommended", format.rate(found.recommended_opt_steps))
    add_row(predicted, "slower side", _BOUND[p.bound_by])
    add_row(predicted, "not included", "start, evaluations, checkpoints")
    print_tables(console, [ceilings, predicted])
    t = config.trainer
    progress = Progress(
        phase="training",
        opt_steps=1,
        env_steps=t.warmup_period + 1,
        warmup_period=t.warmup_period,
        ratio_target=t.opt_interval,
        ratio_actual=p.env_steps / p.opt_steps,
        actors_blocked=p.actors_blocked,
        learner_blocked=p.learner_blocked,
        n_actors=n_actors(config),
        asynchronous=t.type == "async",
    )
    bound = advice(progress, cores)
    if p.bound_by == "CPUs":
        bound = "CPU-bound: actors and learner share the CPUs; a larger trainer.opt_interval needs fewer opt steps"
    print_lines(console, ("bound", bound), ("try", " ".join(found.recommended)))


def _add_sizes(table: Table, sizes: Mapping[str, int]) -> None:
    for what, nbytes in sizes.items():
        add_row(table, what, format.size(nbytes))
    table.add_section()
    add_row(table, "in all", format.size(sum(sizes.values())))
