"""Tuning: trials of hyperparameters, which Optuna chooses and prunes.

The runs of a trial report each evaluation. Optuna's pruner stops a trial that is worse than the others at the same opt
step; a trial that is not pruned runs to its end. When all have ended, the best are confirmed: they run again on fresh
seeds.

`tuning.json` has the trials with their jobs, and the number of the winner.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from border_cli.core.errors import BorderError, UsageError
from border_cli.core.format import counted, number
from border_cli.core.progress import JobProgress
from border_cli.run.summary import read_json, write_json
from border_cli.sweeps.jobs import DONE, FAILED, RUNNING, STOPPED, WAITING, Job
from border_cli.sweeps.scheduler import JobQueue
from border_cli.sweeps.study import Study
from border_cli.sweeps.trials import PRUNED, Trial, TuningSettings, objective

TUNING_FILE = "tuning.json"
FRESH_SEEDS = 1_000_000
"""What is added to the seed of a run where the best trials are confirmed."""

MakeJob = Callable[[Mapping[str, str], int, str], Job]
"""(values of keys, what is added to the seed, label) → the job of such a run."""


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
        self._jobs: dict[int, Job] = {}
        # trial and opt step → mean return of each run that has been evaluated there, for the pruner
        self._reports: dict[tuple[int, int], dict[int, float]] = {}
        if self._path.exists():
            self._continue()
        self.study.fail_others({trial.in_study for trial in self.trials})

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
        trial = next((one for one in self.trials if job.number in one.jobs), None)
        if trial is None:  # it confirms one
            return True
        if trial.state == RUNNING and progress.last_at is not None and progress.last is not None:
            self._report(trial, job, progress.last_at, progress.last)
        return trial.state not in (PRUNED, FAILED)

    def ended(self, job: Job) -> None:
        for trial in self.trials:
            if job.number in (*trial.jobs, *trial.confirming):
                self._update(trial)
        self._save()

    # -- trials --------------------------------------------------------------

    @property
    def _all_asked(self) -> bool:
        return self._is_exhausted or len(self.trials) >= self._settings.n_trials

    def _ask(self) -> bool:
        """Begin another trial, if there are any left."""
        if self._all_asked:
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
        self._todo.extend(self._add_jobs(trial))
        self._save()
        return True

    def _add_jobs(self, trial: Trial) -> list[Job]:
        """Make the jobs of a trial, or find those of an earlier launch. A trial whose values are not allowed fails."""
        trial.jobs = []
        try:
            jobs = self._make_jobs(trial, self._settings.seeds, 0, "trial")
        except UsageError as e:
            self._note(f"trial {trial.number}: error: {str(e).splitlines()[0]}")
            self._fail(trial)
            return []
        trial.jobs = [job.number for job in jobs]
        return jobs

    def _make_jobs(self, trial: Trial, n: int, first_seed: int, label: str) -> list[Job]:
        jobs = [self._make_job(trial.params, first_seed + i, f"{label} {trial.number}") for i in range(n)]
        self._jobs |= {job.number: job for job in jobs}
        return jobs

    def _update(self, trial: Trial) -> None:
        """Update a trial by the states of its jobs, and tell the study if the trial has ended."""
        states = {self._jobs[number].state for number in trial.jobs}
        if FAILED in states:
            self._fail(trial)
        elif trial.state == PRUNED and states <= {DONE, STOPPED}:
            self.study.tell(trial.in_study, "PRUNED")
        elif trial.state == RUNNING and states == {DONE}:
            scores = self._scores(trial, trial.jobs)
            if len(scores) < len(trial.jobs):
                self._fail(trial)
            else:
                trial.state, trial.score = DONE, float(np.mean(scores))
                self.study.tell(trial.in_study, "COMPLETE", trial.score)
        trial.fresh = self._scores(trial, trial.confirming)

    def _scores(self, trial: Trial, numbers: Sequence[int]) -> list[float]:
        """The scores of those of these jobs that are done. A job whose records cannot be read has none."""
        scores = []
        for job in (self._jobs[i] for i in numbers):
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

    def _fail(self, trial: Trial) -> None:
        if trial.state == FAILED:
            return
        trial.state = FAILED
        self._todo = deque(job for job in self._todo if job.number not in trial.jobs)
        self.study.tell(trial.in_study, "FAIL")

    # -- confirming ----------------------------------------------------------

    @property
    def ranking(self) -> list[Trial]:
        """The trials that are done, the best first."""
        done = [one for one in self.trials if one.state == DONE]
        return sorted(done, key=lambda one: -(one.score or 0.0))

    @property
    def confirmed(self) -> list[Trial]:
        """The trials that already run on fresh seeds."""
        return [one for one in self.trials if one.confirming]

    @property
    def _to_confirm(self) -> list[Trial]:
        """The best trials, without those that are confirmed. A trial that failed and ran again may be among them later."""
        return [one for one in self.ranking[: self._settings.top] if not one.confirming]

    def _confirm(self) -> bool:
        """Begin to confirm the best trials, once all trials have ended."""
        best = self._to_confirm
        if not best or any(trial.state == RUNNING for trial in self.trials):
            return False
        for trial in best:
            self._todo.extend(self._add_confirmation(trial))
        self._save()
        return True

    def _add_confirmation(self, trial: Trial) -> list[Job]:
        """Make the jobs that confirm a trial, or find those of an earlier launch."""
        jobs = self._make_jobs(trial, self._settings.top_seeds, FRESH_SEEDS, "confirming trial")
        trial.confirming = [job.number for job in jobs]
        return jobs

    @property
    def winner(self) -> Trial | None:
        """The trial with the best mean score on fresh seeds. If no confirmation is complete, the first of the ranking.

        None without any.
        """
        whole = [one for one in self.confirmed if len(one.fresh) == len(one.confirming)]
        if not whole:
            return next(iter(self.ranking), None)
        return max(whole, key=lambda one: (np.mean(one.fresh), one.score))

    @property
    def has_ended(self) -> bool:
        """Whether all trials have ended, and the best of them are confirmed."""
        if not self._all_asked or self._todo or any(one.state == RUNNING for one in self.trials):
            return False
        return not self._to_confirm and all(job.state in (DONE, FAILED) for job in self._confirming_jobs)

    @property
    def unfinished_jobs(self) -> list[Job]:
        """The jobs of trials that have failed or are still running, and those that confirm a trial and are not done."""
        trials = [one.jobs for one in self.trials if one.state in (RUNNING, FAILED)]
        jobs = [self._jobs[number] for numbers in trials for number in numbers]
        return jobs + [job for job in self._confirming_jobs if job.state != DONE]

    @property
    def _confirming_jobs(self) -> list[Job]:
        return [self._jobs[number] for trial in self.trials for number in trial.confirming]

    def expect(self, winner: Trial) -> str:
        """What a run of the winner should reach, for its preset."""
        kind = {"best": "of the best model", "last": "of the last model", "area": "over the evaluation curve"}
        score = float(np.mean(winner.fresh)) if winner.fresh else winner.score
        seeds = f", {counted(len(winner.fresh), 'fresh seed')}" if winner.fresh else ""
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
                "winner": winner.number if self.has_ended and (winner := self.winner) else None,
            },
        )

    def _continue(self) -> None:
        """Take up the trials of earlier launches: those that run are queued again, with the same jobs."""
        try:
            data = read_json(self._path)
            self.trials = [Trial(**entry) for entry in data["trials"]]
            self._is_exhausted = data["exhausted"]
            before: dict[str, str] = data["space"]
        except (OSError, ValueError, KeyError, TypeError) as e:
            raise UsageError(f"{self._path} cannot be read: {type(e).__name__}: {e}") from e
        if before != self._space:
            raise UsageError(
                f"{self._path.parent} has tuned in another search space",
                allowed="that one, or hydra.sweep.dir=<new folder>",
            )
        for trial in self.trials:
            self._resume(trial)
        self._save()

    def _resume(self, trial: Trial) -> None:
        jobs = self._add_jobs(trial) if trial.jobs or trial.state == RUNNING else []
        fresh = self._add_confirmation(trial) if trial.confirming else []
        if self._retry:
            for job in (*jobs, *fresh):
                job.state = WAITING if job.state == FAILED else job.state
            if jobs and trial.state in (RUNNING, FAILED):
                trial.state, trial.in_study = RUNNING, self.study.again(trial.in_study)
        self._update(trial)
        to_run = [*(jobs if trial.state == RUNNING else []), *fresh]
        self._todo.extend(job for job in to_run if job.state not in (DONE, FAILED))
