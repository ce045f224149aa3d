"""Trials of a tuning over made-up curves: pruning, confirmation, kills and failures."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from border_cli.core.errors import ResourceError, UsageError
from border_cli.core.progress import JobProgress
from border_cli.sweeps.jobs import Job
from border_cli.sweeps.study import TuningSettings
from border_cli.sweeps.tuning import Tuner, evaluations_of, objective
from tests.made_up_trials import PRUNES_FROM, Jobs, run_all, tuner_of

optuna = pytest.importorskip("optuna")


def test_halving_stops_what_is_not_among_the_best_at_30_and_60_opt_steps(tmp_path: Path) -> None:
    """One of two runs on from each rung. The trials come as 0.9, 0.8 … 0.1: only the first is ever the best."""
    jobs = Jobs(tmp_path)
    tuner = tuner_of(jobs, n_trials=9, pruner="halving", top=0)
    run_all(tuner, jobs)
    best = tuner.trials[0]
    assert (tuner.winner, best.params, best.state) == (best, {"x": "0.9"}, "done")
    assert best.score == pytest.approx(0.9 * 5.0)
    stopped = {trial.params["x"]: trial.jobs[0] for trial in tuner.trials[1:]}
    last = {x: evaluations_of(job)[-1][0] for x, job in stopped.items()}
    assert last == dict.fromkeys(["0.8", "0.7", "0.6", "0.5", "0.4", "0.3", "0.2", "0.1"], 30)
    assert (tuner.has_ended, tuner.stage) == (True, "trial 9 of 9")
    states = [trial.state.name for trial in tuner.study.trials]
    assert (states.count("COMPLETE"), states.count("PRUNED")) == (1, 8)


@pytest.mark.parametrize("pruner", ["none", "halving"])
def test_a_tuning_that_stops_anywhere_continues_with_the_same_trials(tmp_path: Path, pruner: str) -> None:
    jobs = Jobs(tmp_path)
    for most in (1, 2, 3, 2, 1, 1000):
        tuner = tuner_of(jobs, n_trials=9, pruner=pruner, top=1, top_seeds=2)
        run_all(tuner, jobs, most)
    assert [len(trial.jobs) for trial in tuner.trials] == [1] * 9
    assert len(tuner.study.trials) == 9
    assert [len(trial.fresh) for trial in tuner.confirmed] == [2]
    assert tuner.stage == "confirming the best 1"
    pieces = [number for number, _ in jobs.opt_steps]
    assert sorted(pieces) == list(range(9 + 2))  # no job was run twice


def test_a_job_that_was_killed_is_queued_again(tmp_path: Path) -> None:
    jobs = Jobs(tmp_path)
    job = tuner_of(jobs, n_trials=2, seeds=2).next()
    assert job is not None
    job.run_dir.mkdir()
    (job.run_dir / "config.yaml").write_text("{}\n")
    (job.run_dir / "summary.json").write_text('{"status": "running"}')
    tuner = tuner_of(jobs, n_trials=2, seeds=2)
    assert job.state == "stopped"
    assert len(tuner._todo) == 2
    run_all(tuner, jobs)
    assert [trial.state for trial in tuner.trials].count("running") == 0


def test_a_trial_has_a_score_when_all_its_runs_are_done(tmp_path: Path) -> None:
    jobs = Jobs(tmp_path)
    tuner = tuner_of(jobs, n_trials=1, seeds=2, top=0)
    first, second = tuner.next(), tuner.next()
    assert first is not None and second is not None
    jobs.run(second, None)
    tuner.ended(second)
    assert (tuner.trials[0].state, tuner.trials[0].score) == ("running", None)
    jobs.run(first, None, quality=0.5)
    tuner.ended(first)
    assert (tuner.trials[0].state, tuner.trials[0].score) == ("done", (0.9 * 5 + 0.5 * 5) / 2)


def test_a_trial_is_pruned_by_the_mean_of_all_its_runs(tmp_path: Path) -> None:
    """Two runs each: 0.9 and 0.9 come first. One run of the second trial is better than they, the other is much worse."""
    jobs = Jobs(tmp_path)
    tuner = tuner_of(jobs, n_trials=2, seeds=2, pruner="halving", top=0)
    run_all(tuner, jobs, 2)
    good, bad = tuner.next(), tuner.next()
    assert good is not None and bad is not None
    assert tuner.may_continue(good, JobProgress("training", last=2.0, last_at=30))
    assert not tuner.may_continue(bad, JobProgress("training", last=0.1, last_at=30))
    assert tuner.trials[1].state == "pruned"


def test_a_tuning_that_is_killed_before_it_knows_the_jobs_of_a_trial_finds_them(tmp_path: Path) -> None:
    jobs = Jobs(tmp_path)
    made, make = [], jobs.make

    def killed(params: Mapping[str, str], more_seed: int, label: str) -> Job:
        made.append(make(params, more_seed, label))
        if len(made) == 2:
            raise KeyboardInterrupt
        return made[-1]

    jobs.make = killed  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        tuner_of(jobs, n_trials=1, seeds=2, top=0).next()
    jobs.make = make  # type: ignore[method-assign]
    tuner = tuner_of(jobs, n_trials=1, seeds=2, top=0)
    run_all(tuner, jobs)
    assert [(trial.jobs, trial.state) for trial in tuner.trials] == [(made, "done")]


def test_a_run_whose_records_are_damaged_fails_its_trial_alone(tmp_path: Path) -> None:
    jobs, notes = Jobs(tmp_path), list[str]()
    space = {"x": optuna.distributions.FloatDistribution(0.0, 1.0)}
    tuner = Tuner(
        jobs.folder, TuningSettings(n_trials=2, top=0, pruner="none"), space, jobs.make, notes.append
    )
    job = tuner.next()
    assert job is not None
    jobs.run(job, None)
    (job.run_dir / "metrics.jsonl").write_text("{}\nnonsense\n{}\n")
    tuner.ended(job)
    run_all(tuner, jobs)
    assert [trial.state for trial in tuner.trials] == ["failed", "done"]
    assert "metrics.jsonl cannot be read" in notes[0]


def test_a_tuning_continues_after_it_was_killed_while_it_wrote_the_journal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Optuna's lock is still there, a link to the path that was given, and part of a line."""
    monkeypatch.chdir(tmp_path)
    Path("sweep").mkdir()
    jobs = Jobs(Path("sweep"))
    run_all(tuner_of(jobs, n_trials=9, pruner="none", top=0), jobs, 3)
    Path("sweep/study.log.lock").symlink_to("sweep/study.log")
    with Path("sweep/study.log").open("a") as file:
        file.write('{"op_code":')
    for most in (2, 1000):
        tuner = tuner_of(jobs, n_trials=9, pruner="none", top=0)
        run_all(tuner, jobs, most)
    assert [trial.state for trial in tuner.trials] == ["done"] * 9


