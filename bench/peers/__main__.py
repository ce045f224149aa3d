"""Compare whole runs with those of other tools, in turn on this machine. Writes their tables in docs/performance/peers.md.

    python -m bench.peers [--tasks TASK …] [--peers PEER …] [--rounds N] [--compiled-only] [--print-only]

Each peer has an environment of its own in .peers/, made by the first call. Every round runs each peer once and
border-train once, with another seed. Tables of tasks that were not run stay as they are.

A timed task ends at the first evaluation that reaches its target. Its time is that from the command to the evaluation,
without the time of evaluations. Every program has one torch thread, unless the task says otherwise. An earlier run has
compiled the opt step of border-train; a second row of the timed tasks is without that, unless `--compiled-only`.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.peers.tasks import PEERS, TASKS, Peer, Task
from bench.peers.tool_runs import compile_opt_step, install, our_rate, peer_rate, start_evaluated
from bench.report import machine, markdown, number, read_between_marks, write_between_marks

PAGE = Path("docs/performance/peers.md")
OURS = "border-train"
FIRST = "border-train, nothing compiled yet"


@dataclass(frozen=True)
class Timed:
    """A run up to its target. seconds: until its end if it missed the target."""

    seconds: float
    env_steps: int | None


def main() -> None:
    """Run the tasks and write their tables."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.peers", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--tasks", nargs="+", choices=[task.name for task in TASKS], metavar="TASK")
    parser.add_argument("--peers", nargs="*", choices=[peer.name for peer in PEERS], metavar="PEER")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--compiled-only", action="store_true")
    parser.add_argument("--print-only", action="store_true")
    args = parser.parse_args()
    peers = [peer for peer in PEERS if args.peers is None or peer.name in args.peers]
    for peer in peers:
        install(peer)
    for task in TASKS:
        if args.tasks is None or task.name in args.tasks:
            ours = (OURS,) if args.compiled_only or task.target is None else (OURS, FIRST)
            table = _compare(task, ours, [peer for peer in peers if peer.name in task.peers], args.rounds)
            print(table, flush=True)
            if not args.print_only:
                write_between_marks(PAGE, _with_table(read_between_marks(PAGE, "peers"), table), "peers")


def _with_table(section: str, table: str) -> str:
    """The section of the page with this table, in the order of the tasks and in place of an older one of its task."""
    older = [part for part in section.split("\n\n") if part.startswith("|")]
    tables = {_task_name(t): t for t in (*older, table)}
    return "\n\n".join([f"{machine()}.", *(tables[task.name] for task in TASKS if task.name in tables)])


def _task_name(table: str) -> str:
    return table.split("|")[1].strip()


def _compare(task: Task, ours: Sequence[str], peers: Sequence[Peer], rounds: int) -> str:
    """Run the task `rounds` times with each tool, in turn, and return its table. ours: rows of border-train."""
    measured: dict[str, list[Timed]] = {name: [] for name in (*ours, *(peer.name for peer in peers))}
    rates: dict[str, list[float]] = {name: [] for name in measured}
    compile_opt_step(task)
    for seed in range(1, rounds + 1):
        for name in measured:
            peer = next((peer for peer in peers if peer.name == name), None)
            with tempfile.TemporaryDirectory() as folder:
                if task.target is None:
                    rates[name].append(
                        peer_rate(task, peer, seed) if peer else our_rate(task, Path(folder), seed)
                    )
                else:
                    cache = Path(folder) / "cache" if name == FIRST else None
                    run_dir = Path(folder) / "run"
                    measured[name].append(_until_target(task, task.target, peer, run_dir, seed, cache))
            print(task.name, name, seed, (measured[name] or rates[name])[-1], file=sys.stderr, flush=True)
    return _rate_table(task, rates) if task.target is None else _time_table(task, measured)


def _until_target(
    task: Task, target: float, peer: Peer | None, run_dir: Path, seed: int, cache: Path | None
) -> Timed:
    """Train until an evaluation reaches the target, and end the program there. cache: of compiled opt steps."""
    began = time.monotonic()
    program, evaluations = start_evaluated(task, peer, run_dir, seed, cache)
    reached = None
    eval_s = 0.0
    for record in evaluations:
        eval_s = record["eval_s"]
        if record["return_mean"] >= target:
            reached = int(record["env_steps"])
            break
    seconds = time.monotonic() - began - eval_s
    program.terminate()
    output, _ = program.communicate()
    if reached is None and program.returncode:
        raise SystemExit(f"{program.args!r} ended with {program.returncode}:\n{output}")
    return Timed(seconds, reached)


def _time_table(task: Task, measured: Mapping[str, Sequence[Timed]]) -> str:
    def row(runs_of: Sequence[Timed]) -> list[str]:
        hits = [run.env_steps for run in runs_of if run.env_steps is not None]
        seconds = [run.seconds for run in runs_of]
        steps = number(statistics.median(hits)) if hits else ""
        return [f"{len(hits)} of {len(runs_of)}", steps, *_spread(seconds, "s")]

    head = [task.name, "reached", "env steps", "seconds", "range"]
    return _table(head, measured, row, lambda runs_of: statistics.median(run.seconds for run in runs_of))


def _rate_table(task: Task, rates: Mapping[str, Sequence[float]]) -> str:
    head = [task.name, "opt steps/s", "range"]
    return _table(
        head, rates, lambda values: _spread(values, ""), lambda values: 1 / statistics.median(values)
    )


def _spread(values: Sequence[float], unit: str) -> list[str]:
    space = " " if unit else ""
    return [
        f"{number(statistics.median(values))}{space}{unit}",
        f"{number(min(values))} to {number(max(values))}{space}{unit}",
    ]


def _table(
    head: Sequence[str],
    results: Mapping[str, Any],
    row: Callable[[Any], list[str]],
    cost: Callable[[Any], float],
) -> str:
    """cost: the median time of a tool's runs; the last column has it as a multiple of ours."""
    ours = cost(results[OURS])
    rows = [[name, *row(values), f"{cost(values) / ours:.2f}"] for name, values in results.items()]
    return markdown([*head, "time over border-train's"], rows)


if __name__ == "__main__":
    main()
