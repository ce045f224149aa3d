"""Trials of a tuning over made-up curves: promotions, pruning, confirmation, kills and failures."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from border_cli.config.schema import TrainConfig
from border_cli.core.errors import ResourceError, UsageError
from border_cli.core.progress import JobProgress
from border_cli.sweeps.jobs import Job
from border_cli.sweeps.trials import TuningSettings, objective
from border_cli.sweeps.tuning import Tuner
from tests.made_up_trials import CURVE, Jobs, run_all, saved_winner, tuner_of

optuna = pytest.importorskip("optuna")


def test_one_of_three_trials_is_promoted_twice_and_continues_where_it_paused(tmp_path: Path) -> None:
    """Rungs at 10, 30, 90 opt steps: 0.9 is promoted when 0.7 has come, 0.8 with 0.4, and 0.7 with 0.1; then 0.9 again."""
    jobs = Jobs(tmp_path)
    tuner = tuner_of(jobs, n_trials=9, top=0)
    run_all(tuner, jobs)
    reached = sorted(len(trial.scores) for trial in tuner.trials)
    assert reached == [1] * 6 + [2] * 2 + [3]
    best, x = tuner.trials[0], 0.9
    assert (tuner.winner, best.params, best.state, len(best.scores)) == (best, {"x": "0.9"}, "done", 3)
    assert best.scores == pytest.approx([x * 1.0, x * 2.0, x * 5.0])
    assert [steps for number, steps in jobs.opt_steps if number == best.jobs[0]] == [10, 20, 60]
    # 6·10 + 2·30 + 90 opt steps, and had each promotion started over, 2·10 + (10 + 30) more
    assert tuner.opt_steps == (210, 270)
    assert (tuner.has_ended, saved_winner(tmp_path)) == (True, 0)
    assert tuner.stage == "trial 9 of 9"
    states = [trial.state.name for trial in tuner.study.trials]
    assert states.count("COMPLETE") == 1
    assert states.count("PRUNED") == len(states) - 1 == 9 + 3
    complete = tuner.study._study.best_trial
    assert complete.value == pytest.approx(x * 5.0)
    assert complete.intermediate_values == pytest.approx({10: x * 1.0, 30: x * 2.0})


def test_trials_that_have_all_learned_nothing_are_promoted_when_there_are_no_others(tmp_path: Path) -> None:
    jobs = Jobs(tmp_path)
    tuner = tuner_of(jobs, n_trials=9, rungs=2, top=0)
    for n in range(9):
        job = tuner.next()
        assert job is not None and job.number == n
        jobs.run(job, tuner.pause_at(job), quality=0.0)
        tuner.ended(job)
    run_all(tuner, jobs)
    assert [len(trial.scores) for trial in tuner.trials] == [2, 2, 2] + [1] * 6


def test_a_tuning_that_stops_anywhere_continues_with_the_same_trials(tmp_path: Path) -> None:
    jobs = Jobs(tmp_path)
    for most in (1, 2, 3, 2, 1, 1000):
        tuner = tuner_of(jobs, n_trials=9, top=1, top_seeds=2)
        run_all(tuner, jobs, most)
    assert [len(trial.jobs) for trial in tuner.trials] == [1] * 9
    assert sorted(len(trial.scores) for trial in tuner.trials) == [1] * 6 + [2] * 2 + [3]
    assert len(tuner.study.trials) == 9 + 3 + 1
    assert [len(confirmation.scores) for confirmation in tuner.confirmations] == [2]
    assert tuner.stage == "confirming the best 1"
    pieces = [number for number, _ in jobs.opt_steps]
    of_trials = sorted(pieces.count(trial.jobs[0]) for trial in tuner.trials)
    assert of_trials == [1] * 6 + [2] * 2 + [3]  # no piece was run twice
    assert all(steps > 0 for _, steps in jobs.opt_steps)


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


def test_a_trial_waits_for_the_processes_of_all_its_runs(tmp_path: Path) -> None:
    """One run is at its rung in metrics.jsonl, but has not ended: it has no confirmed score and no checkpoint yet."""
    jobs = Jobs(tmp_path)
    tuner = tuner_of(jobs, n_trials=1, seeds=2, top=0)
    first, second = tuner.next(), tuner.next()
    assert first is not None and second is not None
    first.run_dir.mkdir()
    (first.run_dir / "metrics.jsonl").write_text('{"opt_steps": 10, "eval/return_mean": 0.9}\n')
    jobs.run(second, 10)
    tuner.ended(second)
    assert tuner.trials[0].state == "running"
    (first.run_dir / "metrics.jsonl").unlink()
    jobs.run(first, 10)
    tuner.ended(first)
    assert (tuner.trials[0].state, tuner.trials[0].scores) == ("paused", [0.9])


def test_a_tuning_that_is_killed_before_it_knows_the_jobs_of_a_trial_finds_them(tmp_path: Path) -> None:
    jobs = Jobs(tmp_path)
    made, make = [], jobs.make

    def killed(params: Mapping[str, str], more_seed: int, label: str) -> tuple[Job, TrainConfig]:
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
    assert [(trial.jobs, trial.state) for trial in tuner.trials] == [([0, 1], "paused")]


def test_a_run_that_is_stopped_before_the_evaluation_of_its_rung_has_not_arrived(tmp_path: Path) -> None:
    """Ctrl-C in the middle of that evaluation: the run resumes, and is evaluated then."""
    jobs = Jobs(tmp_path)
    tuner = tuner_of(jobs, n_trials=1, top=0)
    job = tuner.next()
    assert job is not None
    job.run_dir.mkdir()
    (job.run_dir / "config.yaml").write_text("{}\n")
    (job.run_dir / "summary.json").write_text('{"status": "stopped", "counters": {"opt_steps": 10}}')
    job.refresh()
    tuner.ended(job)
    assert (tuner.trials[0].state, tuner.trials[0].scores) == ("running", [])
    again = tuner_of(jobs, n_trials=1, top=0)
    run_all(again, jobs)
    assert (again.trials[0].state, again.trials[0].scores) == ("paused", [0.9])


def test_a_run_that_left_out_the_evaluation_of_its_rung_has_its_score_at_the_next_one(tmp_path: Path) -> None:
    jobs = Jobs(tmp_path)
    tuner = tuner_of(jobs, n_trials=1, top=0, objective="last")
    job = tuner.next()
    assert job is not None and tuner.pause_at(job) == 10
    jobs.run(job, 20)
    lines = (job.run_dir / "metrics.jsonl").read_text().splitlines(keepends=True)
    (job.run_dir / "metrics.jsonl").write_text(lines[1])
    tuner.ended(job)
    assert (tuner.trials[0].state, tuner.trials[0].scores) == ("paused", [0.9 * 1.5])


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
    run_all(tuner_of(jobs, n_trials=9, top=0), jobs, 3)
    Path("sweep/study.log.lock").symlink_to("sweep/study.log")
    with Path("sweep/study.log").open("a") as file:
        file.write('{"op_code":')
    for most in (2, 1000):
        tuner = tuner_of(jobs, n_trials=9, top=0)
        run_all(tuner, jobs, most)
    assert sorted(len(trial.scores) for trial in tuner.trials) == [1] * 6 + [2] * 2 + [3]


def test_a_trial_that_was_drawn_just_before_a_kill_has_failed(tmp_path: Path) -> None:
    """There is no tuning.json yet."""
    jobs = Jobs(tmp_path)
    tuner_of(jobs, n_trials=1).study.draw([], {})
    tuner = tuner_of(jobs, n_trials=1)
    assert [trial.state.name for trial in tuner.study.trials if trial.state.name != "WAITING"] == ["FAIL"]


def test_a_tuning_whose_best_trials_have_not_reached_the_end_has_no_winner_yet(tmp_path: Path) -> None:
    jobs = Jobs(tmp_path)
    tuner = tuner_of(jobs, n_trials=3, top=0)
    run_all(tuner, jobs, 3)  # nothing runs, and 0.9 is to be promoted
    assert (tuner.has_ended, saved_winner(tmp_path)) == (False, None)
    run_all(tuner, jobs)
    assert (tuner.has_ended, saved_winner(tmp_path)) == (True, 0)


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
    assert (again.next(), again.winner, again.opt_steps, again.unfinished_jobs) == (None, None, (0, 0), [])
    assert [trial.state for trial in again.trials] == ["failed"]


def test_a_trial_that_failed_later_does_not_win(tmp_path: Path) -> None:
    jobs = Jobs(tmp_path)
    tuner = tuner_of(jobs, n_trials=3, rungs=2, top=1, top_seeds=1)
    run_all(tuner, jobs, 3)  # 0.9 is the best at the first rung, and is promoted
    job = tuner.next()
    assert job is not None and tuner.trials[0].jobs == [job.number]
    job.state = "failed"
    tuner.ended(job)
    run_all(tuner, jobs)
    # The two trials that are left at the rung are too few for another promotion.
    assert [(one.number, one.state) for one in tuner.ranking] == [(1, "paused"), (2, "paused")]
    assert [one.trial for one in tuner.confirmations] == [1]
    again = tuner_of(jobs, retry=True, n_trials=3, rungs=2, top=1, top_seeds=1)
    run_all(again, jobs)  # the trial that failed is the best now, and is confirmed too
    assert [(one.trial, len(one.scores)) for one in again.confirmations] == [(1, 1), (0, 1)]
    assert (again.winner, again.has_ended, saved_winner(tmp_path)) == (again.trials[0], True, 0)


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
    assert saved_winner(tmp_path) == 1


def test_the_median_stops_bad_trials(tmp_path: Path) -> None:
    jobs = Jobs(tmp_path)
    tuner = tuner_of(jobs, n_trials=12, pruner="median", top=0)
    pruned = []
    while (job := tuner.next()) is not None:
        assert tuner.pause_at(job) is None
        x, n = float(job.overrides[0][2:]), 0
        continues = True
        while continues and n < len(CURVE):
            n += 1
            progress = JobProgress("training", last=x * CURVE[n - 1], last_at=10 * n)
            continues = tuner.may_continue(job, progress)
        jobs.run(job, None if continues else 10 * n)
        if not continues:
            pruned.append(x)
        tuner.ended(job)
    whole = [float(trial.params["x"]) for trial in tuner.trials if trial.state == "done"]
    assert pruned and max(pruned) < max(whole)
    states = [trial.state.name for trial in tuner.study.trials]
    assert (states.count("PRUNED"), states.count("COMPLETE")) == (len(pruned), len(whole))


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


def test_the_unfinished_jobs_of_a_tuning_are_not_those_that_have_paused(tmp_path: Path) -> None:
    """Their exit codes are that of the command."""
    jobs = Jobs(tmp_path)
    tuner = tuner_of(jobs, n_trials=3, top=1, top_seeds=1)
    failed = tuner.next()
    assert failed is not None
    failed.state = "failed"
    tuner.ended(failed)
    assert tuner.unfinished_jobs == [failed]
    run_all(tuner, jobs, 2)
    stopped = tuner.next()  # confirms the best one
    assert stopped is not None and [one.state for one in tuner.trials] == ["failed", "paused", "paused"]
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


def test_a_trial_that_runs_again_is_not_pruned_by_the_median(tmp_path: Path) -> None:
    """For Optuna it has failed, and takes no more reports."""
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
    for job in (tuner.next(), tuner.next()):
        assert job is not None
        job.state = "stopped"
        tuner.ended(job)
    assert (len(tuner._todo), tuner.has_ended, saved_winner(tmp_path)) == (0, False, None)


def test_objectives_by_hand(tmp_path: Path) -> None:
    jobs = Jobs(tmp_path)
    job, _ = jobs.make({"x": "1"}, 0, "")
    job.run_dir.mkdir()
    (job.run_dir / "metrics.jsonl").write_text(
        "".join(
            json.dumps({"opt_steps": step, "eval/return_mean": score}) + "\n"
            for step, score in ((10, 1.0), (20, 3.0), (30, 2.0))
        )
    )
    assert objective(job, "last", None) == 2.0
    assert objective(job, "last", 20) == 3.0
    assert objective(job, "last", 15) == 3.0  # the first evaluation at or after this opt step
    assert objective(job, "area", None) == 2.25  # (2·10 + 2.5·10) / 20
    assert objective(job, "area", 20) == 2.0
    assert objective(job, "best", None) == 3.0
    assert objective(job, "best", 10) == 1.0
    (job.run_dir / "summary.json").write_text('{"best_score": {"mean": 2.5}, "last_score": {"mean": 2.0}}')
    job.refresh()
    assert objective(job, "best", None) == 2.5  # confirmed on more episodes than one evaluation has


def test_a_full_disk_fails_no_trial(tmp_path: Path) -> None:
    jobs = Jobs(tmp_path)

    def full(params: Mapping[str, str], more_seed: int, label: str) -> tuple[Job, TrainConfig]:
        raise ResourceError("the disk is full")

    jobs.make = full  # type: ignore[method-assign]
    tuner = tuner_of(jobs, n_trials=3)
    with pytest.raises(ResourceError):
        tuner.next()
    assert [trial.state for trial in tuner.trials] == ["running"]
