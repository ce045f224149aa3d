"""border-train with nothing but an environment's id, beside stable-baselines3's defaults. Writes docs/results/defaults.md.

    python -m bench.defaults [--only TEXT] [--list] [--page-only] [--jobs N]

Each tool trains each environment with three seeds; then its last model plays 30 new greedy episodes. It takes hours. Runs
are trained one after the other, N at a time with --jobs. Results are stored in bench/results/defaults/, and a stored
run is not repeated. The environments of MinAtar need `pip install --no-deps minatar`.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import shutil
import statistics
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from bench import runs
from bench.peers.tasks import Peer
from bench.peers.tool_runs import PROGRAMS, install, python
from bench.report import machine, markdown, number, write_between_marks
from border_cli.core.metrics import mean_interval

KEPT = Path(__file__).parent / "results" / "defaults"
RUNS = Path("runs/defaults")
PAGE = Path("docs/results/defaults.md")
OURS, SB3 = "border-train", "stable-baselines3"
PEER = Peer(
    "stable-baselines3-defaults",
    ("stable-baselines3==2.9.2", "mujoco==3.11.0", "minatar==1.0.15"),
    "sb3_defaults.py",
)
SEEDS = (1, 2, 3)
EPISODES = 30
CUT = 1_000
"""Env steps after which an episode of the evaluation ends, where the environment has no limit."""


@dataclass(frozen=True)
class Task:
    """An environment and how long it is trained."""

    agent: str
    env_id: str
    env_steps: int
    imports: str = ""

    @property
    def args(self) -> list[str]:
        """Arguments of border-train, without the seed."""
        imports = [f"env.imports=[{self.imports}]"] if self.imports else []
        return [
            *(f"agent={self.agent}", "env=gym", f"env.id={self.env_id}", *imports),
            f"trainer.max_env_steps={self.env_steps}",
        ]


TASKS = (
    *(Task("dqn", name, 100_000) for name in ("FrozenLake-v1", "FrozenLake8x8-v1", "Taxi-v4")),
    *(
        Task("dqn", f"MinAtar/{game}-v1", 100_000, "minatar.gym:register_envs")
        for game in ("Asterix", "Breakout", "Seaquest", "SpaceInvaders")
    ),
    # At the 84 to 88 opt steps/s of docs/performance/peers.md, stable-baselines3 takes 19 to 20 minutes for 100,000 env
    # steps of SAC on a core of its own, and more on a shared one.
    *(
        Task("sac", f"{name}-v5", 30_000)
        for name in ("InvertedDoublePendulum", "InvertedPendulum", "Pusher", "Reacher", "Swimmer")
    ),
)


@dataclass(frozen=True)
class Run:
    """One run of one tool."""

    task: Task
    tool: str
    seed: int

    @property
    def name(self) -> str:
        """Name of its files."""
        env = re.sub(r"[^\w.-]+", "-", self.task.env_id)
        return f"{env}_{'ours' if self.tool == OURS else 'sb3'}_seed{self.seed}"

    @property
    def path(self) -> Path:
        """Where its result is stored."""
        return KEPT / f"{self.name}.json"


ALL_RUNS = [Run(task, tool, seed) for seed in SEEDS for task in TASKS for tool in (OURS, SB3)]


def main() -> None:
    """Run what is missing, and write the page."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.defaults", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--only", default="", help="runs whose names contain this")
    parser.add_argument("--list", action="store_true", help="print what is missing, and run nothing")
    parser.add_argument("--page-only", action="store_true", help="write the page from what is there")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time")
    args = parser.parse_args()
    missing = [run for run in ALL_RUNS if args.only in run.name and not run.path.exists()]
    if args.list:
        return print("\n".join(run.name for run in missing))
    if not args.page_only:
        if any(run.tool == SB3 for run in missing):
            install(PEER)
        with ThreadPoolExecutor(args.jobs) as pool:
            for run, result in zip(missing, pool.map(finish, missing), strict=True):
                print(f"{run.name}: {result['mean']:.2f} after {result['cpu_s']:.0f} CPU-seconds", flush=True)
    return write_page()


def finish(run: Run) -> dict[str, Any]:
    """Train, evaluate, and store the result."""
    result = _ours(run) if run.tool == OURS else _theirs(run)
    result |= {
        "run": run.name,
        "seed": run.seed,
        "mean": round(statistics.fmean(result["returns"]), 4) if "returns" in result else result["mean"],
        "commit": _commit(),
        "machine": machine(),
    }
    KEPT.mkdir(parents=True, exist_ok=True)
    text = json.dumps(result, indent=1, sort_keys=True)
    run.path.write_text(re.sub(r"\[\s+([^\[\]]*?)\s+\]", _on_one_line, text) + "\n", encoding="utf-8")
    return result


def _on_one_line(match: re.Match[str]) -> str:
    return f"[{' '.join(match[1].split())}]"


def _commit() -> str:
    git = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True)
    return git.stdout.strip()


