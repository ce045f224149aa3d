"""Returns of SAC on HalfCheetah over env steps and over seconds of one core, beside stable-baselines3.

    python -m bench.peers.curves [--only NAME …] [--seeds 1 2 3] [--core N]

All processes of a run, actors included, share the core, so that seconds are about CPU-seconds; the time of evaluations (20
greedy episodes every 2,500 opt steps) is left out. Curves are stored in curves.jsonl, newer ones in place of older ones,
and drawn to docs/curves/halfcheetah_time.png.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bench.peers.tasks import PEERS, Peer, Task
from bench.peers.tool_runs import compile_opt_step, install, start_evaluated

STORED = Path(__file__).with_name("curves.jsonl")
PICTURE = Path(__file__).parents[2] / "docs" / "curves" / "halfcheetah_time.png"
EVAL_INTERVAL = 2_500


@dataclass(frozen=True)
class Variant:
    """A way to train. options: of border-train; without any it is stable-baselines3."""

    name: str
    env_steps: int
    options: tuple[str, ...] = ()

    @property
    def peer(self) -> Peer | None:
        """The tool, None for border-train."""
        return None if self.options else PEERS[0]

    @property
    def task(self) -> Task:
        """What to train."""
        options = (*self.options, f"trainer.max_env_steps={self.env_steps}")
        return Task(
            name=self.name,
            env_id="HalfCheetah-v5",
            hidden=(256, 256),
            max_env_steps=self.env_steps,
            options=options,
            peers=(),
            eval_interval=EVAL_INTERVAL,
            target=float("inf"),  # with none, a peer would not evaluate
            agent="sac",
        )


BFLOAT16 = "agent.precision=bfloat16"
VARIANTS = (
    Variant(
        "preset for time, bfloat16", 150_000, ("env=halfcheetah", "preset=sac_halfcheetah_fast", BFLOAT16)
    ),
    Variant("preset for samples, bfloat16", 60_000, ("env=halfcheetah", BFLOAT16)),
    Variant("preset for samples, float32", 60_000, ("env=halfcheetah", "agent.precision=float32")),
    Variant("stable-baselines3", 60_000),
)


def main() -> None:
    """Train what is asked for and draw all that is stored."""
    names = [variant.name for variant in VARIANTS]
    parser = argparse.ArgumentParser(
        prog="python -m bench.peers.curves", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--only", nargs="*", choices=names, default=names, metavar="NAME")
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--core", type=int, default=0)
    args = parser.parse_args()
    os.sched_setaffinity(0, {args.core})
    for variant in VARIANTS:
        if variant.name not in args.only:
            continue
        if variant.peer is None:
            compile_opt_step(variant.task)
        else:
            install(variant.peer)
        for seed in args.seeds:
            curve = _train(variant, seed)
            _store({"variant": variant.name, "seed": seed, "curve": curve})
            print(variant.name, seed, curve[-1], flush=True)
    _draw()


def _train(variant: Variant, seed: int) -> list[tuple[int, float, float]]:
    """Env steps, seconds and mean return of each evaluation of a run."""
    began = time.monotonic()
    curve = []
    with tempfile.TemporaryDirectory() as folder:
        program, evaluations = start_evaluated(variant.task, variant.peer, Path(folder) / "run", seed)
        for record in evaluations:
            seconds = round(time.monotonic() - began - record["eval_s"], 1)
            curve.append((int(record["env_steps"]), seconds, round(record["return_mean"], 1)))
            print(variant.name, seed, curve[-1], file=sys.stderr, flush=True)
        output, _ = program.communicate()
    if program.returncode:
        raise SystemExit(f"{program.args!r} ended with {program.returncode}:\n{output}")
    return curve


def _store(run: dict[str, Any]) -> None:
    lines = STORED.read_text(encoding="utf-8").splitlines() if STORED.exists() else []
    by_run = {(one["variant"], one["seed"]): one for one in (*map(json.loads, lines), run)}
    STORED.write_text("".join(f"{json.dumps(by_run[key])}\n" for key in sorted(by_run)), encoding="utf-8")


def _draw() -> None:
    """Draw each run, and the median over the runs of a variant as long as all of them last."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    stored = [json.loads(line) for line in STORED.read_text(encoding="utf-8").splitlines()]
    figure, plots = pyplot.subplots(1, 2, figsize=(11, 4), sharey=True, layout="constrained")
    for color, variant in enumerate(VARIANTS):
        curves = [np.array(one["curve"]) for one in stored if one["variant"] == variant.name]
        if not curves:
            continue
        for column, plot in enumerate(plots):
            for curve in curves:
                plot.plot(curve[:, column], curve[:, 2], color=f"C{color}", alpha=0.25, linewidth=1)
            grid = np.linspace(
                max(curve[0, column] for curve in curves), min(curve[-1, column] for curve in curves), 60
            )
            median = np.median([np.interp(grid, curve[:, column], curve[:, 2]) for curve in curves], axis=0)
            plot.plot(grid, median, color=f"C{color}", label=variant.name)
    for plot, name in zip(plots, ("env steps", "seconds of one core, without evaluations"), strict=True):
        plot.set_xlabel(name)
        plot.grid(alpha=0.3)
    plots[0].set_ylabel("mean return of 20 greedy episodes")
    plots[1].legend()
    figure.savefig(PICTURE, dpi=80, metadata={"Software": None})
    pyplot.close(figure)


if __name__ == "__main__":
    main()
