"""Optuna's study: what samplers learn from trials, predicted scores by hand, and the journal."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import median
from typing import Any
from wsgiref.util import setup_testing_defaults

import pytest

from border_cli.sweeps.study import Study, expected_scores, value_text
from border_cli.sweeps.trials import TuningSettings
from border_cli.sweeps.tuning import Tuner
from tests.made_up_trials import Jobs, run_all, saved_winner, tuner_of

optuna = pytest.importorskip("optuna")


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


def test_values_have_four_digits_unless_those_leave_the_range() -> None:
    gamma = optuna.distributions.FloatDistribution(0.99, 0.99999)
    assert value_text(0.992345678, gamma) == "0.9923"
    assert value_text(0.999987, gamma) == "0.999987"
    assert value_text(12345, optuna.distributions.IntDistribution(1, 20000)) == "12345"


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
