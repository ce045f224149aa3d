"""Text at the start of a run, at its end, of a plan, and of border-bench: a banner, and tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.metadata import version
from io import StringIO
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from border_cli.config import presets, resolve, resource_checks, throughput
from border_cli.config.convert import as_typed, dotted, to_plain
from border_cli.config.resolve import envs_per_actor, is_reproducible, n_actors, reopen
from border_cli.config.resource_checks import Sizes
from border_cli.config.schema import GROUPS, BufferConfig, TrainConfig
from border_cli.config.throughput import Measured
from border_cli.core import format
from border_cli.core.progress import Progress, RunResult
from border_cli.core.types import Evaluation
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
        out.print(table if _fit(table, out.width) else _as_lines(table))


def _fit(table: Table, width: int) -> bool:
    """Wrap cells between words, those of the first columns first. Returns whether the table fits into the width.

    Only words longer than a quarter of the width, and than 12 columns, are broken.
    """
    texts = [[str(column.header), *map(str, column.cells)] for column in table.columns]
    longest = [max(map(len, column)) for column in texts]
    least = [
        min(max(len(word) for text in column for word in ["", *text.split()]), max(width // 4, 12))
        for column in texts
    ]
    spare = width - (3 * len(texts) + 1) - sum(least)
    for column, most, minimum in reversed(list(zip(table.columns, longest, least, strict=True))):
        column.width = min(most, minimum + max(spare, 0))
        spare -= column.width - minimum
    return spare >= 0


def _as_lines(table: Table) -> Text:
    """A table for a terminal that is too narrow for it: a line for each figure."""
    lines = [str(table.title)] if table.title else []
    for row in zip(*(map(str, column.cells) for column in table.columns), strict=True):
        lines.append(row[0])
        figures = zip(table.columns[1:], row[1:], strict=True)
        lines += [f"  {column.header}: {figure}" for column, figure in figures]
    return Text("\n".join(lines))


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
    """Print each text with its name in front, if there is one. On a terminal, lines break between words."""
    for line in filter(None, map(named_line, lines)):
        text = wrapped(line, console.width, " " * 9) if console.is_terminal else line
        console.print(text, markup=False, emoji=False, highlight=False, soft_wrap=True)


def named_line(line: tuple[str, str]) -> str:
    """A text with its name in front; empty if the text is empty."""
    name, text = line
    return f"{name:<8} {text}" if name and text else text


# -- the banner -----------------------------------------------------------------

_NOT_SHOWN = (
    *("preset.", "agent.type", "env.type", "trainer.type", "env.id", "env.entry_point"),
    *("checkpoint.replay", "buffer.beta_opt_steps", "buffer.device", "agent.lr_opt_steps"),
    *("trainer.lockstep_steps", "env.action_mask", "env.categories"),
)
"""Keys that the first lines show, or that follow from the environment and from other keys."""


def banner(
    config: TrainConfig,
    typed: Mapping[str, str],
    replay_bytes: int,
    run_dir: Path | None,
    resumed: str = "",
    decided: str = "",
) -> list[tuple[str, str]]:
    """The banner as lines with names, for `print_lines`: what runs, with which values, and what it needs of this
    machine.

    Args:
        typed: overrides by key, groups included, which are shown as they are.
        replay_bytes: what the replay takes once it is full.
        run_dir: None for a plan.
        resumed: what the run resumes from; empty for a new run.
        decided: what `auto` became, and why; empty where nothing was measured or left open.
    """
    differences, tuned = _differences(config, typed), presets.keys_of(config.preset.name)
    others = [value for key, value in differences.items() if key not in tuned]
    preset = preset_note(config)
    if len(differences) > len(others):
        n = format.counted(len(differences) - len(others), "other value")
        preset = f"{preset}; {n}, which --cfg job shows"
    kept = "not part of checkpoints" if config.checkpoint.replay == "none" else "part of each checkpoint"
    rows_of = format.counted(config.buffer.capacity, "row")
    processes, threads = resource_checks.processes(config), resource_checks.compute_threads(config)
    acting, envs = config.trainer.type, format.counted(envs_per_actor(config), "environment")
    if acting != "async":
        acting += f" with {envs}"
    else:
        each = f" of {envs}" if envs_per_actor(config) > 1 else ""
        acting += f" with {format.counted(n_actors(config), 'actor')}{each}"
    where = f"device {config.device}, seed {config.seed}"
    bits = "" if is_reproducible(config) else ", not reproducible"
    lines = [
        ("", f"border-cli {version('border-cli')}: {title(config)}, {acting}, {where}{bits}"),
        ("preset", preset),
        ("resumed", resumed),
        ("budget", _budget(config)),
        ("typed", "  ".join(f"{key}={value}" for key, value in typed.items())),
        ("changed", "  ".join(others)),
        ("replay", f"{format.size(replay_bytes)} for {rows_of}, {kept}"),
        ("auto", decided),
        ("machine", f"processes: {processes}, compute threads: {threads}"),
        ("run", "" if run_dir is None else str(run_dir)),
    ]
    return [line for line in lines if line[1]]


def title(config: TrainConfig) -> str:
    """`<agent> on <environment>`."""
    return f"{config.agent.type} on {config.env.name}"


def preset_note(config: TrainConfig) -> str:
    """A line that names the preset in use, or one that exists for this environment id, or says that there is none."""
    preset = config.preset
    if preset.name and preset.name != presets.NONE:
        return f"{preset.name}: {preset.expect}" if preset.expect else preset.name
    available = presets.preset_for(config.agent.type, config.env.name)
    if available and config.env.id.startswith("ALE/") and config.env.preprocess == "none":
        return f"none in use; env={available.partition('_')[2]} has a preset and Atari's preprocessing"
    if available:
        return f"none in use; preset={available} was tuned for {config.env.id}"
    return f"none for {title(config)}: the defaults stand"


def _budget(config: TrainConfig) -> str:
    t = config.trainer
    limits = (
        "" if t.max_env_steps is None else format.counted(t.max_env_steps, "env step"),
        "" if t.max_opts is None else format.counted(t.max_opts, "opt step"),
        "" if t.max_time is None else f"{format.duration(t.max_time)} after the start",
        "" if t.stop_return is None else f"a mean return of {format.number(t.stop_return)}",
    )
    ratio = "ratio not enforced"
    if t.opt_interval is not None:
        ratio = f"{t.opt_interval:g} env step{'' if t.opt_interval == 1 else 's'} per opt step"
    until = " or ".join(limit for limit in limits if limit)
    return f"{until}; {ratio} after {format.counted(t.warmup_period, 'env step')} of warm-up"


def _differences(config: TrainConfig, typed: Mapping[str, str]) -> dict[str, str]:
    """`key=value` of what differs from the schema's defaults, was not typed, and does not follow from other values."""
    sections: dict[str, Any] = {name: type(getattr(config, name))() for name in GROUPS}
    defaults = dotted(to_plain(TrainConfig(**sections))) | {"buffer.type": BufferConfig().type}
    differences = {}
    for key, value in dotted(to_plain(reopen(config))).items():
        name = key.removesuffix(".type")  # buffer.type is typed as buffer
        # env.kwargs.gravity is typed so, or as a part of env.kwargs
        is_typed = any(name == word or ("." in word and name.startswith(f"{word}.")) for word in typed)
        if value != defaults.get(key) and not is_typed and not key.startswith(_NOT_SHOWN):
            differences[key] = f"{name}={as_typed(value)}"
    return differences


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
        "opt steps/s, overall": format.number(result.opt_steps_per_sec),
        "samples/s, overall": format.number(result.samples_per_sec),
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
        columns = ("actor", "incarnation", "env steps", "episodes", "samples/s", "blocked", "state")
        tables.append(make_table("actors", *columns))
    for actor in result.actors:
        counts = (str(actor.actor), str(actor.incarnation), f"{actor.env_steps:,}", f"{actor.episodes:,}")
        rate = format.number(actor.samples_per_sec if actor.seconds > 0 else None)
        blocked = format.share(actor.blocked_seconds / actor.seconds if actor.seconds > 0 else None)
        add_row(tables[1], *counts, rate, blocked, actor.state)
    print_tables(console, tables)
    print_lines(console, ("bound", result.bound), ("expected", result.expected), ("next", next_command))


def _score(score: Evaluation | None) -> str:
    return format.MISSING if score is None else f"{format.number(score.mean)} at opt step {score.opt_steps:,}"


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
    counts, cpus = resolve.counts(config), machine.cpus()
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
    run["processes"] = format.count(resource_checks.processes(config))
    run["compute threads"] = f"{resource_checks.compute_threads(config)} on {format.counted(cpus, 'CPU')}"
    memory = _with_sum(resource_checks.memory_need(config, sizes)) | {"free": machine.available_memory()}
    disk = _with_sum(resource_checks.disk_need(config, sizes, config.checkpoint.replay == "full"))
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
    alone["CPUs that one actor keeps busy"] = format.number(measured.actor_cpus)
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