def test_a_trial_that_was_drawn_just_before_a_kill_runs(tmp_path: Path) -> None:
    """It has no jobs yet."""
    jobs = Jobs(tmp_path)
    tuner_of(jobs, n_trials=1).study.draw([])
    tuner = tuner_of(jobs, n_trials=1)
    assert jobs.made
    run_all(tuner, jobs)
    assert [(trial.params["x"], trial.state) for trial in tuner.trials] == [("0.9", "done")]


def test_a_tuning_does_not_continue_in_another_search_space(tmp_path: Path) -> None:
    jobs = Jobs(tmp_path)
    run_all(tuner_of(jobs, n_trials=2), jobs, 1)
    space = {"x": optuna.distributions.CategoricalDistribution(["0.5", "0.9"])}
    with pytest.raises(UsageError, match="another search space"):
        Tuner(jobs.folder, TuningSettings(n_trials=2), space, jobs.make, print)


def test_a_trial_whose_values_are_no_longer_allowed_has_failed_when_a_tuning_continues(
    tmp_path: Path,
) -> None:
    jobs = Jobs(tmp_path)
    run_all(tuner_of(jobs, n_trials=2, pruner="none", top=0), jobs, 1)

    def refuse(*_: object) -> None:
        raise UsageError("x=0.9: not allowed")

    jobs.make = refuse  # type: ignore[method-assign, assignment]
    again = tuner_of(jobs, n_trials=1, pruner="none", top=0)
    assert (again.next(), again.winner, again.unfinished_jobs) == (None, None, [])
    assert [trial.state for trial in again.trials] == ["failed"]


