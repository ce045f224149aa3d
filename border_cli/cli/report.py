"""`border-report`: runs compared by what their metrics.jsonl and summary.json say, over seeds, with intervals."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.table import Table
from rich.text import Text

import border_cli
from border_cli.cli.output import exit_code, open_missing_streams, show
from border_cli.cli.words import Reader, some_text, take_apart, true_or_false
from border_cli.config.suggest import nearest, nearest_line
from border_cli.core.errors import ExitCode, UsageError
from border_cli.recorders.tables import table_text
from border_cli.report import collect, compare, write
from border_cli.runs.directory import RUNS

HELP = """\
border-report compares runs: a table with intervals over their seeds, and learning curves.

  border-report [PATH …] [key=value …]

PATH is a run, a sweep, or any folder with runs below it; without one, ./runs. Runs that differ in nothing but their seed
are one group. Only metrics.jsonl and summary.json are read. report.md and its pictures come into a folder.

Settings
  out=report                folder that is written to
  metric=eval/return_mean   whose curves are drawn
  debug=true                show tracebacks

Flags
  --json                    print everything as JSON instead of the table, and write nothing
  -h, --help  --version

Examples
  border-report
  border-report runs/sweeps/2026-11-22/10-15-00 out=report/lr
  border-report --json runs > report.json
"""
_FLAGS = {"--json": "json", "-h": "help", "--help": "help", "--version": "version"}
_READERS: dict[str, Reader] = {
    "out": lambda key, text: Path(some_text(key, text)),
    "metric": some_text,
    "debug": true_or_false,
}


@dataclass(frozen=True)
class _Arguments:
    paths: list[Path]
    out: Path = Path("report")
    metric: str = "eval/return_mean"
    debug: bool = False
    json: bool = False
    help: bool = False
    version: bool = False


def main(argv: list[str] | None = None) -> int:
    """The command. argv: the words after its name, by default those of the process. Returns the exit code."""
    words = sys.argv[1:] if argv is None else argv
    if argv is None:
        open_missing_streams()
    debug = any(word.lower() == "debug=true" for word in words)
    return exit_code(lambda: _dispatch(_parse(words)), debug)


def _dispatch(arguments: _Arguments) -> int:
    if arguments.help:
        show(HELP)
    elif arguments.version:
        show(f"border-cli {border_cli.__version__}")
    else:
        _report(arguments)
    return ExitCode.DONE


def _report(arguments: _Arguments) -> None:
    found = collect.find_runs(arguments.paths or [RUNS])
    runs = [collect.read_run(path, arguments.metric) for path in found]
    read = [run for run in runs if run is not None]
    if not read:
        names = collect.metrics_of(found)
        raise UsageError(
            f"none of {len(found)} runs has a record of {arguments.metric}\n"
            f"allowed: metric=<one of {len(names)} names in their metrics.jsonl>"
            f"{nearest_line(nearest(arguments.metric, names, cutoff=0.3))}"
        )
    groups = collect.grouped(read)
    lines = [compare.line(group) for group in groups]
    curves = {axis: {group.name: compare.band(group, axis) for group in groups} for axis in write.AXES}
    if arguments.json:
        show(json.dumps(write.as_json(lines, curves, arguments.metric), indent=1))
        return
    show(_table(lines))
    if len(read) < len(found):
        show(f"note: {len(found) - len(read)} of {len(found)} runs have no record of {arguments.metric}")
    if few := write.few_runs(lines):
        show(f"note: {few}")
    _write(arguments, lines, curves, {group.name: group.env for group in groups})


def _write(
    arguments: _Arguments, lines: Sequence[compare.Line], curves: write.Curves, envs: Mapping[str, str]
) -> None:
    """Raises UsageError for a folder that cannot be written to."""
    try:
        arguments.out.mkdir(parents=True, exist_ok=True)
        pictures = _pictures(arguments, curves, envs)
        page = arguments.out / "report.md"
        page.write_text(write.markdown(lines, arguments.metric, pictures), encoding="utf-8")
    except OSError as e:
        raise UsageError(f"out={arguments.out}: cannot be written: {e.strerror}") from e
    for path in (page, *pictures):
        show(f"written: {path}")


def _pictures(arguments: _Arguments, curves: write.Curves, envs: Mapping[str, str]) -> list[Path]:
    try:
        return write.draw(curves, envs, arguments.metric, arguments.out)
    except ModuleNotFoundError:
        show("note: no pictures without matplotlib; install it with: pip install 'border-cli[report]'")
        return []


def _table(lines: Sequence[compare.Line]) -> str:
    head, *rows = write.table(lines)
    table = Table()
    for i, name in enumerate(head):
        table.add_column(name, justify="left" if i == 0 else "right", overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    return table_text(table)


def _parse(words: Sequence[str]) -> _Arguments:
    paths, values = take_apart(words, _FLAGS, _READERS)
    return _Arguments(paths, **values)


if __name__ == "__main__":
    sys.exit(main())
