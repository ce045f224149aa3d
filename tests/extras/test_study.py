"""Optuna's study: what samplers learn from trials, and the journal."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from wsgiref.util import setup_testing_defaults

import pytest

from border_cli.sweeps.study import TuningSettings, value_text
from border_cli.sweeps.tuning import Tuner
from tests.made_up_trials import PRUNES_FROM, Jobs, run_all, tuner_of

optuna = pytest.importorskip("optuna")


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
    assert tuner.winner is not None and tuner.winner.params == {"x": "0.9"}
    again = Tuner(jobs.folder, settings, space, jobs.make, notes.append)
    assert (again.has_ended, again.next(), len(again.study.trials)) == (True, None, len(tuner.study.trials))


def sampled(folder: Path, sampler: str, pruner: str, n_trials: int = 40, seed: int = 0) -> list[float]:
    """The values of x in all trials; the score is x times CURVE. The tuning is killed after 15 jobs and continues."""
    jobs = Jobs(folder)
    settings = TuningSettings(n_trials=n_trials, top=0, sampler=sampler, pruner=pruner, seed=seed)
    space = {name: optuna.distributions.FloatDistribution(0.0, 1.0) for name in ("x", "y")}
    for most in (15, 1000):
        tuner = Tuner(jobs.folder, settings, space, jobs.make, print, PRUNES_FROM)
        run_all(tuner, jobs, most)
    return [float(trial.params["x"]) for trial in tuner.trials]


@pytest.mark.parametrize("sampler", ["tpe", "cmaes"])
@pytest.mark.parametrize("pruner", ["median", "halving"])
def test_samplers_learn_from_trials_that_were_pruned(tmp_path: Path, sampler: str, pruner: str) -> None:
    later = sampled(tmp_path, sampler, pruner)[20:]
    assert sum(later) / len(later) > 0.65  # half of it at random


def test_the_gaussian_process_finds_the_best_value(tmp_path: Path) -> None:
    assert max(sampled(tmp_path, "gp", "none")) > 0.999


def test_the_first_trials_of_another_seed_are_others(tmp_path: Path) -> None:
    for name in ("0", "1"):
        (tmp_path / name).mkdir()
    first, second = (sampled(tmp_path / str(seed), "gp", "none", 9, seed) for seed in (0, 1))
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
