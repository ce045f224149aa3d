"""Trials of a tuning: the settings, and the score of a run."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from border_cli.config.budget import counts
from border_cli.config.schema import TrainConfig, option
from border_cli.core.errors import BorderError, UsageError
from border_cli.core.metrics import SCORE
from border_cli.recorders.files import METRICS_FILE, read_jsonl
from border_cli.sweeps.jobs import RUNNING, Job
from border_cli.sweeps.study import PRUNERS, SAMPLERS

OBJECTIVES = ("best", "last", "area")
PRUNED = "pruned"
"""A state of a trial beside RUNNING, DONE and FAILED, which jobs have too."""
_NEVER_PRUNED = 3
"""No trial is pruned in the first third of its budget."""


@dataclass(frozen=True)
class TuningSettings:
    """The keys of `hydra.sweeper`."""

    n_trials: int = option(40, "configurations to try", ge=1)
    sampler: str = option("tpe", "what draws the values of a trial", choices=SAMPLERS)
    pruner: str = option("median", "what stops bad trials", choices=PRUNERS)
    seeds: int = option(1, "runs of each trial, with seeds from `seed` of the run on", ge=1)
    objective: str = option("best", "which score is maximised, see `objective`", choices=OBJECTIVES)
    reduction: int = option(2, "of pruner=halving: one of so many trials runs on from each rung", ge=2)
    top: int = option(3, "trials that are confirmed at the end, on fresh seeds", ge=0)
    top_seeds: int = option(5, "runs of each of them", ge=1)
    seed: int = option(0, "of the sampler", ge=0)
    space: str | None = option(
        None, "agent, or file that ends in .yaml, whose search space is used by default"
    )


@dataclass
class Trial:
    """One configuration.

    Attributes:
        number: counted from 0. in_study: its number in Optuna's study.
        params: value of each tuned key, as it is typed.
        jobs: numbers of its runs.
        score: mean over its runs, once all have ended.
        confirming: numbers of its runs on fresh seeds. fresh: scores of those that are done.
    """

    number: int
    in_study: int
    params: dict[str, str]
    jobs: list[int] = field(default_factory=list)
    state: str = RUNNING
    score: float | None = None
    confirming: list[int] = field(default_factory=list)
    fresh: list[float] = field(default_factory=list)


def prunes_from(config: TrainConfig, settings: TuningSettings) -> int:
    """The opt step from which on trials may be pruned.

    Raises UsageError for a run without evaluations, or without the budget that `pruner=halving` divides.
    """
    if config.trainer.eval_interval is None:
        raise UsageError("tuning needs evaluations", allowed="trainer.eval_interval=<opt steps>")
    whole = counts(config).opt_steps
    if whole is None and settings.pruner == "halving":
        raise UsageError(
            "hydra.sweeper.pruner=halving divides a budget of opt steps, and this run has none",
            allowed="trainer.max_opts or trainer.max_env_steps with an opt_interval, or pruner=median",
        )
    return (whole or 0) // _NEVER_PRUNED


def evaluations_of(job: Job) -> list[tuple[int, float]]:
    """(opt step, mean return) of each regular evaluation of a run, in order. Raises BorderError for a damaged file."""
    path = job.run_dir / METRICS_FILE
    try:
        records = read_jsonl(path) if path.exists() else []
    except ValueError as e:
        raise BorderError(f"{path} cannot be read: {e}") from e
    found = {one["opt_steps"]: one[SCORE] for one in records if one.get(SCORE) is not None}
    return sorted(found.items())


def objective(job: Job, kind: str) -> float:
    """What is maximised, of one run: the score of the "best" model (without one, the highest evaluation), that of the
    "last" model, or the mean height of the evaluation curve ("area").
    """
    evaluations = evaluations_of(job)
    if not evaluations:
        raise BorderError(f"job {job.number} has no evaluation")
    if kind == "best" and job.best is not None:
        return job.best
    steps, means = np.array(evaluations, np.float64).T
    if kind == "last" or len(means) == 1:
        return float(means[-1])
    if kind == "best":
        return float(means.max())
    widths = np.diff(steps)
    return float(((means[1:] + means[:-1]) / 2 * widths).sum() / widths.sum())  # the trapezoidal rule
