"""C51 and Rainbow without a range of returns: do their values survive returns that grow? Writes docs/agents/c51.md.

    python -m bench.value_ranges [--only TEXT] [--list] [--page-only]

Each agent, with its defaults and no preset, learns Acrobot, MountainCar, and CartPole whose rewards are ten times as large
from env step 10,000 on; five seeds each. Three controls show what is not the range's fault: the same CartPole with a typed
range that fits the large returns, CartPole with the same rewards all the time, and DQN, which has no range. All take some
hours. A stored run is not repeated.

The level of a run is the mean return of three evaluations in a row, the best so far. A later evaluation is a share of the
way from the return of random actions, 0, to the level, 1. The worst share of a run tells how far it fell.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import shutil
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from bench import runs
from bench.report import markdown, number, write_between_marks
from border_cli.core.metrics import SCORE
from border_cli.report.runs import read_run

KEPT = Path(__file__).parent / "results" / "value_ranges"
RUNS = Path("runs/value_ranges")
PAGE = Path("docs/agents/c51.md")
GROWS_AT = 10_000
AGENTS, SEEDS = ("c51", "rainbow"), (1, 2, 3, 4, 5)


@dataclass(frozen=True)
class Task:
    """random: return of random actions · learned: level from which on falls count · begins_at: falls before do not."""

    name: str
    file: str
    args: tuple[str, ...]
    random: float
    learned: float
    begins_at: int = 0
    agents: tuple[str, ...] = AGENTS


_CARTPOLE = ("env=gym", "env.entry_point=bench.value_ranges:growing", "trainer.max_env_steps=40000")
_OF_CARTPOLE = (22.0, 150.0, GROWS_AT)
_WITH_DQN = (*AGENTS, "dqn")
TASKS = (
    Task("Acrobot", "acrobot", ("env=acrobot", "trainer.max_env_steps=50000"), -500.0, -120.0),
    Task("MountainCar", "mountaincar", ("env=mountaincar", "trainer.max_env_steps=120000"), -200.0, -150.0),
    Task("CartPole, growing rewards", "cartpole", _CARTPOLE, *_OF_CARTPOLE, _WITH_DQN),
    Task(
        "the same with `agent.v_min=0 agent.v_max=1000`",
        "cartpole-typed",
        (*_CARTPOLE, "agent.v_min=0", "agent.v_max=1000"),
        *_OF_CARTPOLE,
    ),
    Task(
        "CartPole, the same rewards",
        "cartpole-same",
        (*_CARTPOLE, "env.kwargs={factor:1}"),
        *_OF_CARTPOLE,
        _WITH_DQN,
    ),
)


class Growing(gymnasium.Wrapper[Any, Any, Any, Any]):
    """In the actor, rewards that are larger by a factor from an env step on. In evaluations they stay as they are."""

    steps = 0
    grows = multiprocessing.current_process().name.startswith("actor")

    def __init__(self, env: gymnasium.Env[Any, Any], factor: float) -> None:
        super().__init__(env)
        self.factor = factor

    def step(self, action: Any) -> Any:
        """Step, and scale the reward."""
        self.steps += 1
        obs, reward, *rest = self.env.step(action)
        return obs, reward * (self.factor if self.grows and self.steps > GROWS_AT else 1.0), *rest


def growing(factor: float = 10.0, render_mode: str | None = None) -> gymnasium.Env[Any, Any]:
    """CartPole whose rewards grow in the middle of the training."""
    return Growing(gymnasium.make("CartPole-v1", render_mode=render_mode), factor)


@dataclass(frozen=True)
class Run:
    """One run."""

    agent: str
    task: Task
    seed: int

    @property
    def path(self) -> Path:
        """Where its result is stored."""
        return KEPT / f"{self.agent}_{self.task.file}_seed{self.seed}.json"

    @property
    def args(self) -> list[str]:
        """Arguments of border-train."""
        own = [f"agent={self.agent}", *self.task.args, "preset=none", f"seed={self.seed}", "n_actors=1"]
        return [*own, "trainer.eval_interval=1000", "checkpoint.keep=1"]


ALL_RUNS = [Run(agent, task, seed) for seed in SEEDS for task in TASKS for agent in task.agents]


def main() -> None:
    """Run what is missing, and write the table."""
    parser = argparse.ArgumentParser(prog="python -m bench.value_ranges")
    parser.add_argument("--only", default="", help="runs whose file names contain this")
    parser.add_argument("--list", action="store_true", help="print what is missing, and run nothing")
    parser.add_argument("--page-only", action="store_true", help="write the table from what is there")
    args = parser.parse_args()
    missing = [run for run in ALL_RUNS if args.only in run.path.name and not run.path.exists()]
    if args.list:
        print("\n".join(run.path.stem for run in missing))
        return
    for run in [] if args.page_only else missing:
        print(f"{run.path.stem}: level and worst share {_fall(run, measure(run))}", flush=True)
    write_between_marks(PAGE, f"\n{_table()}\n", "falls")


def measure(run: Run) -> list[list[float]]:
    """Train, and store the evaluations: env steps and mean return of each."""
    run_dir = RUNS / run.path.stem
    shutil.rmtree(run_dir, ignore_errors=True)
    runs.train(run_dir, run.args)
    curve = read_run(run_dir).curves[SCORE]
    rows = [
        [float(steps), round(float(value), 2)]
        for steps, value in zip(curve.env_steps, curve.values, strict=True)
    ]
    KEPT.mkdir(exist_ok=True)
    run.path.write_text(f"{json.dumps({'args': run.args, 'curve': rows})}\n", encoding="utf-8")
    shutil.rmtree(run_dir / "checkpoints", ignore_errors=True)
    return rows


def _fall(run: Run, curve: list[list[float]]) -> tuple[float, float] | None:
    """The highest level, and the worst share after the level was learned; None if it never was."""
    task, level, worst = run.task, -np.inf, 1.0
    for i, (env_steps, value) in enumerate(curve):
        if level >= task.learned and env_steps >= task.begins_at:
            worst = min(worst, (value - task.random) / (level - task.random))
        if i >= 2:
            level = max(level, statistics.fmean(row[1] for row in curve[i - 2 : i + 1]))
    return None if level < task.learned else (round(level, 1), round(worst, 2))


def _table() -> str:
    """A row for each task and agent that was run."""
    rows = []
    for task in TASKS:
        for agent in task.agents:
            found = [run for run in ALL_RUNS if (run.agent, run.task) == (agent, task) and run.path.exists()]
            falls = [_fall(run, json.loads(run.path.read_text(encoding="utf-8"))["curve"]) for run in found]
            levels = ", ".join("not learned" if fall is None else number(fall[0]) for fall in falls)
            worst = ", ".join("–" if fall is None else f"{fall[1]:.2f}" for fall in falls)
            if found:
                rows.append([task.name, agent, levels, worst])
    return markdown(["task", "agent", "highest level of each seed", "worst share after it was learned"], rows)


if __name__ == "__main__":
    main()
