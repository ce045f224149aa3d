"""The plan of a run as a person reads it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from rich.console import Console
from rich.table import Table

from border_cli.config.plan import Counts, Plan
from border_cli.recorders import figures
from border_cli.recorders.tables import add_row, make_table, print_tables

UNKNOWN = "known at the end"
_BOUND = {
    "acting": "the actors",
    "learning": "the learner",
    "CPUs": "the CPUs, which both share",
    "max_time": "trainer.max_time",
}


def print_plan(console: Console, plan: Plan) -> None:
    """Print it. A console that is gone is no error."""
    print_tables(console, [_does(plan), _memory(plan), _disk(plan), _time(plan)])


def _does(plan: Plan) -> Table:
    table = make_table("the run does", "", "value")
    for row in _does_rows(plan.counts):
        add_row(table, *row)
    return table


def _does_rows(counts: Counts) -> Iterator[tuple[str, str]]:
    yield (
        "ends by",
        counts.limit if counts.exact or counts.limit == "max_time" else f"{counts.limit}, or earlier",
    )
    for what, n in (
        ("env steps", counts.env_steps),
        ("opt steps", counts.opt_steps),
        ("evaluations", counts.evaluations),
        ("checkpoints written", counts.checkpoints),
    ):
        yield what, UNKNOWN if n is None else f"{'' if counts.exact else 'at most '}{figures.count(n)}"


def _memory(plan: Plan) -> Table:
    table = make_table("it takes of the memory", "", "bytes")
    _add_sizes(table, plan.memory)
    add_row(table, "free", "-" if plan.free_memory is None else figures.size(plan.free_memory))
    add_row(table, "processes", figures.count(plan.processes))
    add_row(table, "compute threads", f"{plan.threads} on {figures.counted(plan.cpus, 'CPU')}")
    return table


def _disk(plan: Plan) -> Table:
    one = plan.checkpoint
    table = make_table("it takes of the disk", "", "bytes")
    add_row(table, "one checkpoint", figures.size(one.fixed))
    add_row(table, "one with a full replay", figures.size(one.fixed + one.replay))
    table.add_section()
    _add_sizes(table, plan.disk)
    add_row(table, "free", figures.size(plan.free_disk))
    return table


def _add_sizes(table: Table, sizes: Mapping[str, int]) -> None:
    for what, nbytes in sizes.items():
        add_row(table, what, figures.size(nbytes))
    table.add_section()
    add_row(table, "in all", figures.size(sum(sizes.values())))


def _time(plan: Plan) -> Table:
    table = make_table("it may last (an estimate)", "", "value")
    add_row(table, "env steps/s of one actor alone", figures.rate(plan.speeds.env_steps))
    add_row(table, "opt steps/s of the learner alone", figures.rate(plan.speeds.opt_steps))
    add_row(table, "slower side", _BOUND[plan.duration.bound_by])
    add_row(table, "training", figures.duration(plan.duration.seconds))
    add_row(table, "to be added", "start, evaluations, checkpoints")
    return table
