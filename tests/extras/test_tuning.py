"""Tuning: promotions by hand over made-up curves, a real study that is killed and continues, and its journal."""

from __future__ import annotations

import json
import signal
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any
from wsgiref.util import setup_testing_defaults

import pytest

from border_cli import compose
from border_cli.agents.dqn.config import DqnConfig
from border_cli.cli.space import default_space, read_space
from border_cli.cli.train import main
from border_cli.config.convert import dotted, load, to_plain
from border_cli.config.registry import AGENTS
from border_cli.config.schema import TrainConfig
from border_cli.core.errors import UsageError
from border_cli.core.progress import JobProgress
from border_cli.sweeps.jobs import Job
from border_cli.sweeps.study import Study, expected_scores, value_text
from border_cli.sweeps.trials import TuningSettings, evaluations_of, objective
from border_cli.sweeps.tuning import Tuner
from tests.faults.commands import Command
from tests.faults.processes import wait_until
from tests.real_runs import Run, tiny

optuna = pytest.importorskip("optuna")

CURVE = [1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5, 5.0]
"""What a run with quality 1 reaches in its evaluations after 10, 20 … 90 opt steps."""


class Jobs:
    """Makes jobs, and runs them by writing the files of a run. The score of a job is its parameter x times CURVE."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.made: dict[tuple[str, int], Job] = {}
        self.opt_steps: list[tuple[int, int]] = []  # job, opt steps that this piece did
        self.config = TrainConfig()
        self.config.trainer.eval_interval = 10
        self.config.trainer.max_opts, self.config.trainer.max_env_steps = 90, None

    def make(self, params: Mapping[str, str], more_seed: int, label: str) -> tuple[Job, TrainConfig]:
        key = params["x"], more_seed
        if key not in self.made:
            self.made[key] = Job(
                len(self.made), (f"x={key[0]}", f"seed={more_seed}"), self.folder / str(len(self.made))
            )
        self.made[key].refresh()
        return self.made[key], self.config

    def run(self, job: Job, until: int | None, quality: float | None = None) -> None:
        """Run to the evaluation at this opt step, or to the end of the budget. quality: in the place of x."""
        x = float(job.overrides[0][2:]) if quality is None else quality
        before = len(evaluations_of(job))
        n = len(CURVE) if until is None else until // 10
        job.run_dir.mkdir(exist_ok=True)
        (job.run_dir / "config.yaml").write_text("{}\n")
        with (job.run_dir / "metrics.jsonl").open("a") as file:
            for i in range(before, n):
                file.write(json.dumps({"opt_steps": 10 * (i + 1), "eval/return_mean": x * CURVE[i]}) + "\n")
        status = "done" if until is None else "stopped"
        score = {"mean": x * CURVE[n - 1]}
        summary = {
            "status": status,
            "best_score": score,
            "last_score": score,
            "counters": {"opt_steps": 10 * n},
        }
        (job.run_dir / "summary.json").write_text(json.dumps(summary))
        self.opt_steps.append((job.number, 10 * (n - before)))
        job.refresh()


def tuner_of(jobs: Jobs, retry: bool = False, **settings: Any) -> Tuner:
    """A tuner whose first trials are 0.9, 0.8 … 0.1."""
    space, notes = {"x": optuna.distributions.FloatDistribution(0.0, 1.0)}, list[str]()
    checked = TuningSettings(**{"sampler": "random", "reduction": 3, "rungs": 3, **settings})
    tuner = Tuner(jobs.folder, checked, space, jobs.make, notes.append, retry)
    if not tuner.study.trials:
        for n in range(9, 0, -1):
            tuner.study._study.enqueue_trial({"x": n / 10})
    return tuner


def saved_winner(folder: Path) -> int | None:
    found: int | None = json.loads((folder / "tuning.json").read_text())["winner"]
    return found


def run_all(tuner: Tuner, jobs: Jobs, most: int = 1000) -> None:
    """One job after the other."""
    for _ in range(most):
        job = tuner.next()
        if job is None:
            return
        jobs.run(job, tuner.pause_at(job))
        tuner.ended(job)


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


def test_a_judged_trial_with_a_failed_run_does_not_win(tmp_path: Path) -> None:
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
    job.state = "failed"  # as sweep.json has it
    assert (tuner_of(jobs, n_trials=2, pruner="none", top=0).next(), job.state) == (None, "failed")
    again = tuner_of(jobs, retry=True, n_trials=2, pruner="none", top=0)
    run_all(again, jobs)
    assert [trial.state for trial in again.trials] == ["done", "done"]
    assert again.study._study.best_trial.value == pytest.approx(0.9 * 5.0)


def test_the_gaussian_process_learns_from_a_trial_that_failed_first(tmp_path: Path) -> None:
    """Its record in the study stays a failed one."""
    space = {name: optuna.distributions.FloatDistribution(0.0, 1.0) for name in ("x", "y")}
    study, tried, numbers = Study(tmp_path, space, "gp", 0, "halving"), list[dict[str, str]](), list[int]()
    for _ in range(10):
        number, params = study.draw(tried, {}) or (0, {})
        study.fail(number)
        numbers.append(number)
        tried.append(params)
    scores = {number: [float(params["x"])] for number, params in zip(numbers, tried, strict=True)}
    for number in numbers:
        study.tell(number, 0, {10: scores[number][0]}, None)
    drawn = study.draw(tried, scores)
    assert drawn is not None and float(drawn[1]["x"]) > max(one[0] for one in scores.values())


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


@pytest.mark.parametrize("top", [0, 2])
@pytest.mark.parametrize("sampler", ["tpe", "random", "cmaes", "gp"])
def test_values_that_an_earlier_trial_has_are_not_tried_again(tmp_path: Path, sampler: str, top: int) -> None:
    jobs, notes = Jobs(tmp_path), list[str]()
    space = {"x": optuna.distributions.CategoricalDistribution(["0.5", "0.9"])}
    settings = TuningSettings(n_trials=5, top=top, top_seeds=2, sampler=sampler)
    tuner = Tuner(jobs.folder, settings, space, jobs.make, notes.append)
    run_all(tuner, jobs)
    assert sorted(trial.params["x"] for trial in tuner.trials) == ["0.5", "0.9"]
    assert (tuner.has_ended, len(notes), len(jobs.made)) == (True, 1, 2 + top * 2)
    best = next(trial.number for trial in tuner.trials if trial.params["x"] == "0.9")
    assert saved_winner(tmp_path) == best
    again = Tuner(jobs.folder, settings, space, jobs.make, notes.append)
    assert (again.has_ended, again.next(), len(again.study.trials)) == (True, None, len(tuner.study.trials))


def sampled(folder: Path, sampler: str, pruner: str, n_trials: int = 40, seed: int = 0) -> list[float]:
    """The values of x in all trials; the score is x times CURVE. The tuning is killed after 15 jobs and continues."""
    jobs = Jobs(folder)
    settings = TuningSettings(n_trials=n_trials, top=0, sampler=sampler, pruner=pruner, seed=seed)
    space = {name: optuna.distributions.FloatDistribution(0.0, 1.0) for name in ("x", "y")}
    for most in (15, 1000):
        tuner = Tuner(jobs.folder, settings, space, jobs.make, print)
        run_all(tuner, jobs, most)
    return [float(trial.params["x"]) for trial in tuner.trials]


@pytest.mark.parametrize("sampler", ["tpe", "cmaes"])
def test_samplers_learn_from_trials_that_are_not_promoted(tmp_path: Path, sampler: str) -> None:
    later = sampled(tmp_path, sampler, "halving")[20:]
    assert sum(later) / len(later) > 0.65  # half of it at random


@pytest.mark.parametrize("pruner", ["none", "halving"])
def test_the_gaussian_process_finds_the_best_value(tmp_path: Path, pruner: str) -> None:
    assert max(sampled(tmp_path, "gp", pruner)) > 0.999


def test_scores_further_up_are_predicted_by_the_line_through_those_that_have_come_so_far() -> None:
    """1, 2, 3 → 10, 30, 50: a covariance of 40 over a variance of 2, and the added point has the variance 2 of all trials.

    The slope is (40 + 2) / (2 + 2) = 10.5, and the line goes through (2, 30).
    """
    scores = [[1.0, 10.0], [0.0], [2.0, 30.0, 7.0], [3.0, 50.0, 9.0], [4.0]]
    assert expected_scores(scores) == [
        10.0,
        30 - 21.0,
        30.0,
        50.0,
        30 + 21.0,
    ]  # two make no line to the third rung


def test_predictions_go_from_rung_to_rung() -> None:
    """10, 20, 30 → 12, 22, 32: the slope is 1, also with the added point, so 0 → 2."""
    assert expected_scores([[5.0, 0.0], [6.0, 10.0, 12.0], [7.0, 20.0, 22.0], [8.0, 30.0, 32.0]]) == [
        2,
        12,
        22,
        32,
    ]


def test_a_predicted_score_does_not_fall_while_the_known_one_rises() -> None:
    """1, 2, 3 → 9, 6, 3 has a covariance of -6, and the added point 1.25."""
    assert expected_scores([[1.0, 9.0], [2.0, 6.0], [3.0, 3.0], [0.0]]) == [9.0, 6.0, 3.0, 6.0]


def test_trials_with_the_same_score_are_predicted_to_gain_as_much() -> None:
    """Those that went on gained 99.3 on average."""
    same = [[0.7, 90.0], [0.7, 100.0], [0.7, 110.0]]
    assert expected_scores([*same, [0.7], [0.35]]) == pytest.approx([90, 100, 110, 100, 99.65])
    assert expected_scores([*same, [0.7]]) == pytest.approx([90, 100, 110, 100])


def test_two_trials_do_not_say_what_others_would_reach() -> None:
    assert expected_scores([[2.0, 9.0], [1.0, 6.0], [0.0]]) == [2.0, 1.0, 0.0]


def test_the_gaussian_process_learns_from_what_the_first_rung_does_not_show(tmp_path: Path) -> None:
    """The first rung shows the same score for all x from 0.5 on, and those trials go on to the second, which shows x."""
    space = {name: optuna.distributions.FloatDistribution(0.0, 1.0) for name in ("x", "y")}
    study, scores = Study(tmp_path, space, "gp", 0, "halving"), dict[int, list[float]]()
    tried: list[dict[str, str]] = []
    for _ in range(18):
        drawn = study.draw(tried, scores)
        assert drawn is not None
        number, params = drawn
        x = float(params["x"])
        tried.append(params)
        scores[number] = [min(x, 0.5), x] if x >= 0.5 else [x]
        for rung, score in enumerate(scores[number]):
            study.tell(number, rung, {10: scores[number][0]}, score if rung else None)
    later = [(i, float(tried[i]["x"])) for i in range(10, len(tried))]
    assert median(x for i, x in later if i % 3) > 0.99
    assert median(x for i, x in later if i % 3 == 0) < 0.9, "one of three is random"


def test_the_first_trials_of_another_seed_are_others(tmp_path: Path) -> None:
    for name in ("0", "1"):
        (tmp_path / name).mkdir()
    first, second = (sampled(tmp_path / str(seed), "gp", "halving", 9, seed) for seed in (0, 1))
    assert not set(first) & set(second)


def test_a_tuning_that_is_stopped_while_it_judges_has_not_ended(tmp_path: Path) -> None:
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


def test_search_spaces_in_words_of_hydra() -> None:
    words = [
        "agent=dqn",
        "++agent.lr=tag(log,interval(1e-4,3e-3))",
        "++agent.batch_size=choice(32,64)",
        "++agent.hidden=choice([64,64],[128])",
        "++buffer.n_step=range(1,6,2)",
        "++agent.target_interval=int(interval(1,9))",
        "++seed=5",
    ]
    space = read_space(words, lambda: {"agent.gamma": "choice(0.9,0.99)"}, optuna)
    d = optuna.distributions
    assert space.distributions == {
        "agent.lr": d.FloatDistribution(1e-4, 3e-3, log=True),
        "agent.batch_size": d.CategoricalDistribution(["32", "64"]),
        "agent.hidden": d.CategoricalDistribution(["[64,64]", "[128]"]),
        "buffer.n_step": d.IntDistribution(1, 5, step=2),
        "agent.target_interval": d.IntDistribution(1, 9),
    }
    assert read_space(["++x=tag(log,range(1,9))"], dict, optuna).distributions == {
        "x": d.IntDistribution(1, 8, log=True)
    }
    assert space.overrides({"agent.lr": "0.001"}, 2) == ["agent=dqn", "++agent.lr=0.001", "++seed=7"]
    own = read_space(
        ["agent=dqn", "++agent.lr=0.5"],
        lambda: {"agent.lr": "choice(1,2)", "agent.gamma": "choice(0.9,0.99)"},
        optuna,
    )
    assert list(own.distributions) == ["agent.gamma"]
    with pytest.raises(UsageError, match=r"hydra\.sweeper\.seeds"):
        read_space(["++seed=1,2", *words[1:-1]], dict, optuna)


@pytest.mark.parametrize("agent", list(AGENTS))
def test_each_agent_has_a_search_space_whose_values_are_allowed(agent: str) -> None:
    env = "cartpole" if issubclass(AGENTS[agent].config, DqnConfig) else "pendulum"
    typed = [f"agent={agent}", f"env={env}", "preset=none"]
    space = read_space(typed, lambda: default_space(agent), optuna)
    every = [
        {
            key: str(
                one.choices[i % len(one.choices)] if hasattr(one, "choices") else (one.low, one.high)[i % 2]
            )
            for key, one in space.distributions.items()
        }
        for i in range(4)
    ]
    for params in every:
        config = dotted(to_plain(compose(*space.overrides(params, 0))))
        for key, value in params.items():
            assert str(config[key]).replace(" ", "") == value


def test_values_have_four_digits_unless_those_leave_the_range() -> None:
    gamma = optuna.distributions.FloatDistribution(0.99, 0.99999)
    assert value_text(0.992345678, gamma) == "0.9923"
    assert value_text(0.999987, gamma) == "0.999987"
    assert value_text(12345, optuna.distributions.IntDistribution(1, 20000)) == "12345"


def test_several_environments_are_no_search_space() -> None:
    with pytest.raises(UsageError, match="env has several values"):
        read_space(["agent=dqn", "env=cartpole,acrobot"], dict, optuna)


def test_an_agent_without_a_search_space_is_named() -> None:
    with pytest.raises(UsageError, match="nearest: dqn"):
        default_space("dqnn")


@pytest.mark.parametrize(
    ("name", "value"),
    [("sampler", "tpee"), ("pruner", "x"), ("objective", "y"), ("n_trials", 0), ("seed", -1)],
)
def test_settings_out_of_range_are_named(name: str, value: Any) -> None:
    with pytest.raises(UsageError, match=rf"hydra\.sweeper\.{name}="):
        TuningSettings(**{name: value})


# -- with real runs -----------------------------------------------------------

TUNED = (
    "hydra/sweeper=border_optuna",
    "agent.lr=tag(log,interval(1e-4,1e-2))",
    "agent.gamma=choice(0.9,0.95,0.99)",  # before agent.lr in the alphabet, as tuning.json has them
    "hydra.sweeper.n_trials=4",
    "hydra.sweeper.top=1",
    "hydra.sweeper.top_seeds=2",
    "trainer=sync",
    "trainer.max_opts=60",
    "trainer.eval_interval=10",
    "trainer.save_interval=null",
)


def test_a_killed_tuning_continues_and_the_winner_is_a_preset(
    workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = tiny(*TUNED, "sweep.slots=1", "recorder.console=plain")
    with Command(workplace, "-m", *words) as command:
        wait_until(lambda: len(list(workplace.glob("runs/sweeps/*/*/*/summary.json"))) >= 2, "two runs")
        command.send(signal.SIGKILL)
        assert command.end() == 137
    assert main(["-m", *words[:-1], "recorder.console=auto", "debug=true"]) == 0  # which change no job
    (sweep,) = workplace.glob("runs/sweeps/*/*")
    tuning = json.loads((sweep / "tuning.json").read_text())
    assert len(tuning["trials"]) == 4
    assert len(list(sweep.glob("*_dqn_cartpole"))) == 4 + 2  # no run began anew
    assert {trial["state"] for trial in tuning["trials"]} == {"paused", "done"}
    paused = next(trial for trial in tuning["trials"] if trial["state"] == "paused")
    run = Run(sweep / f"{paused['jobs'][0]}_dqn_cartpole")
    assert (run.summary["status"], run.checkpoints) == ("stopped", ["step-000000030"])
    done = next(trial for trial in tuning["trials"] if trial["state"] == "done")
    whole = Run(sweep / f"{done['jobs'][0]}_dqn_cartpole")
    assert (whole.counts[0], whole.steps("eval/return_mean")) == (60, [10, 20, 30, 40, 50, 60])
    assert len(whole.json("provenance.json")["launches"]) >= 2  # paused, and continued
    preset = load(sweep / "best_cartpole.yaml")
    assert preset["agent"]["lr"] == float(done["params"]["agent.lr"])
    out = capsys.readouterr().out
    assert "if each promotion had started over" in out

    study = optuna.load_study(
        study_name="border-cli",
        storage=optuna.storages.JournalStorage(
            optuna.storages.journal.JournalFileBackend(str(sweep / "study.log"))
        ),
    )
    assert study.best_trial.params["agent.lr"] == pytest.approx(float(done["params"]["agent.lr"]), rel=1e-3)


def test_optuna_dashboard_reads_the_journal(tmp_path: Path) -> None:
    dashboard = pytest.importorskip("optuna_dashboard")
    jobs = Jobs(tmp_path)
    run_all(tuner_of(jobs, n_trials=3, top=0), jobs)
    storage = optuna.storages.JournalStorage(
        optuna.storages.journal.JournalFileBackend(str(tmp_path / "study.log"))
    )
    app = dashboard.wsgi(storage)
    answer: dict[str, Any] = {}
    environ: dict[str, Any] = {"PATH_INFO": "/api/studies"}
    setup_testing_defaults(environ)
    body = b"".join(app(environ, lambda status, headers, error=None: answer.update(status=status)))
    assert answer["status"].startswith("200")
    assert json.loads(body)["study_summaries"][0]["study_name"] == "border-cli"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["seed=1,2", "agent.lr=interval(0.1,0.2)"], "hydra.sweeper.seeds"),
        (["seed=abc", "agent.lr=interval(0.1,0.2)"], "seed=abc: not allowed in a tuning"),
        (["seed=null", "agent.lr=interval(0.1,0.2)"], "seed=None: not allowed in a tuning"),
        (["env=gym", "env.id=CartPole-v1,Acrobot-v1"], "env.id has several values"),
        (
            ["agent.lr=interval(0.1,0.2)", "hydra/launcher=basic"],
            "hydra/launcher=basic does not run the trials",
        ),
        (["hydra.sweeper.sampler=tp"], "allowed: gp, tpe, cmaes, random"),
        (["agent.lr=interval(0.1,0.2)", "trainer.eval_interval=null"], "tuning needs evaluations"),
        (["hydra.sweeper.space=nowhere"], "no search space for 'nowhere'"),
        (["agent.lr=0.1", "agent.lrr=interval(0.1,0.2)"], "agent.lrr: there is no such key"),
        (["agent.lr=interval(0.1,5)"], "agent.lr: 5 is out of range"),
        (["agent.batch_size=range(64,32)"], "agent.batch_size=range(64,32): the range is empty"),
        (["agent=glob(d*)"], "a glob is not a search space"),
        (["agent.batch_size=tag(log,range(32,64,4))"], "when `log` argument is True"),
        (["agent.batch_size=interval(32,64)"], "agent.batch_size: 43.84 is not a whole number"),
    ],
)
def test_mistakes_are_named_before_there_is_a_folder(
    workplace: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    assert main(["-m", "hydra/sweeper=border_optuna", *words]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert len(error.splitlines()) <= 3
    assert not (workplace / "runs").exists()
