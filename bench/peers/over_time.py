"""Draw returns over wall-clock time, of border-train and stable-baselines3, on four tasks.

    python -m bench.peers.over_time [--tasks TASK …] [--seeds N] [--picture-only]

For each task and seed both tools train at the same time, each with all its processes on one core. The clock starts at
the command and excludes evaluations. A run that ends before its task's budget keeps its last return. Finished runs are
stored in bench/peers/curves/ and are not repeated.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from bench.peers.tasks import PEERS, TASKS, Peer, Task
from bench.peers.tool_runs import compile_opt_step, install, start_evaluated
from bench.report import machine

STORED = Path(__file__).parent / "curves"
PICTURE = Path("docs/performance/pictures/over_time.svg")
SB3 = PEERS[0]
OURS = "border-train"
FIRST_SEED = 1001
"""No preset was tuned on this seed or the following ones."""
COLORS = {OURS: "#1f6feb", SB3.name: "#d1602b"}


@dataclass(frozen=True)
class Panel:
    """A task in the picture. budget_s: of each run, without evaluations."""

    task: Task
    budget_s: float
    seeds: int

    @property
    def name(self) -> str:
        """The environment's name without its version."""
        return self.task.env_id.partition("-")[0]


_TASKS = {task.env_id: task for task in reversed(TASKS) if task.target is not None}
PANELS = (
    Panel(_TASKS["CartPole-v1"], 30.0, 5),
    Panel(replace(_TASKS["Acrobot-v1"], eval_interval=1_000), 75.0, 5),
    Panel(replace(_TASKS["LunarLander-v3"], eval_interval=4_000), 90.0, 5),
    Panel(replace(_TASKS["HalfCheetah-v5"], options=("env=halfcheetah",), eval_interval=1_000), 200.0, 3),
)


def main() -> None:
    """Train what is missing, then draw."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.peers.over_time", description=(__doc__ or "").partition("\n")[0]
    )
    names = [panel.name for panel in PANELS]
    parser.add_argument("--tasks", nargs="+", choices=names, default=names, metavar="TASK")
    parser.add_argument("--seeds", type=int, help="the first N seeds of each task")
    parser.add_argument("--picture-only", action="store_true")
    args = parser.parse_args()
    panels = [panel for panel in PANELS if panel.name in args.tasks]
    if not args.picture_only:
        _train(panels, args.seeds)
    draw()


def _train(panels: list[Panel], n_seeds: int | None) -> None:
    install(SB3)
    STORED.mkdir(exist_ok=True)
    on = f"one of {machine()}"
    cores = sorted(os.sched_getaffinity(0))[:2]
    for i in range(max(panel.seeds for panel in panels)):
        for panel in panels:
            paths = [_path(panel, tool, FIRST_SEED + i) for tool in COLORS]
            if i >= min(panel.seeds, n_seeds or panel.seeds) or all(path.exists() for path in paths):
                continue
            compile_opt_step(panel.task)
            with ThreadPoolExecutor() as threads:
                curves = threads.map(_curve, [panel] * 2, (None, SB3), [FIRST_SEED + i] * 2, cores)
                results = dict(zip(paths, curves, strict=True))
            for path, curve in results.items():
                result = {"machine": on, "columns": ["seconds", "env_steps", "return_mean"], "curve": curve}
                path.write_text(json.dumps(result) + "\n", encoding="utf-8")
                print(path.stem, curve[-1], flush=True)


def _path(panel: Panel, tool: str, seed: int) -> Path:
    return STORED / f"{panel.name}_{tool}_{seed}.json".lower()


def _curve(panel: Panel, peer: Peer | None, seed: int, core: int) -> list[tuple[float, int, float]]:
    """Train on one core until the budget or the program ends. Returns seconds, env steps and mean of each evaluation."""
    os.sched_setaffinity(0, {core})  # of this thread and of the program that it starts
    curve = []
    with tempfile.TemporaryDirectory() as folder:
        began = time.monotonic()
        program, evaluations = start_evaluated(panel.task, peer, Path(folder) / "run", seed)
        for record in evaluations:
            seconds = time.monotonic() - began - record["eval_s"]
            curve.append((round(seconds, 2), int(record["env_steps"]), round(record["return_mean"], 2)))
            if seconds > panel.budget_s:
                program.terminate()
                break
        output, _ = program.communicate()
    if not curve or (program.returncode and curve[-1][0] <= panel.budget_s):
        raise SystemExit(f"{program.args!r} ended with {program.returncode}:\n{output}")
    return curve


def draw() -> None:
    """Draw each task that has stored runs of both tools."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    pyplot.rcParams["svg.hashsalt"] = "border-train"  # the same file from the same curves
    shown = [panel for panel in PANELS if all(_stored(panel, tool) for tool in COLORS)]
    figure, plots = pyplot.subplots(1, len(shown), figsize=(2.9 * len(shown), 2.9), layout="constrained")
    for panel, plot in zip(shown, np.atleast_1d(plots), strict=True):
        for tool, color in COLORS.items():
            curves = _stored(panel, tool)
            at = np.linspace(max(curve[0, 0] for curve in curves), panel.budget_s, 150)
            returns = np.stack([np.interp(at, curve[:, 0], curve[:, 2]) for curve in curves])
            plot.plot(at, returns.mean(axis=0), color=color, label=tool)
            plot.fill_between(at, returns.min(axis=0), returns.max(axis=0), color=color, alpha=0.2, lw=0)
            print(panel.name, tool, f"{len(curves)} seeds, mean at the end {returns[:, -1].mean():,.1f}")
        plot.set(title=panel.name, xlabel="seconds", xlim=(0, panel.budget_s))
        plot.grid(alpha=0.3)
        plot.spines[["top", "right"]].set_visible(False)
    np.atleast_1d(plots)[0].set_ylabel("mean return")
    lines, names = np.atleast_1d(plots)[0].get_legend_handles_labels()
    figure.legend(lines, names, loc="outside upper center", ncols=2, frameon=False)
    figure.savefig(PICTURE, metadata={"Date": None})
    print(f"wrote {PICTURE}")


def _stored(panel: Panel, tool: str) -> list[np.ndarray]:
    """Return the curve of each stored seed as an array (evaluations, columns)."""
    paths = [_path(panel, tool, FIRST_SEED + i) for i in range(panel.seeds)]
    return [
        np.array(json.loads(path.read_text(encoding="utf-8"))["curve"]) for path in paths if path.exists()
    ]


if __name__ == "__main__":
    main()
