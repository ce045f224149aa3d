"""Tuning with border_optuna beside a random search that spends as many opt steps.

    python -m bench.tuning [--repetitions 5] [--trials 40] [--env cartpole acrobot]

Each repetition tunes DQN in a search space, with Optuna's pruner and confirmation on fresh seeds. It then
searches the same space at random, with one whole run of each configuration and as many opt steps as the whole tuning did.
The best configuration of each then runs on the same seeds, which neither has seen. What is compared is the mean of the
evaluations. Results go to bench/results/tuning.jsonl after each half of a repetition; halves that are there are not run
again.
Writes a table of all repetitions, with the mean difference and its 95% interval, into docs/guides/tuning.md. A
repetition takes 10 to 20 minutes for CartPole and 30 to 60 for Acrobot on two cores.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bench.report import markdown, write_between_marks
from border_cli.config.convert import load
from border_cli.core.metrics import mean_interval
from border_cli.recorders.files import METRICS_FILE, read_jsonl
from border_cli.sweeps.jobs import Sweep

RESULTS = Path(__file__).parent / "results" / "tuning.jsonl"
PAGE = Path(__file__).parents[1] / "docs" / "guides" / "tuning.md"
WARMUP, OPT_INTERVAL, EVALUATIONS = 1_000, 4, 9


@dataclass(frozen=True)
class Task:
    """What is tuned. env_steps: of a whole run · gamma: the range of `agent.gamma` · seeds: runs of each trial."""

    env_steps: int
    gamma: str
    seeds: int

    @property
    def opt_steps(self) -> int:
        """Of a whole run."""
        return (self.env_steps - WARMUP) // OPT_INTERVAL

    @property
    def space(self) -> tuple[str, ...]:
        """The search space."""
        return (
            *("agent.lr=tag(log,interval(1e-5,1e-1))", "agent.batch_size=tag(log,int(interval(16,256)))"),
            *(f"agent.gamma=interval({self.gamma})", "agent.target_tau=tag(log,interval(1e-3,1))"),
            *("buffer.n_step=int(interval(1,10))", "agent.epsilon_final=tag(log,interval(0.005,0.5))"),
        )

    @property
    def budget(self) -> tuple[str, ...]:
        """Of a whole run."""
        return (
            f"trainer.max_env_steps={self.env_steps}",
            f"trainer.eval_interval={self.opt_steps // EVALUATIONS}",
        )

    @property
    def design(self) -> str:
        """Repetitions of another design do not count."""
        return hashlib.sha256(repr((self, self.space, self.budget, COMMON, TUNING)).encode()).hexdigest()[:8]


TASKS = {
    "cartpole": Task(20_000, gamma="0.9,0.999", seeds=1),
    # with a smaller gamma nothing is learned in this time; runs of the same values differ by more than those of CartPole
    "acrobot": Task(30_000, gamma="0.95,0.999", seeds=2),
}
COMMON = (
    *("agent=dqn", "preset=none", "agent.hidden=[64,64]", "agent.target_interval=1", "trainer=sync"),
    *(
        f"trainer.opt_interval={OPT_INTERVAL}",
        f"trainer.warmup_period={WARMUP}",
        "trainer.save_interval=null",
    ),
    *("agent.epsilon_env_steps=5000", "evaluator=inline", "evaluator.episodes=5"),
    *("threads=1", "sweep.slots=2", "recorder.tensorboard=false", "recorder.console=none"),
)
TUNING = (
    *("hydra/sweeper=border_optuna", "hydra.sweeper.sampler=tpe", "hydra.sweeper.pruner=median"),
    *("hydra.sweeper.objective=area", "hydra.sweeper.top=3", "hydra.sweeper.top_seeds=3"),
)
HEAD = ("environment", "repetition", "tuned", "random", "difference", "opt steps, tuned", "opt steps, random")
FRESH_RUNS = 10


def sweep(folder: Path, env: str, words: Sequence[str]) -> Sweep:
    """Run a sweep. Raises CalledProcessError if it fails."""
    train = str(Path(sys.executable).with_name("border-train"))
    fixed = (f"env={env}", *COMMON, *TASKS[env].budget, f"hydra.sweep.dir={folder}")
    subprocess.run([train, "-m", *fixed, *words], check=True)
    return Sweep.read(folder)


def tuned(folder: Path, env: str, trials: int, seed: int, *words: str) -> tuple[dict[str, str], int]:
    """Tune. Returns the values of the best trial, and the opt steps of all."""
    counted = (f"hydra.sweeper.n_trials={trials}", f"hydra.sweeper.seed={seed}")
    sweep(folder, env, [f"seed={1000 * seed}", *TASKS[env].space, *TUNING, *counted, *words])
    (preset,) = folder.glob("preset/best_*.yaml")
    _, _, values = load(preset)["preset"]["source"].partition(": ")  # "…, trial 3: agent.lr=0.001 …"
    jobs = {line["number"]: line for line in read_jsonl(folder / "sweep.jsonl") if "number" in line}
    return dict(word.split("=") for word in values.split()), sum(
        job["opt_steps"] or 0 for job in jobs.values()
    )


def fresh_scores(folder: Path, env: str, params: dict[str, str]) -> list[float]:
    """The mean height of the evaluation curve of each run on a fresh seed."""
    seeds = ",".join(str(10**7 + i) for i in range(FRESH_RUNS))
    values = [f"{key}={value}" for key, value in params.items()]
    done = sweep(folder, env, [*values, f"seed={seeds}"])
    curves = [read_jsonl(job.run_dir / METRICS_FILE) for job in done.jobs]
    return [
        float(np.mean([row["eval/return_mean"] for row in curve if "eval/return_mean" in row]))
        for curve in curves
    ]


def tuned_half(env: str, trials: int, seed: int) -> dict[str, Any]:
    """Tune, and run what was found on fresh seeds."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        several = f"hydra.sweeper.seeds={TASKS[env].seeds}"
        params, spent = tuned(folder / "tuned", env, trials, seed, several)
        return {
            "design": TASKS[env].design,
            "env": env,
            "trials": trials,
            "seed": seed,
            "tuned": fresh_scores(folder / "fresh", env, params),
            "tuned_params": params,
            "opt_steps": {"tuned": spent},
        }