def _ours(run: Run) -> dict[str, Any]:
    run_dir = RUNS / run.name
    shutil.rmtree(run_dir, ignore_errors=True)
    run_dir.parent.mkdir(parents=True, exist_ok=True)
    args = [*run.task.args, f"seed={run.seed}"]
    command = [sys.executable, "-m", "border_cli", *args, f"hydra.run.dir={run_dir}"]
    _, cpu_s = _run(command, run_dir.with_suffix(".log"))
    evaluations = {}
    for model in ("last", "best"):
        options = [f"checkpoint={model}", f"episodes={EPISODES}", f"max_episode_steps={CUT}", "trust=true"]
        runs.evaluate(run_dir, options)
        pattern = f"{'best' if model == 'best' else 'step'}-*.json"
        (path,) = (run_dir / "eval").glob(pattern)
        evaluations[model] = json.loads(path.read_text(encoding="utf-8"))
    shutil.rmtree(run_dir / "checkpoints", ignore_errors=True)
    summary = json.loads((run_dir / "summary.json").read_text(encoding="utf-8"))
    curve = [
        [record["env_steps"], round(record["train/episode_return"], 3)]
        for record in runs.records(run_dir)
        if record.get("train/episodes")
    ]
    return {
        "tool": OURS,
        "args": args,
        "seconds": round(summary["seconds"], 1),
        "cpu_s": cpu_s,
        "env_steps": summary["counters"]["env_steps"],
        "opt_steps": summary["counters"]["opt_steps"],
        "mean": round(evaluations["last"]["mean"], 4),
        "best_mean": round(evaluations["best"]["mean"], 4),
        "curve": curve[:: max(len(curve) // 20, 1)],
        "versions": {name: version(name) for name in ("torch", "gymnasium")},
    }


def _theirs(run: Run) -> dict[str, Any]:
    task = {
        "agent": run.task.agent,
        "env_id": run.task.env_id,
        "seed": run.seed,
        "max_env_steps": run.task.env_steps,
        "episodes": EPISODES,
        "cut": CUT,
        "imports": [run.task.imports] if run.task.imports else [],
    }
    RUNS.mkdir(parents=True, exist_ok=True)
    command = [str(python(PEER)), str(PROGRAMS / PEER.program), json.dumps(task)]
    output, cpu_s = _run(command, RUNS / f"{run.name}.log")
    result: dict[str, Any] = json.loads(output.splitlines()[-1])
    return result | {"tool": SB3, "args": task, "cpu_s": cpu_s}


def _run(command: Sequence[str], log: Path) -> tuple[str, float]:
    """Run a command. Returns its output, and the CPU time of all its processes in seconds."""
    with log.open("w+", encoding="utf-8") as file:
        program = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT)
        _, status, usage = os.wait4(program.pid, 0)
        program.returncode = os.waitstatus_to_exitcode(status)
        file.seek(0)
        output = file.read()
    if program.returncode:
        raise SystemExit(f"{shlex.join(command)} ended with {program.returncode}:\n{output}")
    return output, round(usage.ru_utime + usage.ru_stime, 1)


def write_page() -> None:
    """Write the tables of the stored results into the page."""
    stored = {run: json.loads(run.path.read_text(encoding="utf-8")) for run in ALL_RUNS if run.path.exists()}
    table, verdicts = [], []
    for task in TASKS:
        ours, theirs = (
            [stored[run] for run in ALL_RUNS if (run.task, run.tool) == (task, tool) and run in stored]
            for tool in (OURS, SB3)
        )
        if not ours and not theirs:
            continue
        verdicts.append(verdict([run["mean"] for run in ours], [run["mean"] for run in theirs]))
        cells = [
            *(f"`{task.env_id}`", task.agent, f"{task.env_steps:,}", _mean(ours, "mean")),
            *(_mean(ours, "best_mean"), _mean(theirs, "mean"), verdicts[-1], _cpu(ours), _cpu(theirs)),
        ]
        table.append(cells)
    head = ["environment", "agent", "env steps", OURS, "its best model", SB3, OURS]
    head = [*head, "CPU-seconds", f"of {SB3}"]
    counts = ", ".join(
        f"{verdicts.count(word)} {word}" for word in ("better", "worse", "no difference shown")
    )
    tasks = "\n".join(f"border-train {shlex.join(task.args)} seed=1" for task in TASKS)
    parts = [
        f"{machine()}, {SB3} 2.9.2; {len(stored)} of {len(ALL_RUNS)} runs are there.",
        f"border-train's last model beside that of {SB3}: {counts}.",
        *(markdown(head, table), "## Commands", f"```\n{tasks}\n```", "## Each run", _each(stored)),
    ]
    write_between_marks(PAGE, "\n" + "\n\n".join(parts) + "\n")


def verdict(ours: Sequence[float], theirs: Sequence[float]) -> str:
    """Compare the means of the seeds: a difference is shown if they do not overlap."""
    if min(len(ours), len(theirs)) < len(SEEDS):
        return "seeds missing"
    if min(ours) > max(theirs):
        return "better"
    return "worse" if max(ours) < min(theirs) else "no difference shown"


def _mean(results: Sequence[dict[str, Any]], name: str) -> str:
    values = tuple(result[name] for result in results)
    if not values:
        return "–"
    interval = mean_interval(values)
    ends = "" if interval is None else f" ({interval[0]:,.2f} to {interval[1]:,.2f})"
    return f"{statistics.fmean(values):,.2f}{ends}"


def _cpu(results: Sequence[dict[str, Any]]) -> str:
    return number(statistics.median(result["cpu_s"] for result in results)) if results else "–"


def _each(stored: dict[Run, dict[str, Any]]) -> str:
    head = ["run", "last model", "best model", "opt steps", "CPU-seconds", "commit"]
    rows = [
        [
            *(run.name, f"{result['mean']:,.2f}"),
            f"{result['best_mean']:,.2f}" if "best_mean" in result else "–",
            *(f"{result['opt_steps']:,}", f"{result['cpu_s']:,.0f}"),
            result["commit"],
        ]
        for run, result in sorted(stored.items(), key=lambda item: item[0].name)
    ]
    return markdown(head, rows)


if __name__ == "__main__":
    main()
