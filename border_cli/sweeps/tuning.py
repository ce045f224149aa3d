"""Tuning: trials of hyperparameters, which Optuna chooses and prunes.

The runs of a trial report each evaluation. Optuna's pruner stops a trial that is worse than the others at the same opt
step; a trial that is not pruned runs to its end. When all have ended, the best are confirmed: they run again on fresh
seeds.

`tuning.json` has the trials with their jobs, and the number of the winner.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from border_cli.core.errors import BorderError, UsageError
from border_cli.core.progress import JobProgress
from border_cli.display.format import counted, number
from border_cli.runs.summary import read_json, write_json
from border_cli.sweeps.jobs import DONE, FAILED, RUNNING, STOPPED, WAITING, Job
from border_cli.sweeps.study import Study
from border_cli.sweeps.trials import PRUNED, Confirmation, Trial, TuningSettings, objective

TUNING_FILE = "tuning.json"
FRESH_SEEDS = 1_000_000
"""What is added to the seed of a run where the best trials are confirmed."""

MakeJob = Callable[[Mapping[str, str], int, str], Job]
"""(values of keys, what is added to the seed, label) → the job of such a run."""


class Tuner:
    """The `JobSource` of a tuning sweep.

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
        self._path = folder / TUNING_FILE
        self._space = {key: str(one) for key, one in space.items()}
        self._settings = settings
        self._make_job = make_job
        self._note = note
        self._retry = retry
        self._is_exhausted = False
        self.study = Study(
            folder, space, settings.sampler, settings.seed, settings.pruner, prunes_from, settings.reduction
        )
        self.trials: list[Trial] = []
        self.confirmations: list[Confirmation] = []
        self._jobs: dict[int, Job] = {}
        self._todo: deque[Job] = deque()
        # trial and opt step → mean return of each run that has been evaluated there, for the pruner
        self._reports: dict[tuple[int, int], dict[int, float]] = {}
        if self._path.exists():
            self._continue()
        self.study.fail_others({trial.in_study for trial in self.trials})

    # -- what the scheduler asks ---------------------------------------------

    @property
    def left(self) -> int:
        s = self._settings
        to_ask = 0 if self._is_exhausted else max(0, s.n_trials - len(self.trials)) * s.seeds
        return len(self._todo) + to_ask + (0 if self.confirmations else s.top * s.top_seeds)

    @property
    def stage(self) -> str:
        if self.confirmations:
            return f"confirming the best {len(self.confirmations)}"
        n = len(self.trials) if self._is_exhausted else self._settings.n_trials
        return f"trial {len(self.trials)} of {n}"

    def next(self) -> Job | None:
        while not self._todo:
            if not (self._ask() or self._confirm()):
                return None
        return self._todo.popleft()

    def may_continue(self, job: Job, progress: JobProgress) -> bool:
        trial = self._trial_of(job)
        if trial is None:
            return True
        if trial.state == RUNNING and progress.last_at is not None and progress.last is not None:
            self._report(trial, job, progress.last_at, progress.last)
        return trial.state not in (PRUNED, FAILED)

    def ended(self, job: Job) -> None:
        trial = self._trial_of(job)
        if trial is None:
            self._end_confirmation(job)
        elif job.state == FAILED:
            self._fail(trial)
        elif trial.state == RUNNING:
            self._score(trial)
        elif trial.state == PRUNED:
            self._tell_pruned(trial)
        self._save()

    # -- trials --------------------------------------------------------------

    def _ask(self) -> bool:
        """Begin another trial, if there are any left."""
        if len(self.trials) >= self._settings.n_trials or self._is_exhausted:
            return False
        asked = self.study.draw([one.params for one in self.trials])
        if asked is None:
            self._is_exhausted = True
            self._note(f"the search space has no values left to try after {len(self.trials)} trials")
            self._save()  # there may be a winner now
            return False
        trial = Trial(len(self.trials), *asked)
        self.trials.append(trial)
        self._save()  # before its jobs are: a kill in between must not leave jobs of no trial
        self._add_jobs(trial)
        if trial.state == RUNNING:
            self._todo.extend(self._jobs[number] for number in trial.jobs)
        self._save()
        return True

    def _add_jobs(self, trial: Trial) -> None:
        """Make the jobs of a trial, or find those of an earlier launch. A trial whose values are not allowed fails."""
        try:
            for i in range(self._settings.seeds):
                job = self._make_job(trial.params, i, f"trial {trial.number}")
                self._jobs[job.number] = job
                if job.number not in trial.jobs:
                    trial.jobs.append(job.number)
        except UsageError as e:
            self._note(f"trial {trial.number}: error: {str(e).splitlines()[0]}")
            self._fail(trial)

    def _score(self, trial: Trial) -> None:
        """Have the study know the score of a trial if all its runs are done."""
        jobs = [self._jobs[number] for number in trial.jobs]
        if not all(job.state == DONE for job in jobs):
            return
        try:
            trial.score = float(np.mean([objective(job, self._settings.objective) for job in jobs]))
        except BorderError as e:
            self._note(f"trial {trial.number}: error: {e}")
            self._fail(trial)
        else:
            trial.state = DONE
            self.study.tell(trial.in_study, trial.score)

    def _tell_pruned(self, trial: Trial) -> None:
        """Have the study know a trial that was pruned, when all its runs have stopped."""
        if all(self._jobs[one].state in (DONE, STOPPED) for one in trial.jobs):
            self.study.tell(trial.in_study, None)

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

    def _fail(self, trial: Trial) -> None:
        if trial.state == FAILED:
            return
        trial.state = FAILED
        self._todo = deque(job for job in self._todo if job.number not in trial.jobs)
        self.study.fail(trial.in_study)

    def _trial_of(self, job: Job) -> Trial | None:
        """The trial of a job; None for one that confirms a trial."""
        return next((trial for trial in self.trials if job.number in trial.jobs), None)

    # -- confirming ----------------------------------------------------------

    @property
    def ranking(self) -> list[Trial]:
        """The trials that are done, the best first."""
        done = [one for one in self.trials if one.state == DONE]
        return sorted(done, key=lambda one: -(one.score or 0.0))

    @property
    def _to_confirm(self) -> list[Trial]:
        """The best trials, without those that are confirmed. A trial that failed and ran again may be among them later."""
        known = {one.trial for one in self.confirmations}
        return [one for one in self.ranking[: self._settings.top] if one.number not in known]

    def _confirm(self) -> bool:
        """Begin to confirm the best trials, once all trials have ended."""
        best = self._to_confirm
        if not best or any(trial.state == RUNNING for trial in self.trials):
            return False
        for trial in best:
            confirmation = Confirmation(trial.number, [])
            for i in range(self._settings.top_seeds):
                job = self._make_job(trial.params, FRESH_SEEDS + i, f"confirming trial {trial.number}")
                confirmation.jobs.append(job.number)
                self._jobs[job.number] = job
                self._todo.append(job)
            self.confirmations.append(confirmation)
        self._save()
        return True

    def _end_confirmation(self, job: Job) -> None:
        for confirmation in self.confirmations:
            if job.number in confirmation.jobs and job.state == DONE:
                try:
                    confirmation.scores.append(objective(job, self._settings.objective))
                except BorderError as e:
                    self._note(f"confirming trial {confirmation.trial}: error: {e}")

    @property
    def winner(self) -> Trial | None:
        """The trial with the best mean score on fresh seeds. If no confirmation is complete, the first of the ranking.

        None without any.
        """
        whole = [one for one in self.confirmations if len(one.scores) == len(one.jobs)]
        if not whole:
            return next(iter(self.ranking), None)
        return self.trials[max(whole, key=lambda one: np.mean(one.scores)).trial]

    @property
    def has_ended(self) -> bool:
        """Whether all trials have ended, and the best of them are confirmed."""
        every = len(self.trials) >= self._settings.n_trials or self._is_exhausted
        if not every or self._todo or any(one.state == RUNNING for one in self.trials):
            return False
        return not self._to_confirm and all(job.state in (DONE, FAILED) for job in self._confirmation_jobs)

    @property
    def unfinished_jobs(self) -> list[Job]:
        """The jobs of trials that have failed or are still running, and those that confirm a trial and are not done."""
        trials = [one.jobs for one in self.trials if one.state in (RUNNING, FAILED)]
        jobs = [self._jobs[number] for numbers in trials for number in numbers]
        return jobs + [job for job in self._confirmation_jobs if job.state != DONE]

    @property
    def _confirmation_jobs(self) -> list[Job]:
        """The jobs that confirm a trial."""
        return [self._jobs[number] for confirmation in self.confirmations for number in confirmation.jobs]

    def expect(self, winner: Trial) -> str:
        """What a run of the winner should reach, for its preset."""
        kind = {"best": "of the best model", "last": "of the last model", "area": "over the evaluation curve"}
        fresh = next((one.scores for one in self.confirmations if one.trial == winner.number), [])
        score = float(np.mean(fresh)) if fresh else winner.score
        seeds = f", {counted(len(fresh), 'fresh seed')}" if fresh else ""
        return f"mean return {kind[self._settings.objective]} of {number(score)}{seeds}"

    # -- continuing ----------------------------------------------------------

    def _save(self) -> None:
        write_json(
            self._path,
            {
                "settings": asdict(self._settings),
                "space": self._space,
                "exhausted": self._is_exhausted,
                "trials": [asdict(one) for one in self.trials],
                "confirmations": [asdict(one) for one in self.confirmations],
                "winner": winner.number if self.has_ended and (winner := self.winner) else None,
            },
        )

    def _continue(self) -> None:
        """Take up the trials of earlier launches: those that run are queued again, with the same jobs."""
        try:
            data = read_json(self._path)
            self.trials = [Trial(**entry) for entry in data["trials"]]
            self.confirmations = [Confirmation(**entry) for entry in data["confirmations"]]
            self._is_exhausted = data["exhausted"]
            before: dict[str, str] = data["space"]
        except (OSError, ValueError, KeyError, TypeError) as e:
            raise UsageError(f"{self._path} cannot be read: {type(e).__name__}: {e}") from e
        if before != self._space:
            raise UsageError(
                f"{self._path.parent} has tuned in another search space\nallowed: that one, or hydra.sweep.dir=<new folder>"
            )
        for trial in self.trials:
            self._resume_trial(trial)
        for confirmation in self.confirmations:
            self._resume_confirmation(confirmation)
        self._save()

    def _resume_trial(self, trial: Trial) -> None:
        if trial.jobs or trial.state == RUNNING:
            self._add_jobs(trial)
        trial.jobs = [number for number in trial.jobs if number in self._jobs]  # none: no longer allowed
        jobs = [self._jobs[number] for number in trial.jobs]
        if self._retry and jobs and trial.state in (RUNNING, FAILED):
            trial.state = RUNNING
            for job in jobs:
                job.state = WAITING if job.state == FAILED else job.state
        if trial.state == PRUNED:
            self._tell_pruned(trial)
        if trial.state != RUNNING:
            return
        if any(job.state == FAILED for job in jobs):
            self._fail(trial)
            return
        self._score(trial)
        if trial.state == RUNNING:
            self._todo.extend(job for job in jobs if job.state != DONE)

    def _resume_confirmation(self, confirmation: Confirmation) -> None:
        params, confirmation.scores = self.trials[confirmation.trial].params, []
        for i in range(len(confirmation.jobs)):
            job = self._make_job(params, FRESH_SEEDS + i, f"confirming trial {confirmation.trial}")
            self._jobs[job.number] = job
            if job.state == DONE:
                self._end_confirmation(job)
            elif job.state != FAILED or self._retry:
                self._todo.append(job)
