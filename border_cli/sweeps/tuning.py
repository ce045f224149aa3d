"""Tuning: trials of hyperparameters, which Optuna chooses and prunes.

The runs of a trial report each evaluation. Optuna's pruner stops a trial that is worse than the others at the same opt
step; a trial that is not pruned runs to its end. When all have ended, the best are confirmed: they run again on fresh
seeds.

Optuna's journal has the trials. Their jobs are found by their values: a sweep has one job with the same overrides.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from border_cli.config.budget import counts
from border_cli.config.schema import TrainConfig
from border_cli.core.errors import BorderError, UsageError
from border_cli.core.format import counted, number
from border_cli.core.metrics import SCORE
from border_cli.core.progress import JobProgress
from border_cli.recorders.files import METRICS_FILE, read_jsonl
from border_cli.sweeps.jobs import DONE, FAILED, RUNNING, WAITING, Job
from border_cli.sweeps.scheduler import JobQueue
from border_cli.sweeps.study import Study, TuningSettings

PRUNED = "pruned"
"""A state of a trial beside RUNNING, DONE and FAILED, which jobs have too."""
_STATES = {"RUNNING": RUNNING, "COMPLETE": DONE, "PRUNED": PRUNED, "FAIL": FAILED}
"""By Optuna's names."""
_NEVER_PRUNED = 3
"""No trial is pruned in the first third of its budget."""
_EXHAUSTED = "exhausted"
FRESH_SEEDS = 1_000_000
"""What is added to the seed of a run where the best trials are confirmed."""

MakeJob = Callable[[Mapping[str, str], int, str], Job]
"""(values of keys, what is added to the seed, label) → the job of such a run."""


@dataclass
class Trial:
    """One configuration.

    Attributes:
        number: counted from 0. in_study: its number in Optuna's study.
        params: value of each tuned key, as it is typed.
        jobs: its runs. confirming: its runs on fresh seeds.
        score: mean over its runs, once all have ended. fresh: scores of those runs on fresh seeds that are done.
    """

    number: int
    in_study: int
    params: dict[str, str]
    state: str = RUNNING
    score: float | None = None
    jobs: list[Job] = field(default_factory=list)
    confirming: list[Job] = field(default_factory=list)
    fresh: list[float] = field(default_factory=list)


