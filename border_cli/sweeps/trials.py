"""Trials of a tuning: the settings, the rungs of a run, and the score of a run at a rung."""

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
from border_cli.sweeps.study import SAMPLERS

PRUNERS = ("halving", "median", "none")
OBJECTIVES = ("best", "last", "area")
PAUSED, PRUNED = "paused", "pruned"
"""States of a trial beside RUNNING, DONE and FAILED, which jobs have too. Paused: at a rung, and not promoted so far."""


@dataclass(frozen=True)
class TuningSettings:
    """The keys of `hydra.sweeper`.

    Attributes:
        n_trials: configurations to try.
        seeds: runs of each trial, with seeds from `seed` of the run on; scores are means over them.
        objective: what is maximised: "best", the score of the best model; "last", the score of the last one; "area", the
            mean height of the evaluation curve.
        reduction, rungs: of successive halving: one of `reduction` trials is promoted, `rungs - 1` times at most.
        top, top_seeds: this many trials are confirmed at the end, each by this many runs on fresh seeds.
        seed: of the sampler.
        space: file or agent whose default search space is used where no value was typed as one.
    """

    n_trials: int = 40
    sampler: str = "gp"
    pruner: str = "halving"
    seeds: int = 1
    objective: str = "best"
    reduction: int = 2
    rungs: int = 2
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
            ("rungs", 1),
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
        number: counted from 0. in_study: its number in Optuna's study, which counts each rung of a trial as a trial.
        params: value of each tuned key, as it is typed.
        jobs: numbers of its runs.
        rung: index of the rung that its runs are on the way to, or where they have paused.
        targets: opt step of each rung; None for the whole budget.
        scores: at the rungs that it has reached.
    """

    number: int
    in_study: int
    params: dict[str, str]
    jobs: list[int] = field(default_factory=list)
    targets: list[int | None] = field(default_factory=lambda: [None])
    rung: int = 0
    state: str = RUNNING
    scores: list[float] = field(default_factory=list)

    @property
    def target(self) -> int | None:
        """The opt step whose evaluation ends the present rung; None for the end of the budget."""
        return self.targets[self.rung]


@dataclass
class Confirmation:
    """A trial on fresh seeds. scores: of its runs that are done."""

    trial: int
    jobs: list[int]
    scores: list[float] = field(default_factory=list)


def rungs_of(config: TrainConfig, settings: TuningSettings) -> list[int | None]:
    """The opt step of each rung: a multiple of eval_interval, and None for the last, the end of the budget.

    Raises UsageError for a run that has no rungs.
    """
    interval, whole = config.trainer.eval_interval, counts(config).opt_steps
    if interval is None:
        raise UsageError("tuning needs evaluations\nallowed: trainer.eval_interval=<opt steps>")
    if settings.pruner != "halving":
        return [None]
    if whole is None:
        raise UsageError(
            "hydra.sweeper.pruner=halving divides a budget of opt steps, and this run has none\n"
            "allowed: trainer.max_opts or trainer.max_env_steps with an opt_interval, or pruner=median"
        )
    shares = (settings.reduction**-k for k in range(settings.rungs - 1, 0, -1))
    steps = {max(interval, round(whole * share / interval) * interval) for share in shares}
    return [*sorted(step for step in steps if step < whole), None]


def evaluations_of(job: Job) -> list[tuple[int, float]]:
    """(opt step, mean return) of each regular evaluation of a run, in order. Raises BorderError for a damaged file."""
    path = job.run_dir / METRICS_FILE
    try:
        records = read_jsonl(path) if path.exists() else []
    except ValueError as e:
        raise BorderError(f"{path} cannot be read: {e}") from e
    found = {one["opt_steps"]: one[SCORE] for one in records if one.get(SCORE) is not None}
    return sorted(found.items())


def objective(job: Job, kind: str, until: int | None) -> float:
    """What is maximised, of one run. until: evaluations count up to the first one at or after this opt step; None for all.

    "best" is the confirmed score of the run's best model, whatever `until` is; without one, the highest evaluation.
    """
    evaluations = evaluations_of(job)
    if until is not None:
        end = next((step for step, _ in evaluations if step >= until), until)
        evaluations = [one for one in evaluations if one[0] <= end]
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
