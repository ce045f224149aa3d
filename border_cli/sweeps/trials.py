"""Trials of a tuning: the settings, and the score of a run."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from border_cli.config.convert import nearest
from border_cli.config.resources import counts
from border_cli.config.schema import TrainConfig
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
    """The keys of `hydra.sweeper`.

    Attributes:
        n_trials: configurations to try.
        seeds: runs of each trial, with seeds from `seed` of the run on; scores are means over them.
        objective: what is maximised: "best", the score of the best model; "last", the score of the last one; "area", the
            mean height of the evaluation curve.
        reduction: of `pruner=halving`: one of so many trials runs on from each rung.
        top, top_seeds: this many trials are confirmed at the end, each by this many runs on fresh seeds.
        seed: of the sampler.
        space: file or agent whose default search space is used where no value was typed as one.
    """

    n_trials: int = 40
    sampler: str = "tpe"
    pruner: str = "median"
    seeds: int = 1
    objective: str = "best"
    reduction: int = 2
    top: int = 3
    top_seeds: int = 5
    seed: int = 0
    space: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.space, str | None):
            raise UsageError(
                f"hydra.sweeper.space={self.space}: not allowed\nallowed: an agent, or a file that ends in .yaml"
            )
        for name, allowed in (("sampler", SAMPLERS), ("pruner", PRUNERS), ("objective", OBJECTIVES)):
            if getattr(self, name) not in allowed:
                value = getattr(self, name)
                raise UsageError(
                    f"hydra.sweeper.{name}={value}: not allowed",
                    nearest=nearest(str(value), allowed),
                    allowed=allowed,
                )
        for name, least in (
            ("n_trials", 1),
            ("seeds", 1),
            ("reduction", 2),
            ("top", 0),
            ("top_seeds", 1),
            ("seed", 0),
        ):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise UsageError(
                    f"hydra.sweeper.{name}={value}: not allowed\nallowed: a whole number >= {least}"
                )


@dataclass
class Trial:
    """One configuration.

    Attributes:
        number: counted from 0. in_study: its number in Optuna's study.
        params: value of each tuned key, as it is typed.
        jobs: numbers of its runs.
        score: of its runs, once all have ended.
    """

    number: int
    in_study: int
    params: dict[str, str]
    jobs: list[int] = field(default_factory=list)
    state: str = RUNNING
    score: float | None = None


@dataclass
class Confirmation:
    """A trial on fresh seeds. scores: of its runs that are done."""

    trial: int
    jobs: list[int]
    scores: list[float] = field(default_factory=list)


def prunes_from(config: TrainConfig, settings: TuningSettings) -> int:
    """The opt step from which on trials may be pruned.

    Raises UsageError for a run without evaluations, or without the budget that `pruner=halving` divides.
    """
    if config.trainer.eval_interval is None:
        raise UsageError("tuning needs evaluations\nallowed: trainer.eval_interval=<opt steps>")
    whole = counts(config).opt_steps
    if whole is None and settings.pruner == "halving":
        raise UsageError(
            "hydra.sweeper.pruner=halving divides a budget of opt steps, and this run has none\n"
            "allowed: trainer.max_opts or trainer.max_env_steps with an opt_interval, or pruner=median"
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
    """What is maximised, of one run. "best" is the score of its best model; without one, the highest evaluation."""
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
