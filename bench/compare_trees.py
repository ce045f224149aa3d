"""Speed of two source trees, measured in turn within one run.

    python -m bench.compare_trees OLD NEW [--repetitions 5] [--only startup,runs,parts]

OLD and NEW are folders or commits. The table has the median, the least and the greatest of either, and NEW over OLD: the
ratio of the medians, and the least and the greatest ratio of one repetition. `startup` and `runs` start the command line of
each tree. `parts` calls the functions of each tree's own `bench`: `learning.bare_update_rate`, and `measure` of `acting`,
`replay` (with two of its capacities) and `transport`.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from bench.report import machine, markdown, number
from bench.runs import records
from bench.trees import Tree, finish, source_tree

Figures = dict[tuple[str, str], float]
"""Value by name and unit."""

COMMON = (
    "preset=none threads=1 trainer.max_env_steps=null trainer.eval_interval=null trainer.save_interval=null"
)
DQN = (
    f"agent=dqn env=cartpole {COMMON} agent.batch_size=64 agent.hidden=[256,256] trainer.opt_interval=2.0 "
    "trainer.warmup_period=1000"
)
SAC = (
    f"agent=sac env=pendulum {COMMON} agent.batch_size=256 agent.hidden=[256,256] trainer.opt_interval=1.0 "
    "trainer.warmup_period=1000"
)
ACTING = (
    f"agent=dqn env=cartpole {COMMON} agent.hidden=[256,256] agent.epsilon_start=0.05 trainer.warmup_period=1000 "
    "trainer.opt_interval=20000 trainer.max_opts=5 trainer.record_interval=1"
)
RUNS = {
    "DQN, 1 actor": ("opt_steps", f"{DQN} trainer.max_opts=20000"),
    "DQN, 8 actors": ("opt_steps", f"{DQN} trainer.max_opts=20000 n_actors=8"),
    "DQN, lockstep with 8 actors": (
        "opt_steps",
        f"{DQN} trainer.max_opts=10000 trainer.lockstep=true n_actors=8",
    ),
    "DQN, sync": ("opt_steps", f"{DQN} trainer.max_opts=10000 trainer=sync"),
    "SAC, 1 actor": ("opt_steps", f"{SAC} trainer.max_opts=4000"),
    "SAC, sync": ("opt_steps", f"{SAC} trainer.max_opts=4000 trainer=sync"),
    "one actor, hardly any opt steps": ("env_steps", ACTING),
}
"""What is counted, and the options."""
STARTUP = (
    f"agent=dqn {COMMON} env=gym env.entry_point=bench.clocked_env:ClockedCartPole trainer.warmup_period=1000 "
    "trainer.max_opts=1"
)
PARTS = """
import json
from bench import acting, learning, replay, transport
replay.CAPACITIES = 10_000, 1_000_000
print(json.dumps(["bare update", "opt steps/s", learning.bare_update_rate()]))
for figure in [*acting.measure(1), *replay.measure(1), *transport.measure(1)]:
    print(json.dumps([figure.name, figure.unit, figure.values[0]]))
"""


def main() -> None:
    """Measure both trees in turn and print the table."""
    parser = argparse.ArgumentParser(
        prog="bench.compare_trees", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("old")
    parser.add_argument("new")
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--only", default=",".join(_MEASUREMENTS), help="of: %(default)s")
    chosen = parser.parse_args()
    print(f"{chosen.old} and {chosen.new}, {chosen.repetitions} repetitions on {machine()}\n", flush=True)
    with source_tree(chosen.old) as old, source_tree(chosen.new) as new:
        for tree in (old, new):  # so that no measured start compiles Python files
            tree.run(["-m", "compileall", "-q", "border_cli", "bench"])
        for name in chosen.only.split(","):
            began = time.monotonic()
            pairs = [_in_turn(_MEASUREMENTS[name], (old, new), i) for i in range(chosen.repetitions)]
            print(_table(pairs))
            print(f"\n{name} took {time.monotonic() - began:.0f} s\n", flush=True)


def _in_turn(measure: Callable[[Tree, Path], Figures], trees: Sequence[Tree], turn: int) -> list[Figures]:
    """Measure both trees, in alternating order. Returns the figures of each tree."""
    by_tree: dict[int, Figures] = {}
    for i in (0, 1) if turn % 2 == 0 else (1, 0):
        with tempfile.TemporaryDirectory() as folder:
            by_tree[i] = measure(trees[i], Path(folder))
    return [by_tree[0], by_tree[1]]


def _startup(tree: Tree, folder: Path) -> Figures:
    """Return the seconds from the command to the first env step of the first and last actor, and to the first record."""
    figures: Figures = {}
    for n_actors in (1, 8):
        run, marks = folder / f"run-{n_actors}", folder / f"marks-{n_actors}"
        marks.mkdir()
        began = time.monotonic()
        process = tree.start_training(
            run, [*STARTUP.split(), f"env.kwargs.folder={marks}", f"n_actors={n_actors}"]
        )
        metrics = run / "metrics.jsonl"
        while process.poll() is None and not (metrics.exists() and metrics.stat().st_size):
            time.sleep(0.005)
        recorded = time.monotonic()
        finish(process)
        steps = [float(mark.read_text(encoding="utf-8")) for mark in marks.iterdir()]
        for event, at in (("first env step", min(steps)), ("first record", recorded)):
            figures[f"command to the {event}, {n_actors} actor(s)", "s"] = at - began
        figures[f"command to an env step of every actor, {n_actors} actor(s)", "s"] = max(steps) - began
    return figures


def _runs(tree: Tree, folder: Path) -> Figures:
    """Return the steps per second of complete runs, from the record after the warm-up to the last one."""
    figures: Figures = {}
    for i, (name, (counter, options)) in enumerate(RUNS.items()):
        tree.train(folder / f"run-{i}", options.split())
        rows = [record for record in records(folder / f"run-{i}") if "throughput/samples_total" in record]
        first, last = rows[0], rows[-1]
        rate = (last[counter] - first[counter]) / (last["time"] - first["time"])
        figures[name, f"{counter.replace('_', ' ')}/s"] = rate
    return figures


def _parts(tree: Tree, folder: Path) -> Figures:
    """Return the figures of each tree's own micro-benchmarks."""
    del folder
    lines = [line for line in tree.run(["-c", PARTS]).splitlines() if line.startswith("[")]
    return {(name, unit): value for name, unit, value in map(json.loads, lines)}


_MEASUREMENTS = {"startup": _startup, "runs": _runs, "parts": _parts}


def _table(pairs: Sequence[Sequence[Figures]]) -> str:
    """Format a row per figure. Figures of only one tree are listed below the table."""
    rows = []
    known, also = pairs[0]
    for key in [key for key in known if key in also]:
        old, new = [pair[0][key] for pair in pairs], [pair[1][key] for pair in pairs]
        ratio = statistics.median(new) / statistics.median(old)
        ratios = [b / a for a, b in zip(old, new, strict=True)]
        spread = f"{min(ratios):.3f} to {max(ratios):.3f}"
        rows.append([key[0], key[1], _spread(old), _spread(new), f"{ratio:.3f}", spread])
    table = markdown(("", "unit", "old", "new", "new/old", "of a repetition"), rows)
    alone = sorted(name for name, _ in known.keys() ^ also.keys())
    return f"{table}\n\nin one tree only: {'; '.join(alone)}" if alone else table


def _spread(values: Sequence[float]) -> str:
    return f"{number(statistics.median(values))} ({number(min(values))} to {number(max(values))})"


if __name__ == "__main__":
    main()
