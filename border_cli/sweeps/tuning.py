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

from border_cli.core.errors import UsageError, first_line
from border_cli.core.format import counted, number
from border_cli.core.metrics import SCORE
from border_cli.core.progress import JobProgress
from border_cli.recorders.files import METRICS_FILE, read_jsonl
from border_cli.sweeps.jobs import DONE, FAILED, RUNNING, Job
from border_cli.sweeps.scheduler import JobQueue
from border_cli.sweeps.study import TuningSettings, import_optuna, open_study, quiet, seed_after, value_text

PRUNED = "pruned"
"""A state of a trial beside RUNNING, DONE and FAILED, which jobs have too."""
_STATES = {"RUNNING": RUNNING, "COMPLETE": DONE, "PRUNED": PRUNED, "FAIL": FAILED}
"""By Optuna's names."""
_DRAWS, _RANDOM_DRAWS = 5, 100
"""Draws in a row that may repeat an earlier trial: first by the sampler, which may repeat its best values, then at
random. After that the search space counts as exhausted.
"""
_EXHAUSTED = "exhausted"
FRESH_SEEDS = 1_000_000
"""Added to the seed of a run that confirms one of the best trials."""

MakeJob = Callable[[Mapping[str, str], int], Job]
"""(values of keys, what is added to the seed) → the job of such a run."""


@dataclass
class Trial:
    """One configuration.

    number: in Optuna's study, where draws that repeat an earlier trial have numbers, too · params: value of each tuned key,
    as it is typed · jobs: its runs · confirming: those on fresh seeds · score: mean over its runs, once all have ended ·
    fresh: scores of those runs on fresh seeds that are done.
    """

    number: int
    params: dict[str, str]
    state: str = RUNNING
    score: float | None = None
    jobs: list[Job] = field(default_factory=list)
    confirming: list[Job] = field(default_factory=list)
    fresh: list[float] = field(default_factory=list)

    @property
    def settings(self) -> str:
        return " ".join(f"{key}={value}" for key, value in self.params.items())