def test_a_trial_that_failed_and_ran_again_is_confirmed(tmp_path: Path) -> None:
    jobs = Jobs(tmp_path)
    settings = {"n_trials": 3, "pruner": "none", "top": 1, "top_seeds": 1}
    tuner = tuner_of(jobs, **settings)
    job = tuner.next()
    assert job is not None and tuner.trials[0].jobs == [job]
    job.state = "failed"
    tuner.ended(job)
    run_all(tuner, jobs)
    assert [(one.number, one.state) for one in tuner.ranking] == [(1, "done"), (2, "done")]
    assert [one.number for one in tuner.confirmed] == [1]
    again = tuner_of(jobs, retry=True, **settings)
    run_all(again, jobs)
    assert [(one.number, len(one.fresh)) for one in again.confirmed] == [(0, 1)]
    assert (again.winner, again.has_ended) == (again.trials[0], True)


def test_a_confirmed_trial_with_a_failed_run_does_not_win(tmp_path: Path) -> None:
    jobs = Jobs(tmp_path)
    tuner = tuner_of(jobs, n_trials=2, pruner="none", top=2, top_seeds=2)
    run_all(tuner, jobs, 2)
    for quality in (9.0, None, 0.3, 0.3):  # of 0.9 one run is lucky, and one fails
        job = tuner.next()
        assert job is not None
        if quality is None:
            job.state = "failed"
        else:
            jobs.run(job, None, quality)
        tuner.ended(job)
    assert tuner.winner is tuner.trials[1]


def test_the_median_stops_bad_trials(tmp_path: Path) -> None:
    """0.9 … 0.5 are not stopped; from then on each is below the median of those before, at 40 opt steps at the earliest."""
    jobs = Jobs(tmp_path)
    tuner = tuner_of(jobs, n_trials=9, pruner="median", top=0)
    run_all(tuner, jobs)
    assert [trial.state for trial in tuner.trials] == ["done"] * 5 + ["pruned"] * 4
    ends = [evaluations_of(trial.jobs[0])[-1][0] for trial in tuner.trials]
    assert ends[:5] == [90] * 5 and min(ends[5:]) >= PRUNES_FROM and max(ends[5:]) < 90
    states = [trial.state.name for trial in tuner.study.trials]
    assert (states.count("PRUNED"), states.count("COMPLETE")) == (4, 5)


def test_a_failed_job_fails_its_trial_alone(tmp_path: Path) -> None:
    jobs = Jobs(tmp_path)
    tuner = tuner_of(jobs, n_trials=2, seeds=2, pruner="none", top=0)
    job, other = tuner.next(), tuner.next()
    assert job is not None and other is not None
    training = JobProgress("training")
    assert tuner.may_continue(other, training)
    job.state = "failed"
    tuner.ended(job)
    assert not tuner.may_continue(other, training)  # its score would count for nothing
    run_all(tuner, jobs)
    assert [trial.state for trial in tuner.trials] == ["failed", "done"]
    assert [trial.state.name for trial in tuner.study.trials[:2]] == ["FAIL", "COMPLETE"]


def test_the_unfinished_jobs_of_a_tuning_are_not_those_that_were_pruned(tmp_path: Path) -> None:
    """Their exit codes are that of the command."""
    jobs = Jobs(tmp_path)
    tuner = tuner_of(jobs, n_trials=3, pruner="halving", top=1, top_seeds=1)
    failed = tuner.next()
    assert failed is not None
    failed.state = "failed"
    tuner.ended(failed)
    assert tuner.unfinished_jobs == [failed]
    run_all(tuner, jobs, 2)
    stopped = tuner.next()  # confirms the best one
    assert stopped is not None and [one.state for one in tuner.trials] == ["failed", "done", "pruned"]
    stopped.state = "stopped"
    tuner.ended(stopped)
    assert tuner.unfinished_jobs == [failed, stopped]


