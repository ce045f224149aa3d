"""Advice about what bounds a run, and which budget ends it."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import pytest

from border_cli.core.progress import Progress
from border_cli.display.advice import WAITS, Budget, advice, first_to_end

TRAINING = Progress(
    phase="training", seconds=60.0, opt_steps=1_000, env_steps=3_000, warmup_period=1_000, ratio_target=2.0,
    ratio_actual=2.0, actors_blocked=0.05, learner_blocked=0.05, n_actors=8, actors_alive=8,
)  # fmt: skip
BELOW = WAITS - 0.01


def advised(cores: int | None = None, **changes: Any) -> str:
    return advice(dataclasses.replace(TRAINING, **changes), cores)


def test_a_run_bound_by_the_learner_names_the_actors_that_suffice() -> None:
    # 8 actors that are busy 37% of the time do the work of 2.96 actors; 10% more is 3.26, so 4
    assert advised(actors_blocked=0.63) == (
        "learner-bound: the actors wait 63% of the time; n_actors=4 would be enough; "
        "a larger trainer.opt_interval uses more env steps, with fewer opt steps on each"
    )
    one = advised(n_actors=1, actors_alive=1, actors_blocked=0.9)  # the learner itself is the limit
    assert one.startswith("well-chosen: n_actors=1 is enough") and "agent.batch_size" in one


def test_a_run_bound_by_actors_names_the_actors_that_suffice() -> None:
    # the learner is idle half of the time: twice the actors
    assert advised(learner_blocked=0.5) == (
        "actor-bound: the learner waits 50% of the time; n_actors=16 would keep it busy, "
        "or a smaller trainer.opt_interval does more opt steps per env step"
    )
    assert "n_actors=11" in advised(12, learner_blocked=0.99)  # at most as many as cores
    assert "n_actors=32" in advised(None, learner_blocked=0.99)  # and at most four times as many
    crowded = advised(8, learner_blocked=0.5)
    assert "learner and actors have every core" in advised(2, n_actors=1, learner_blocked=0.5)
    assert "n_actors=" not in crowded and "actor_manager.envs_per_actor" in crowded


@pytest.mark.parametrize(
    ("env_steps", "evaluation_s", "eta_s"),
    [
        (9_000, 0.0, 10.0),
        (9_000, 60.0, 70.0),
        (9_000, None, 10.0),
        (10_000, 60.0, 60.0),
        (10_000, None, None),
    ],
)
def test_the_time_left_includes_the_evaluation_of_the_last_model(
    env_steps: int, evaluation_s: float | None, eta_s: float | None
) -> None:
    p = dataclasses.replace(
        TRAINING,
        env_steps=env_steps,
        max_env_steps=10_000,
        samples_per_sec=100.0,
        last_evaluation_s=evaluation_s,
    )
    budget = first_to_end(p)
    assert budget is not None and budget.eta_s == eta_s


@pytest.mark.parametrize(
    ("changes", "start", "named"),
    [
        (
            {"actors_blocked": 0.3, "learner_blocked": 0.4},
            "hand-over-bound: the actors wait 30% of the time, the learner 40%",
            "trainer.ratio_tolerance",
        ),
        ({"actors_blocked": BELOW, "learner_blocked": BELOW}, "balanced:", ""),
        ({"actors_blocked": WAITS, "learner_blocked": BELOW}, "well-chosen: n_actors=8 is enough", ""),
        ({"actors_blocked": BELOW, "learner_blocked": WAITS}, "actor-bound:", ""),
        ({"ratio_target": None}, "ratio not enforced: ", "trainer.opt_interval="),
        (
            {"asynchronous": False, "actors_blocked": None, "learner_blocked": None},
            "sync: ",
            "trainer=async",
        ),
        ({"phase": "starting"}, "starting: ", ""),
        ({"phase": "stopping"}, "stopping: ", ""),
        ({"phase": "evaluating", "learner_blocked": 0.5}, "actor-bound: ", "n_actors=16"),
        ({"phase": "saving", "learner_blocked": 0.5}, "actor-bound: ", "n_actors=16"),
    ],
)
def test_what_bounds_the_run(changes: dict[str, Any], start: str, named: str) -> None:
    text = advised(**changes)
    assert text.startswith(start) and named in text


@pytest.mark.parametrize("changes", [{"opt_steps": 0}, {"actors_blocked": None}, {"learner_blocked": None}])
def test_there_is_no_advice_before_there_are_rates(changes: dict[str, Any]) -> None:
    assert advised(**changes) == "not measured yet: what bounds the speed of the run"


def test_the_advice_during_warm_up_is_what_is_left() -> None:
    warm: dict[str, Any] = {"phase": "warm-up", "opt_steps": 0}
    assert advised(**warm, env_steps=640) == "warm-up: 360 env steps to go before the first opt step"
    assert advised(**warm, env_steps=999) == "warm-up: 1 env step to go before the first opt step"
    assert advised(**warm, env_steps=1_000) == "warm-up: the first opt step waits for a batch"


def test_advice_never_raises() -> None:
    shares = (None, 0.0, 0.5, 1.0)
    for actors, learner, n, target in itertools.product(shares, shares, (0, 1, 1024), (None, 0.5)):
        text = advised(2, actors_blocked=actors, learner_blocked=learner, n_actors=n, ratio_target=target)
        assert text and "\n" not in text


# 5,000 opt steps at 100/s take 50 s, 10,000 env steps at 400/s take 25 s, and max_time leaves 40 s
THREE = Progress(
    seconds=60, opt_steps=5_000, env_steps=40_000, max_opts=10_000, max_env_steps=50_000, max_time=100,
    opt_steps_per_sec=100.0, samples_per_sec=400.0,
)  # fmt: skip
WARMING = Progress(env_steps=500, max_env_steps=1_000, max_time=100, samples_per_sec=50.0)
"""Before the first opt step rates say nothing about the run, so the budget counts that is used most."""


@pytest.mark.parametrize(
    ("progress", "first"),
    [
        (Progress(), None),
        (THREE, Budget("env steps", 40_000, 50_000, 25.0)),
        (dataclasses.replace(WARMING, seconds=10), Budget("env steps", 500, 1_000, None)),
        (dataclasses.replace(WARMING, seconds=80), Budget("s", 80, 100, 20)),
        (Progress(opt_steps=1, max_opts=10, opt_steps_per_sec=0.0), Budget("opt steps", 1, 10, None)),
        (Progress(opt_steps=1, max_opts=10), Budget("opt steps", 1, 10, None)),
        (Progress(opt_steps=10, max_opts=10), Budget("opt steps", 10, 10, 0.0)),
    ],
)
def test_the_budget_that_ends_the_run(progress: Progress, first: Budget | None) -> None:
    assert first_to_end(progress) == first