def random_half(row: dict[str, Any]) -> dict[str, Any]:
    """Search at random with as many opt steps, and run what was found on fresh seeds. Returns the row with both halves."""
    env, steps = row["env"], row["opt_steps"]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        n = math.ceil(steps["tuned"] / TASKS[env].opt_steps)
        words = ("hydra.sweeper.sampler=random", "hydra.sweeper.pruner=none", "hydra.sweeper.top=0")
        params, spent = tuned(folder / "random", env, n, row["seed"], *words)
        scores = fresh_scores(folder / "fresh", env, params)
    return row | {"random": scores, "random_params": params, "opt_steps": steps | {"random": spent}}


def known() -> dict[tuple[str, int, int], dict[str, Any]]:
    """The newest row of each repetition of this design: (environment, trials, seed) → row. One may have a half alone."""
    rows = [json.loads(line) for line in RESULTS.read_text().splitlines()] if RESULTS.exists() else []
    return {
        (row["env"], row["trials"], row["seed"]): row
        for row in rows
        if row["design"] == TASKS[row["env"]].design
    }


def append(row: dict[str, Any]) -> None:
    """Keep a result."""
    with RESULTS.open("a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")


def table(rows: Sequence[dict[str, Any]]) -> str:
    """A line for each repetition, and one with the mean difference of each environment."""
    lines = []
    for env in dict.fromkeys(row["env"] for row in rows):
        differences = []
        for row in [row for row in rows if row["env"] == env]:
            tuned, by_chance = np.mean(row["tuned"]), np.mean(row["random"])
            differences.append(float(tuned - by_chance))
            steps = row["opt_steps"]
            scores = [f"{score:.1f}" for score in (tuned, by_chance)] + [f"{differences[-1]:+.1f}"]
            spent = [f"{steps['tuned']:,}", f"{steps['random']:,}"]
            lines.append([env, str(row["seed"]), *scores, *spent])
        if (interval := mean_interval(differences)) is not None:
            mean = "{:+.1f} ({:+.1f} to {:+.1f})".format(np.mean(differences), *interval)
            lines.append([env, "mean", "", "", mean, "", ""])
    return markdown(HEAD, lines)


def main() -> None:
    """Run what is missing, and write the table."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.tuning", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--trials", type=int, default=40)
    parser.add_argument("--env", nargs="+", default=list(TASKS), choices=TASKS)
    args = parser.parse_args()
    for seed in range(1, args.repetitions + 1):
        for env in args.env:
            row = known().get((env, args.trials, seed), {})
            if not row:
                row = tuned_half(env, args.trials, seed)
                append(row)
            if "random" not in row:
                append(random_half(row))
    whole = [row for row in known().values() if row["trials"] == args.trials and "random" in row]
    text = table(sorted(whole, key=lambda row: (row["env"], row["seed"])))
    print(text)
    write_between_marks(PAGE, f"\n{text}\n", "tuning")


if __name__ == "__main__":
    main()