class Tuner(JobQueue):
    """The jobs of a tuning.

    prunes_from: the opt step from which on trials may be pruned · retry: run what failed in an earlier launch again.
    """

    def __init__(
        self,
        folder: Path,
        settings: TuningSettings,
        space: Mapping[str, Any],
        make_job: MakeJob,
        note: Callable[[str], None],
        prunes_from: int = 0,
        retry: bool = False,
    ) -> None:
        super().__init__()
        self._settings = settings
        self._make_job = make_job
        self._note = note
        self.study = Study(folder, space, settings, prunes_from)
        # trial and opt step → mean return of each run that has been evaluated there, for the pruner
        self._reports: dict[tuple[int, int], dict[int, float]] = {}
        self.trials: list[Trial] = []
        self._retry = retry
        self._continue()

    # -- what the scheduler asks ---------------------------------------------

    @property
    def left(self) -> int:
        s = self._settings
        to_ask = 0 if self._all_asked else (s.n_trials - len(self.trials)) * s.seeds
        return super().left + to_ask + (0 if self.confirmed else s.top * s.top_seeds)

    @property
    def stage(self) -> str:
        if self.confirmed:
            return f"confirming the best {len(self.confirmed)}"
        n = len(self.trials) if self._is_exhausted else self._settings.n_trials
        return f"trial {len(self.trials)} of {n}"

    def next(self) -> Job | None:
        while not self._todo and (self._ask() or self._confirm()):
            pass  # a trial whose values are not allowed has no jobs
        return super().next()

    def may_continue(self, job: Job, progress: JobProgress) -> bool:
        trial = next((trial for trial in self.trials if job in trial.jobs), None)
        if trial is None:  # it confirms one
            return True
        if trial.state == RUNNING and progress.last_at is not None and progress.last is not None:
            self._report(trial, job, progress.last_at, progress.last)
        return trial.state not in (PRUNED, FAILED)

    def ended(self, job: Job) -> None:
        for trial in self.trials:
            if job in trial.jobs or job in trial.confirming:
                self._update(trial)

    # -- trials --------------------------------------------------------------

    @property
    def _is_exhausted(self) -> bool:
        return bool(self.study.notes.get(_EXHAUSTED))

    @property
    def _all_asked(self) -> bool:
        return self._is_exhausted or len(self.trials) >= self._settings.n_trials

    def _ask(self) -> bool:
        """Begin another trial, if there are any left."""
        if self._all_asked:
            return False
        asked = self.study.draw([trial.params for trial in self.trials])
        if asked is None:
            self.study.note(_EXHAUSTED, True)
            self._note(f"the search space has no values left to try after {len(self.trials)} trials")
            return False
        trial = Trial(len(self.trials), *asked)
        self.trials.append(trial)
        self._add_jobs(trial)
        self._queue(trial.jobs)
        return True

    def _add_jobs(self, trial: Trial) -> None:
        """Make the jobs of a trial, or find those of an earlier launch. A trial whose values are not allowed fails."""
        try:
            trial.jobs = self._make_jobs(trial, self._settings.seeds, 0, "trial")
        except UsageError as e:
            self._note(f"trial {trial.number}: error: {str(e).splitlines()[0]}")
            self._fail(trial)

    def _make_jobs(self, trial: Trial, n: int, first_seed: int, label: str) -> list[Job]:
        """Make jobs, or find those of an earlier launch."""
        seeds = range(first_seed, first_seed + n)
        jobs = [self._make_job(trial.params, seed, f"{label} {trial.number}") for seed in seeds]
        for job in jobs:
            if self._retry and job.state == FAILED:
                job.state = WAITING
        return jobs

    def _queue(self, jobs: Sequence[Job]) -> None:
        self._todo.extend(job for job in jobs if job.state not in (DONE, FAILED))

    def _update(self, trial: Trial) -> None:
        """Update a trial by the states of its jobs, and tell the study if the trial has ended."""
        states = {job.state for job in trial.jobs}
        if FAILED in states:
            self._fail(trial)
        elif trial.state == RUNNING and states == {DONE}:
            scores = self._scores(trial, trial.jobs)
            if len(scores) < len(trial.jobs):
                self._fail(trial)
            else:
                trial.state, trial.score = DONE, float(np.mean(scores))
                self.study.tell(trial.in_study, "COMPLETE", trial.score)
        trial.fresh = self._scores(trial, trial.confirming)

    def _scores(self, trial: Trial, jobs: Sequence[Job]) -> list[float]:
        """The scores of those of these jobs that are done. A job whose records cannot be read has none."""
        scores = []
        for job in jobs:
            try:
                if job.state == DONE:
                    scores.append(objective(job, self._settings.objective))
            except BorderError as e:
                self._note(f"trial {trial.number}: error: {e}")
        return scores

    def _report(self, trial: Trial, job: Job, step: int, score: float) -> None:
        """Report a step once all runs have been evaluated there, and prune the trial if Optuna's pruner says so."""
        at = self._reports.setdefault((trial.number, step), {})
        if job.number in at:
            return
        at[job.number] = score
        if len(at) == len(trial.jobs) and self.study.report(
            trial.in_study, step, float(np.mean(list(at.values())))
        ):
            trial.state = PRUNED
            self.study.tell(trial.in_study, "PRUNED")

    def _fail(self, trial: Trial) -> None:
        if trial.state == FAILED:
            return
        trial.state = FAILED
        self._todo = deque(job for job in self._todo if job not in trial.jobs)
        self.study.tell(trial.in_study, "FAIL")

    # -- confirming ----------------------------------------------------------

    @property
    def ranking(self) -> list[Trial]:
        """The trials that are done, the best first."""
        done = [trial for trial in self.trials if trial.state == DONE]
        return sorted(done, key=lambda trial: -(trial.score or 0.0))

    @property
    def confirmed(self) -> list[Trial]:
        """The trials that already run on fresh seeds."""
        return [trial for trial in self.trials if trial.confirming]

    @property
    def _to_confirm(self) -> list[Trial]:
        """The best trials, without those that are confirmed."""
        return [trial for trial in self.ranking[: self._settings.top] if not trial.confirming]

    def _confirm(self) -> bool:
        """Begin, or continue, to confirm the best trials, once all trials have ended."""
        best = self._to_confirm
        if not (best and self._trials_have_ended):
            return False
        for trial in best:
            n = self._settings.top_seeds
            trial.confirming = self._make_jobs(trial, n, FRESH_SEEDS, "confirming trial")
            self._update(trial)
            self._queue(trial.confirming)
        return True

    @property
    def _trials_have_ended(self) -> bool:
        return self._all_asked and not any(trial.state == RUNNING for trial in self.trials)

    @property
    def winner(self) -> Trial | None:
        """The trial with the best mean score on fresh seeds. If no confirmation is complete, the first of the ranking.

        None without any, and before the tuning has ended.
        """
        if not self.has_ended:
            return None
        whole = [trial for trial in self.confirmed if len(trial.fresh) == len(trial.confirming)]
        if not whole:
            return next(iter(self.ranking), None)
        return max(whole, key=lambda trial: (np.mean(trial.fresh), trial.score))

    @property
    def has_ended(self) -> bool:
        """Whether all trials have ended, and the best of them are confirmed."""
        if not self._trials_have_ended or self._to_confirm or self._todo:
            return False
        return all(job.state in (DONE, FAILED) for job in self._confirming_jobs)

    @property
    def unfinished_jobs(self) -> list[Job]:
        """The jobs of trials that have failed or are still running, and those that confirm a trial and are not done."""
        jobs = [job for trial in self.trials if trial.state in (RUNNING, FAILED) for job in trial.jobs]
        return jobs + [job for job in self._confirming_jobs if job.state != DONE]

    @property
    def _confirming_jobs(self) -> list[Job]:
        return [job for trial in self.trials for job in trial.confirming]

    def expect(self, winner: Trial) -> str:
        """What a run of the winner should reach, for its preset."""
        kind = {"best": "of the best model", "last": "of the last model", "area": "over the evaluation curve"}
        score = float(np.mean(winner.fresh)) if winner.fresh else winner.score
        seeds = f", {counted(len(winner.fresh), 'fresh seed')}" if winner.fresh else ""
        return f"mean return {kind[self._settings.objective]} of {number(score)}{seeds}"

    # -- continuing ----------------------------------------------------------

    def _continue(self) -> None:
        """Take up the trials of earlier launches: those that run are queued again, with the same jobs."""
        for stored in self.study.trials:
            if (state := _STATES.get(stored.state.name)) is None:  # not drawn yet
                continue
            params = self.study.params(stored)
            before = next((trial for trial in self.trials if trial.params == params), None)
            if before is None:
                self.trials.append(Trial(len(self.trials), stored.number, params, state, stored.value))
            elif state != FAILED:  # it has failed, and runs again
                before.in_study, before.state, before.score = stored.number, state, stored.value
        for trial in self.trials:
            self._add_jobs(trial)
            if self._retry and trial.jobs and trial.state == FAILED:
                trial.state, trial.in_study = RUNNING, self.study.again(trial.in_study)
            self._update(trial)
            if trial.state == RUNNING:
                self._queue(trial.jobs)
        self._confirm()


# -- scores --------------------------------------------------------------------


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
    scores = {record["opt_steps"]: record[SCORE] for record in records if record.get(SCORE) is not None}
    return sorted(scores.items())


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
