"""What grows with the work: start-up and memory with actors, speed with the replay's size and with actors.

    python -m bench.scaling [--repetitions 3] [--print-only]

Writes a table into docs/performance.md and draws docs/curves/scaling.png. About ten minutes on two cores.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from bench import runs
from bench.learning import opt_rate
from bench.report import Figure, machine, markdown, write_between_marks
from bench.speed import HEAD, PAGE
from bench.startup import first_steps
from border_cli import compose
from border_cli.config.schema import EnvConfig
from border_cli.envs.group import GymEnv
from border_cli.recorders.files import METRICS_FILE
from border_cli.run import build
from border_cli.run.probes import made_up

PICTURE = Path(__file__).parents[1] / "docs" / "curves" / "scaling.png"
MANY, FEW, ROWS = (1, 8, 32), (1, 2, 4, 8), (10_000, 1_000_000, 10_000_000)
HIDDEN = "agent.hidden=[64,64]"
COMMON = ("agent=dqn", "env=cartpole", "preset=none", HIDDEN, "trainer.eval_interval=null")
HARDLY_LEARNING = (
    "trainer.opt_interval=20000",
    "trainer.ratio_tolerance=20000",
    "trainer.max_env_steps=200000",
    "trainer.record_interval=1",
    "trainer.save_interval=null",
    "buffer.capacity=10000",
    "checkpoint.replay=none",
)
OPT_SECONDS = 1.0
CHUNK = 100_000


@dataclass(frozen=True)
class Case:
    """One measured quantity at several sizes. value: (size, folder) → value in `unit`."""

    title: str
    size: str
    sizes: Sequence[int]
    unit: str
    value: Callable[[int, Path], float]


def _start_up(n_actors: int, folder: Path) -> float:
    return max(first_steps(folder, n_actors))


def _memory_per_actor(n_actors: int, folder: Path) -> float:
    """Return the MiB of one actor's process, with its share of pages that processes share."""
    options = [
        *COMMON,
        f"n_actors={n_actors}",
        "trainer.max_env_steps=1000000",
        "trainer.record_interval=100",
    ]
    command = [sys.executable, "-m", "border_cli", *options, f"hydra.run.dir={folder / 'run'}"]
    program = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    try:
        metrics = folder / "run" / METRICS_FILE
        while not metrics.exists() or metrics.read_text().count("\n") < 3:
            if program.poll() is not None:
                raise SystemExit(f"border-train ended with {program.returncode}:\n{program.communicate()[1]}")
            time.sleep(0.1)
        (forkserver,) = (
            child
            for child in psutil.Process(program.pid).children()
            if "forkserver" in " ".join(child.cmdline())
        )
        actors = forkserver.children()
        return float(sum(actor.memory_full_info().pss for actor in actors)) / len(actors) / 2**20
    finally:
        program.terminate()
        program.wait()


def _opt_rate(rows: int, folder: Path) -> float:
    """Return eager opt steps/s on a full replay of one thread."""
    import torch

    del folder
    torch.set_num_threads(1)
    config = compose(*COMMON, "agent.compile=false", f"buffer.capacity={rows}")
    spec = GymEnv(EnvConfig(id="CartPole-v1")).spec
    agent, buffer = build.make_agent(config, spec), build.make_buffer(config, spec)
    rows_at_once = min(rows, CHUNK)
    items = made_up(spec, rows_at_once, config)
    for _ in range(0, rows, rows_at_once):
        buffer.push(items)
    return opt_rate(agent, buffer, OPT_SECONDS)


def _env_rate(n_actors: int, folder: Path) -> float:
    """Return the env steps/s of actors that the learner never limits."""
    runs.train(folder / "run", [*COMMON, *HARDLY_LEARNING, f"n_actors={n_actors}"])
    first, *_, last = runs.records(folder / "run")
    return float(last["env_steps"] - first["env_steps"]) / float(last["time"] - first["time"])


CASES = (
    Case("command to the first env step of every actor", "actors", MANY, "s", _start_up),
    Case("memory of one actor", "actors", MANY, "MiB", _memory_per_actor),
    Case("opt steps, DQN 64-64, eager", "rows in the replay", ROWS, "opt steps/s", _opt_rate),
    Case("env steps, CartPole", "actors", FEW, "env steps/s", _env_rate),
)


def main() -> None:
    """Measure every case, its sizes in turn."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.scaling", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--print-only", action="store_true")
    args = parser.parse_args()
    measured: dict[Case, dict[int, list[float]]] = {case: {size: [] for size in case.sizes} for case in CASES}
    for case, values in measured.items():
        for _ in range(args.repetitions):
            for size in case.sizes:
                with tempfile.TemporaryDirectory() as folder:
                    values[size].append(case.value(size, Path(folder)))
                print(case.title, size, values[size][-1], file=sys.stderr, flush=True)
    rows = [
        Figure(
            f"{case.title}, {size:,} {case.size.removesuffix('s') if size == 1 else case.size}",
            found,
            case.unit,
        ).cells()
        for case, values in measured.items()
        for size, found in values.items()
    ]
    table = markdown(HEAD[:4], [row[:4] for row in rows])
    print(table)
    if not args.print_only:
        write_between_marks(PAGE, f"\n{args.repetitions} repetitions on {machine()}.\n\n{table}\n", "scaling")
        _draw(measured)


def _draw(measured: dict[Case, dict[int, list[float]]]) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, plots = pyplot.subplots(2, 2, figsize=(10, 6), layout="constrained")
    for plot, (case, values) in zip(plots.flat, measured.items(), strict=True):
        medians = [statistics.median(found) for found in values.values()]
        spread = [
            [median - min(found) for median, found in zip(medians, values.values(), strict=True)],
            [max(found) - median for median, found in zip(medians, values.values(), strict=True)],
        ]
        plot.errorbar(list(values), medians, yerr=spread, marker="o", capsize=3)
        plot.set(title=case.title, xlabel=case.size, ylabel=case.unit, xscale="log")
        plot.set_xticks(list(values), [f"{size:,}" for size in values], fontsize="small")
        plot.set_ylim(0, 1.1 * plot.get_ylim()[1])
        plot.minorticks_off()
        plot.grid(alpha=0.3)
    figure.savefig(PICTURE, dpi=80, metadata={"Software": None})
    pyplot.close(figure)


if __name__ == "__main__":
    main()