def test_what_failed_runs_again_if_it_is_asked_for(tmp_path: Path) -> None:
    jobs = Jobs(tmp_path)
    tuner = tuner_of(jobs, n_trials=2, pruner="none", top=0)
    job = tuner.next()
    assert job is not None
    job.state = "failed"
    tuner.ended(job)
    run_all(tuner, jobs)
    job.state = "failed"  # as sweep.jsonl has it
    assert (tuner_of(jobs, n_trials=2, pruner="none", top=0).next(), job.state) == (None, "failed")
    again = tuner_of(jobs, retry=True, n_trials=2, pruner="none", top=0)
    run_all(again, jobs)
    assert [trial.state for trial in again.trials] == ["done", "done"]
    assert again.study._study.best_trial.value == pytest.approx(0.9 * 5.0)


def test_a_trial_that_runs_again_is_another_one_for_optuna(tmp_path: Path) -> None:
    """The first one has failed, and takes no more reports."""
    jobs = Jobs(tmp_path)
    tuner = tuner_of(jobs, n_trials=1, pruner="median", top=0)
    job = tuner.next()
    assert job is not None
    job.state = "failed"
    tuner.ended(job)
    again = tuner_of(jobs, retry=True, n_trials=1, pruner="median", top=0)
    job = again.next()
    assert job is not None and again.may_continue(job, JobProgress("training", last=1.0, last_at=10))
    jobs.run(job, None)
    again.ended(job)
    assert [trial.state for trial in again.trials] == ["done"]
    assert again.study.trials[again.trials[0].in_study].state.name == "COMPLETE"


def test_a_run_without_the_evaluations_that_it_should_have_fails_its_trial(tmp_path: Path) -> None:
    jobs = Jobs(tmp_path)
    tuner = tuner_of(jobs, n_trials=1, top=0)
    job = tuner.next()
    assert job is not None
    job.run_dir.mkdir()
    job.state = "done"
    tuner.ended(job)
    assert (tuner.trials[0].state, tuner.next(), tuner.has_ended) == ("failed", None, True)


def test_a_tuning_that_is_stopped_while_it_confirms_has_not_ended(tmp_path: Path) -> None:
    jobs = Jobs(tmp_path)
    tuner = tuner_of(jobs, n_trials=1, pruner="none", top=1, top_seeds=2)
    run_all(tuner, jobs, 1)
    assert not tuner.has_ended
    for job in (tuner.next(), tuner.next()):
        assert job is not None
        job.state = "stopped"
        tuner.ended(job)
    assert (len(tuner._todo), tuner.has_ended, tuner.winner) == (0, False, None)


def test_objectives_by_hand(tmp_path: Path) -> None:
    jobs = Jobs(tmp_path)
    job = jobs.make({"x": "1"}, 0, "")
    job.run_dir.mkdir()
    (job.run_dir / "metrics.jsonl").write_text(
        "".join(
            json.dumps({"opt_steps": step, "eval/return_mean": score}) + "\n"
            for step, score in ((10, 1.0), (20, 3.0), (30, 2.0))
        )
    )
    assert objective(job, "last") == 2.0
    assert objective(job, "area") == 2.25  # (2·10 + 2.5·10) / 20
    assert objective(job, "best") == 3.0
    (job.run_dir / "summary.json").write_text('{"best_score": {"mean": 2.5}, "last_score": {"mean": 2.0}}')
    job.refresh()
    assert objective(job, "best") == 2.5  # that of other episodes than the regular ones


def test_a_full_disk_fails_no_trial(tmp_path: Path) -> None:
    jobs = Jobs(tmp_path)

    def full(params: Mapping[str, str], more_seed: int, label: str) -> Job:
        raise ResourceError("the disk is full")

    jobs.make = full  # type: ignore[method-assign]
    tuner = tuner_of(jobs, n_trials=3)
    with pytest.raises(ResourceError):
        tuner.next()
    assert [trial.state for trial in tuner.trials] == ["running"]
