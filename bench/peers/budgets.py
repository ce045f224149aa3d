"""Returns of stable-baselines3's SAC and sb3-contrib's CrossQ by CPU-minutes, for docs/results/mujoco.md.

    python -m bench.peers.budgets [--only TEXT] [--list]

Each run has one core and ends after 120 CPU-minutes, its evaluations included. They are stored as they happen, in
bench/peers/curves/. A finished run is not repeated; one that was interrupted begins anew. `python -m bench.results
--page-only` writes the page.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from bench.peers.tasks import PEERS, Task
from bench.peers.tool_runs import install, start_evaluated
from bench.report import machine

STORED = Path(__file__).parent / "curves"
SB3 = PEERS[0]
CPU_MINUTES = 120
SEEDS = (201, 202, 203)
NAMES = {"sac": SB3.name, "crossq": "sb3-contrib"}
"""The package of each agent."""


@dataclass(frozen=True)
class PeerRun:
    """One run of a peer."""

    agent: str
    env: str
    env_id: str
    seed: int

    @property
    def path(self) -> Path:
        """Where its evaluations are stored."""
        return STORED / f"budgets_{self.env}_{self.agent}_{self.seed}.json"

    @property
    def curve(self) -> list[list[float]]:
        """Env steps, seconds, CPU-seconds and mean return of each evaluation so far; [] before the first."""
        if not self.path.exists():
            return []
        stored: dict[str, Any] = json.loads(self.path.read_text(encoding="utf-8"))
        rows: list[list[float]] = stored["curve"]
        return rows

    @property
    def is_missing(self) -> bool:
        """Whether it has not used up its CPU-minutes."""
        return not self.curve or self.curve[-1][2] < 60 * CPU_MINUTES


RUNS = tuple(PeerRun(agent, "halfcheetah", "HalfCheetah-v5", seed) for seed in SEEDS for agent in NAMES)


def main() -> None:
    """Train what is missing."""
    parser = argparse.ArgumentParser(prog="python -m bench.peers.budgets")
    parser.add_argument("--only", default="", help="runs whose files have this in their name")
    parser.add_argument("--list", action="store_true", help="print what is missing, and run nothing")
    args = parser.parse_args()
    missing = [run for run in RUNS if args.only in run.path.name and run.is_missing]
    if args.list:
        return print("\n".join(run.path.stem for run in missing))
    install(SB3)
    STORED.mkdir(exist_ok=True)
    for run in missing:
        train(run)
        print(run.path.stem, run.curve[-1], flush=True)
    return None


def train(run: PeerRun) -> None:
    """Train on one core until the CPU-minutes are used up, and store each evaluation."""
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})  # of the program too, which inherits it
    # sb3-contrib's own networks of CrossQ have critics of 1,024 units; the paper's have 2,048.
    hidden = (256, 256) if run.agent == "sac" else ()
    task = Task(run.agent, run.env_id, hidden, 10_000_000, (), (SB3.name,), float("inf"), 5_000, run.agent)
    result: dict[str, Any] = {
        "machine": f"one of {machine()}",
        "packages": list(SB3.packages),
        "columns": ["env_steps", "seconds", "cpu_seconds", "return_mean"],
        "curve": [],
    }
    with tempfile.TemporaryDirectory() as folder:
        began = time.monotonic()
        program, evaluations = start_evaluated(task, SB3, Path(folder), run.seed)
        process = psutil.Process(program.pid)
        try:
            for record in evaluations:
                times = process.cpu_times()
                seconds, cpu_s = time.monotonic() - began, times.user + times.system
                row = (record["env_steps"], seconds, cpu_s, record["return_mean"])
                result["curve"].append([round(float(number), 2) for number in row])
                run.path.write_text(json.dumps(result) + "\n", encoding="utf-8")
                if cpu_s >= 60 * CPU_MINUTES:
                    break
        finally:
            program.terminate()
            output, _ = program.communicate()
    if run.is_missing:
        raise SystemExit(f"{program.args!r} ended with {program.returncode}:\n{output}")


if __name__ == "__main__":
    main()