class Tuner(JobQueue):
    """The jobs of a tuning: a new one in this folder, or that of earlier launches.

    space: Optuna's distribution of each key · prunes_from: the opt step from which on trials may be pruned.
    Raises UsageError if the earlier launches have searched another space.
    """

    def __init__(
        self,
        folder: Path,
        settings: TuningSettings,
        space: Mapping[str, Any],
        make_job: MakeJob,
        note: Callable[[str], None],
        prunes_from: int = 0,
    ) -> None:
        super().__init__()
        self._settings = settings
        self._space = dict(space)
        self._make_job = make_job
        self._note = note
        self._optuna = import_optuna()
        self.study = open_study(self._optuna, folder, settings, prunes_from)
        # trial and opt step → mean return of each run that has been evaluated there, for the pruner
        self._reports: dict[tuple[int, int | None], dict[int, float]] = {}
        self.trials: list[Trial] = []
        keys = {key: str(distribution) for key, distribution in space.items()}
        if self.study.user_attrs.get("space", keys) != keys:
            raise UsageError(
                f"{folder} has tuned in another search space",
                allowed="that one, or hydra.sweep.dir=<new folder>",
            )
        self.study.set_user_attr("space", keys)
        for stored in self.study.trials:
            params = self._typed(stored.params)
            # A trial that waits in Optuna's queue is not drawn yet; of those with the same values the first has run.
            if (state := _STATES.get(stored.state.name)) and not any(t.params == params for t in self.trials):
                self.trials.append(Trial(stored.number, params, state, stored.value))
        for trial in self.trials:
            self._begin(trial)
            self._update(trial)
        self._confirm()

    # -- what the scheduler asks ---------------------------------------------

    @property
    def left(self) -> int:
        s, to_ask = self._settings, self._n_trials - len(self.trials)
        return super().left + to_ask * s.seeds + (0 if self.confirmed else s.top * s.top_seeds)

    @property
    def stage(self) -> str:
        if self.confirmed:
            return f"confirming the best {len(self.confirmed)}"
        return f"trial {len(self.trials)} of {self._n_trials}"

    def next(self) -> Job | None:
        # A trial whose values are not allowed has no jobs.
        while not self._todo and len(self.trials) < self._n_trials:
            if (trial := self._draw()) is None:
                self.study.set_user_attr(_EXHAUSTED, True)
                self._note(f"the search space has no values left to try after {len(self.trials)} trials")
            else:
                self.trials.append(trial)
                self._begin(trial)
        if not self._todo:
            self._confirm()
        return super().next()

    def may_continue(self, job: Job, progress: JobProgress) -> bool:
        trial = next((trial for trial in self.trials if job in trial.jobs), None)
        if trial is None:  # it confirms one
            return True
        step, score = progress.last_at, progress.last
        at = self._reports.setdefault((trial.number, step), {})
        if trial.state == RUNNING and step is not None and score is not None and job.number not in at:
            at[job.number] = score
            if len(at) == len(trial.jobs):  # all runs have been evaluated there
                in_study = self._optuna.trial.Trial(self.study, self.study.trials[trial.number]._trial_id)
                with quiet():  # a run that has resumed from before its last report reports that again
                    in_study.report(float(np.mean(list(at.values()))), step)
                if in_study.should_prune():
                    trial.state = PRUNED
                    self._tell(trial.number, "PRUNED")
        return trial.state not in (PRUNED, FAILED)

    def ended(self, job: Job) -> None:
        for trial in self.trials:
            if job in (*trial.jobs, *trial.confirming):
                self._update(trial)

    # -- trials --------------------------------------------------------------

    @property
    def _n_trials(self) -> int:
        """Trials in all: fewer than wanted if the search space is exhausted."""
        is_exhausted = self.study.user_attrs.get(_EXHAUSTED)
        return len(self.trials) if is_exhausted else max(self._settings.n_trials, len(self.trials))

    def _draw(self) -> Trial | None:
        """A new trial; None if all draws repeat earlier trials."""
        sampler = self.study.sampler
        try:
            for i in range(_DRAWS + _RANDOM_DRAWS):
                if i >= _DRAWS:
                    seed = seed_after(self._settings.seed, len(self.study.trials))
                    self.study.sampler = self._optuna.samplers.RandomSampler(seed=seed)
                with quiet():
                    asked = self.study.ask(self._space)
                params = self._typed(asked.params)
                if not any(trial.params == params for trial in self.trials):
                    return Trial(asked.number, params)
                self._tell(asked.number, "FAIL")
            return None
        finally:
            self.study.sampler = sampler

    def _typed(self, params: Mapping[str, Any]) -> dict[str, str]:
        return {key: value_text(params[key], self._space[key]) for key in self._space if key in params}

    def _begin(self, trial: Trial) -> None:
        """Queue the jobs of a trial that no earlier launch has completed. It fails if its values are not allowed."""
        try:
            trial.jobs = [self._make_job(trial.params, seed) for seed in range(self._settings.seeds)]
        except UsageError as e:
            self._fail(trial, first_line(e))
        if trial.state == RUNNING:
            self._queue(trial.jobs)

    def _queue(self, jobs: Sequence[Job]) -> None:
        self._todo.extend(job for job in jobs if job.state not in (DONE, FAILED))

    def _update(self, trial: Trial) -> None:
        """Update a trial by the states of its jobs, and tell the study if the trial has ended."""
        states = {job.state for job in trial.jobs}
        if FAILED in states:
            self._fail(trial)
        elif trial.state == RUNNING and states == {DONE}:
            scores = self._scores(trial.jobs)
            if len(scores) < len(trial.jobs):
                self._fail(trial, "one of its runs has no evaluation that can be read")
            else:
                trial.state, trial.score = DONE, float(np.mean(scores))
                self._tell(trial.number, "COMPLETE", trial.score)
        trial.fresh = self._scores(trial.confirming)

    def _scores(self, jobs: Sequence[Job]) -> list[float]:
        """The scores of those of these jobs that are done and have one."""
        scores = [objective(job, self._settings.objective) for job in jobs if job.state == DONE]
        return [score for score in scores if score is not None]

    def _fail(self, trial: Trial, why: str = "") -> None:
        if why:
            self._note(f"trial {trial.number}: error: {why}")
        if trial.state != FAILED:
            trial.state = FAILED
            self._todo = deque(job for job in self._todo if job not in trial.jobs)
            self._tell(trial.number, "FAIL")

    def _tell(self, number: int, state: str, score: float | None = None) -> None:
        """Note in the study that a trial has ended; a second time is no error."""
        if not self.study.trials[number].state.is_finished():
            self.study.tell(number, score, self._optuna.trial.TrialState[state])

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

    def _confirm(self) -> None:
        """Begin, or continue, to confirm the best trials, once all trials have ended."""
        if self.confirmed or not self._trials_have_ended:
            return
        for trial in self.ranking[: self._settings.top]:
            seeds = range(FRESH_SEEDS, FRESH_SEEDS + self._settings.top_seeds)
            trial.confirming = [self._make_job(trial.params, seed) for seed in seeds]
            self._update(trial)
            self._queue(trial.confirming)

    @property
    def _trials_have_ended(self) -> bool:
        return len(self.trials) == self._n_trials and all(trial.state != RUNNING for trial in self.trials)

    @property
    def has_ended(self) -> bool:
        """Whether all trials have ended, and the best of them are confirmed."""
        if (
            not self._trials_have_ended
            or self._todo
            or (self._settings.top and self.ranking and not self.confirmed)
        ):
            return False
        return all(job.state in (DONE, FAILED) for trial in self.trials for job in trial.confirming)

    @property
    def winner(self) -> Trial | None:
        """The trial with the best mean score on fresh seeds, or the first of the ranking if no confirmation is
        complete. None without a finished trial, and before the tuning has ended.
        """
        if not self.has_ended:
            return None
        whole = [trial for trial in self.confirmed if len(trial.fresh) == len(trial.confirming)]
        first = next(iter(self.ranking), None)
        return max(whole, key=lambda trial: (np.mean(trial.fresh), trial.score), default=first)

    @property
    def unfinished_jobs(self) -> list[Job]:
        """The jobs of trials that have failed or are still running, and those that confirm a trial and are not done."""
        jobs = [job for trial in self.trials if trial.state in (RUNNING, FAILED) for job in trial.jobs]
        return jobs + [job for trial in self.trials for job in trial.confirming if job.state != DONE]

    def expect(self, winner: Trial) -> str:
        """What a run of the winner should reach, for its preset."""
        kind = {"best": "of the best model", "last": "of the last model", "area": "over the evaluation curve"}
        score = float(np.mean(winner.fresh)) if winner.fresh else winner.score
        seeds = f", {counted(len(winner.fresh), 'fresh seed')}" if winner.fresh else ""
        return f"mean return {kind[self._settings.objective]} of {number(score)}{seeds}"


# -- scores ----------------------------------------------------------------------


def evaluations_of(job: Job) -> list[tuple[int, float]]:
    """(opt step, mean return) of each regular evaluation of a run, in order; nothing if the file cannot be read."""
    try:
        records = read_jsonl(job.run_dir / METRICS_FILE)
    except (OSError, ValueError):
        return []
    return sorted({r["opt_steps"]: r[SCORE] for r in records if r.get(SCORE) is not None}.items())


def objective(job: Job, kind: str) -> float | None:
    """The objective of one run: the score of the "best" model (without one, the highest evaluation), that of the "last"
    model, or the mean height of the evaluation curve ("area"). None without evaluations.
    """
    if not (evaluations := evaluations_of(job)):
        return None
    if kind == "best" and job.best is not None:
        return job.best
    steps, means = np.array(evaluations, np.float64).T
    if kind == "last" or len(means) == 1:
        return float(means[-1])
    if kind == "best":
        return float(means.max())
    widths = np.diff(steps)
    return float(((means[1:] + means[:-1]) / 2 * widths).sum() / widths.sum())  # the trapezoidal rule
