"""Trials of a tuning that run at once, with made-up evaluation curves."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from border_cli.core.progress import JobProgress
from border_cli.sweeps.jobs import Job
from border_cli.sweeps.study import TuningSettings, import_optuna
from border_cli.sweeps.tuning import Tuner, evaluations_of

CURVE = [1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5, 5.0]
"""What a run with quality 1 reaches in its evaluations after 10, 20 … 90 opt steps."""
PRUNES_FROM = 30


class Jobs:
    """Makes jobs, and runs them by writing the files of a run. The score of a job is its parameter x times CURVE."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.made: dict[tuple[str, int], Job] = {}
        self.opt_steps: list[tuple[int, int]] = []  # job, opt steps that this piece did

    def make(self, params: Mapping[str, str], more_seed: int, label: str) -> Job:
        key = params["x"], more_seed
        if key not in self.made:
            self.made[key] = Job(
                len(self.made), (f"x={key[0]}", f"seed={more_seed}"), self.folder / str(len(self.made))
            )
        self.made[key].refresh()
        return self.made[key]

    def run(self, job: Job, until: int | None, quality: float | None = None) -> None:
        """Run to the evaluation at this opt step, or to the end of the budget. quality: in place of x."""
        x = float(job.overrides[0][2:]) if quality is None else quality
        before = len(evaluations_of(job))
        n = len(CURVE) if until is None else until // 10
        job.run_dir.mkdir(exist_ok=True)
        (job.run_dir / "config.yaml").write_text("{}\n")
        with (job.run_dir / "metrics.jsonl").open("a") as file:
            for i in range(before, n):
                file.write(json.dumps({"opt_steps": 10 * (i + 1), "eval/return_mean": x * CURVE[i]}) + "\n")
        status = "done" if until is None else "stopped"
        score = {"mean": x * CURVE[n - 1]}
        summary = {
            "status": status,
            "best_score": score,
            "last_score": score,
            "counters": {"opt_steps": 10 * n},
        }
        (job.run_dir / "summary.json").write_text(json.dumps(summary))
        self.opt_steps.append((job.number, 10 * (n - before)))
        job.refresh()


def tuner_of(jobs: Jobs, retry: bool = False, **settings: Any) -> Tuner:
    """A tuner whose first trials are 0.9, 0.8 … 0.1."""
    space, notes = {"x": import_optuna().distributions.FloatDistribution(0.0, 1.0)}, list[str]()
    checked = TuningSettings(**{"sampler": "random", **settings})
    tuner = Tuner(jobs.folder, checked, space, jobs.make, notes.append, PRUNES_FROM, retry)
    if not tuner.study.trials:
        for n in range(9, 0, -1):
            tuner.study._study.enqueue_trial({"x": n / 10})
    return tuner


def run_all(tuner: Tuner, jobs: Jobs, most: int = 1000) -> None:
    """One job after the other, each to its end unless the tuner stops it."""
    for _ in range(most):
        job = tuner.next()
        if job is None:
            return
        x, stopped_at = float(job.overrides[0][2:]), None
        for n, height in enumerate(CURVE, 1):
            if not tuner.may_continue(job, JobProgress("training", last=x * height, last_at=10 * n)):
                stopped_at = 10 * n
                break
        jobs.run(job, stopped_at)
        tuner.ended(job)
