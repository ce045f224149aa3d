"""Trials of a tuning over made-up curves: pruning, confirmation, kills, failures, and what samplers learn."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from border_cli.core.errors import UsageError
from border_cli.core.progress import JobProgress
from border_cli.sweeps.jobs import Job
from border_cli.sweeps.study import TuningSettings, value_text
from border_cli.sweeps.tuning import Tuner, evaluations_of, objective

optuna = pytest.importorskip("optuna")
CURVE = [1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5, 5.0]
"""What a run with quality 1 reaches in its evaluations after 10, 20 … 90 opt steps."""
PRUNES_FROM = 30
X = {"x": optuna.distributions.FloatDistribution(0.0, 1.0)}


class Jobs:
    """Makes jobs, and runs them by writing the files of a run. The score of a job is its parameter x times CURVE."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.known: dict[tuple[str, int], Job] = {}
        self.runs: list[int] = []

    def make(self, params: Mapping[str, str], more_seed: int) -> Job:
        key, n = (params["x"], more_seed), len(self.known)
        job = self.known.setdefault(key, Job(n, (f"x={key[0]}", f"seed={more_seed}"), self.folder / str(n)))
        job.refresh()
        return job

    def run(self, job: Job, until: int = 90, quality: float | None = None) -> None:
        """Run to the evaluation at this opt step. quality: in place of x."""
        x = float(job.overrides[0][2:]) if quality is None else quality
        job.run_dir.mkdir(exist_ok=True)
        (job.run_dir / "config.yaml").write_text("{}\n")
        lines = [{"opt_steps": 10 * n, "eval/return_mean": x * h} for n, h in enumerate(CURVE, 1)]
        text = "".join(json.dumps(line) + "\n" for line in lines[: until // 10])
        (job.run_dir / "metrics.jsonl").write_text(text)
        score = {"mean": x * CURVE[until // 10 - 1]}
        summary = {"status": "done" if until == 90 else "stopped", "best_score": score, "last_score": score}
        (job.run_dir / "summary.json").write_text(json.dumps(summary))
        self.runs.append(job.number)
        job.refresh()


@pytest.fixture
def jobs(tmp_path: Path) -> Jobs:
    return Jobs(tmp_path)


def tuner_of(jobs: Jobs, **settings: Any) -> Tuner:
    """A tuner whose first trials are 0.9, 0.8 … 0.1."""
    checked = TuningSettings(**{"sampler": "random", "pruner": "none", "top": 0, **settings})
    tuner = Tuner(jobs.folder, checked, X, jobs.make, print, PRUNES_FROM)
    if not tuner.study.trials:
        for n in range(9, 0, -1):
            tuner.study.enqueue_trial({"x": n / 10})
    return tuner


def next_jobs(tuner: Tuner, n: int) -> list[Job]:
    every = [tuner.next() for _ in range(n)]
    assert None not in every
    return [job for job in every if job is not None]


def end(tuner: Tuner, job: Job, state: str) -> None:
    job.state = state
    tuner.ended(job)


def run_all(tuner: Tuner, jobs: Jobs, most: int = 1000) -> None:
    """One job after the other, each to its end unless the tuner stops it."""
    for _ in range(most):
        job = tuner.next()
        if job is None:
            return
        x, until = float(job.overrides[0][2:]), 90
        for n, height in enumerate(CURVE, 1):
            if not tuner.may_continue(job, JobProgress("training", last=x * height, last_at=10 * n)):
                until = 10 * n
                break
        jobs.run(job, until)
        tuner.ended(job)


def test_the_median_stops_bad_trials(jobs: Jobs) -> None:
    """0.9 … 0.5 are not stopped; from then on each is below the median of those before, at 40 opt steps at the earliest."""
    tuner = tuner_of(jobs, n_trials=9, pruner="median")
    run_all(tuner, jobs)
    assert [trial.state for trial in tuner.trials] == ["done"] * 5 + ["pruned"] * 4
    ends = [evaluations_of(trial.jobs[0])[-1][0] for trial in tuner.trials]
    assert ends[:5] == [90] * 5 and min(ends[5:]) >= PRUNES_FROM and max(ends[5:]) < 90
    states = [trial.state.name for trial in tuner.study.trials]
    assert (states.count("PRUNED"), states.count("COMPLETE")) == (4, 5)
    assert (tuner.has_ended, tuner.winner, tuner.stage) == (True, tuner.trials[0], "trial 9 of 9")
    assert tuner.trials[0].score == pytest.approx(0.9 * 5.0)


def test_a_trial_is_pruned_by_the_mean_of_all_its_runs(jobs: Jobs) -> None:
    """0.9 … 0.5 come first. One run of the sixth trial is better than they, the other is much worse."""
    tuner = tuner_of(jobs, n_trials=6, seeds=2, pruner="median")
    run_all(tuner, jobs, 10)
    good, bad = next_jobs(tuner, 2)
    assert tuner.may_continue(good, JobProgress("training", last=2.6, last_at=40))
    assert not tuner.may_continue(bad, JobProgress("training", last=0.1, last_at=40))
    assert tuner.trials[5].state == "pruned"


@pytest.mark.parametrize("pruner", ["none", "median"])
def test_a_tuning_that_stops_anywhere_continues_with_the_same_trials(jobs: Jobs, pruner: str) -> None:
    for most in (1, 2, 3, 2, 1, 1000):
        tuner = tuner_of(jobs, n_trials=9, pruner=pruner, top=1, top_seeds=2)
        run_all(tuner, jobs, most)
    assert [len(trial.jobs) for trial in tuner.trials] == [1] * 9
    assert len(tuner.study.trials) == 9
    assert [len(trial.fresh) for trial in tuner.confirmed] == [2]
    assert tuner.stage == "confirming the best 1"
    assert sorted(jobs.runs) == list(range(9 + 2))  # no job was run twice


def test_a_killed_tuning_finds_the_jobs_of_its_trials(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is killed before it knows the second job of a trial, while it writes the journal: Optuna's lock is still there, a
    link to the path that was given, and part of a line.
    """
    monkeypatch.chdir(tmp_path)
    Path("sweep").mkdir()
    jobs = Jobs(Path("sweep"))
    known_jobs, make = [], jobs.make

    def killed(params: Mapping[str, str], more_seed: int) -> Job:
        known_jobs.append(make(params, more_seed))
        if len(known_jobs) == 2:
            raise KeyboardInterrupt
        return known_jobs[-1]

    jobs.make = killed  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        tuner_of(jobs, n_trials=3, seeds=2).next()
    jobs.make = make  # type: ignore[method-assign]
    known_jobs[0].run_dir.mkdir()
    (known_jobs[0].run_dir / "config.yaml").write_text("{}\n")
    (known_jobs[0].run_dir / "summary.json").write_text('{"status": "running"}')
    Path("sweep/study.log.lock").symlink_to("sweep/study.log")
    with Path("sweep/study.log").open("a") as file:
        file.write('{"op_code":')
    tuner = tuner_of(jobs, n_trials=3, seeds=2)
    assert (tuner.trials[0].jobs, known_jobs[0].state, tuner.next()) == (known_jobs, "stopped", known_jobs[0])
    run_all(tuner_of(jobs, n_trials=3, seeds=2), jobs)
    again = tuner_of(jobs, n_trials=3, seeds=2)
    assert (again.has_ended, [trial.state for trial in again.trials]) == (True, ["done"] * 3)


def test_a_trial_has_a_score_when_all_its_runs_are_done(jobs: Jobs) -> None:
    tuner = tuner_of(jobs, n_trials=1, seeds=2)
    first, second = next_jobs(tuner, 2)
    jobs.run(second)
    tuner.ended(second)
    assert (tuner.trials[0].state, tuner.trials[0].score) == ("running", None)
    jobs.run(first, quality=0.5)
    tuner.ended(first)
    assert (tuner.trials[0].state, tuner.trials[0].score) == ("done", (0.9 * 5 + 0.5 * 5) / 2)


def test_a_failed_job_fails_its_trial_alone(jobs: Jobs) -> None:
    tuner = tuner_of(jobs, n_trials=2, seeds=2)
    failed, other = next_jobs(tuner, 2)
    training = JobProgress("training")
    assert tuner.may_continue(other, training)
    end(tuner, failed, "failed")
    assert not tuner.may_continue(other, training)  # its score would count for nothing
    run_all(tuner, jobs)
    assert [trial.state for trial in tuner.trials] == ["failed", "done"]
    assert [trial.state.name for trial in tuner.study.trials[:2]] == ["FAIL", "COMPLETE"]


@pytest.mark.parametrize("text", ["", "{}\nnonsense\n{}\n"])
def test_a_run_without_evaluations_that_can_be_read_fails_its_trial(jobs: Jobs, text: str) -> None:
    tuner = tuner_of(jobs, n_trials=1)
    (job,) = next_jobs(tuner, 1)
    job.run_dir.mkdir()
    (job.run_dir / "metrics.jsonl").write_text(text)
    end(tuner, job, "done")
    assert (tuner.trials[0].state, tuner.next(), tuner.has_ended) == ("failed", None, True)


def test_a_trial_whose_values_are_no_longer_allowed_has_failed_when_a_tuning_continues(jobs: Jobs) -> None:
    run_all(tuner_of(jobs, n_trials=2), jobs, 1)

    def refuse(*_: object) -> None:
        raise UsageError("x=0.9: not allowed")

    jobs.make = refuse  # type: ignore[method-assign, assignment]
    again = tuner_of(jobs, n_trials=1)
    assert (again.next(), again.winner, again.unfinished_jobs) == (None, None, [])
    assert [trial.state for trial in again.trials] == ["failed"]


def test_a_tuning_does_not_continue_in_another_search_space(jobs: Jobs) -> None:
    run_all(tuner_of(jobs, n_trials=2), jobs, 1)
    space = {"x": optuna.distributions.CategoricalDistribution(["0.5", "0.9"])}
    with pytest.raises(UsageError, match="another search space"):
        Tuner(jobs.folder, TuningSettings(n_trials=2), space, jobs.make, print)


def test_a_confirmed_trial_with_a_failed_run_does_not_win(jobs: Jobs) -> None:
    tuner = tuner_of(jobs, n_trials=2, top=2, top_seeds=2)
    run_all(tuner, jobs, 2)
    for quality in (9.0, None, 0.3, 0.3):  # of 0.9 one run is lucky, and one fails
        (job,) = next_jobs(tuner, 1)
        if quality is None:
            failed = job
            end(tuner, job, "failed")
        else:
            jobs.run(job, quality=quality)
            tuner.ended(job)
    assert (tuner.winner, tuner.unfinished_jobs) == (tuner.trials[1], [failed])


def test_a_tuning_that_is_stopped_while_it_confirms_has_not_ended(jobs: Jobs) -> None:
    """The exit code of the command is that of a job that has not ended, but was not pruned."""
    tuner = tuner_of(jobs, n_trials=7, pruner="median", top=1, top_seeds=2)
    (failed,) = next_jobs(tuner, 1)
    end(tuner, failed, "failed")
    run_all(tuner, jobs, 6)
    assert [trial.state for trial in tuner.trials] == ["failed"] + ["done"] * 5 + ["pruned"]
    assert not tuner.has_ended
    confirming = next_jobs(tuner, 2)
    for job in confirming:
        end(tuner, job, "stopped")
    assert (tuner.next(), tuner.has_ended, tuner.winner) == (None, False, None)
    assert tuner.unfinished_jobs == [failed, *confirming]


def test_objectives_by_hand(jobs: Jobs) -> None:
    job = jobs.make({"x": "1"}, 0)
    job.run_dir.mkdir()
    lines = [
        {"opt_steps": step, "eval/return_mean": score} for step, score in ((10, 1.0), (20, 3.0), (30, 2.0))
    ]
    (job.run_dir / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert objective(job, "last") == 2.0
    assert objective(job, "area") == 2.25  # (2·10 + 2.5·10) / 20
    assert objective(job, "best") == 3.0
    (job.run_dir / "summary.json").write_text('{"best_score": {"mean": 2.5}, "last_score": {"mean": 2.0}}')
    job.refresh()
    assert objective(job, "best") == 2.5  # that of other episodes than the regular ones


# -- what Optuna draws ----------------------------------------------------------


@pytest.mark.parametrize("sampler", ["tpe", "random", "cmaes", "gp"])
def test_values_that_an_earlier_trial_has_are_not_tried_again(jobs: Jobs, sampler: str) -> None:
    notes = list[str]()
    space = {"x": optuna.distributions.CategoricalDistribution(["0.5", "0.9"])}
    settings = TuningSettings(n_trials=5, top=2, top_seeds=2, sampler=sampler)
    tuner = Tuner(jobs.folder, settings, space, jobs.make, notes.append)
    run_all(tuner, jobs)
    assert sorted(trial.params["x"] for trial in tuner.trials) == ["0.5", "0.9"]
    assert (tuner.has_ended, len(notes), len(jobs.known)) == (True, 1, 2 + 2 * 2)
    assert tuner.winner is not None and tuner.winner.params == {"x": "0.9"}
    again = Tuner(jobs.folder, settings, space, jobs.make, notes.append)
    assert (again.has_ended, again.next(), len(again.study.trials)) == (True, None, len(tuner.study.trials))


@pytest.mark.parametrize(("sampler", "pruner"), [("tpe", "median"), ("cmaes", "median"), ("gp", "none")])
def test_samplers_learn_from_trials_also_from_pruned_ones_and_after_a_kill(
    tmp_path: Path, sampler: str, pruner: str
) -> None:
    """The score is x times CURVE. The tuning is killed after 12 jobs and continues."""
    space = {name: optuna.distributions.FloatDistribution(0.0, 1.0) for name in ("x", "y")}
    first = []
    for seed, parts in ((0, (12, 1000)), (1, (5,))):
        jobs = Jobs(tmp_path / str(seed))
        jobs.folder.mkdir()
        settings = TuningSettings(n_trials=30, top=0, sampler=sampler, pruner=pruner, seed=seed)
        for most in parts:
            tuner = Tuner(jobs.folder, settings, space, jobs.make, print, PRUNES_FROM)
            run_all(tuner, jobs, most)
        x = [float(trial.params["x"]) for trial in tuner.trials]
        first.append(set(x[:5]))
        if seed == 0:
            assert sum(x[15:]) / len(x[15:]) > 0.65  # half of it at random
    assert not first[0] & first[1]  # another seed draws others


def test_values_have_four_digits_unless_those_leave_the_range() -> None:
    gamma = optuna.distributions.FloatDistribution(0.99, 0.99999)
    assert value_text(0.992345678, gamma) == "0.9923"
    assert value_text(0.999987, gamma) == "0.999987"
    assert value_text(12345, optuna.distributions.IntDistribution(1, 20000)) == "12345"
