"""Advice about what bounds a run, and which budget ends it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from border_cli.core.progress import Progress
from border_cli.display.views import WAITS, Budget, advice, first_to_end

TRAINING = Progress(
    phase="training", seconds=60.0, opt_steps=1_000, env_steps=3_000, warmup_period=1_000, ratio_target=2.0,
    ratio_actual=2.0, actors_blocked=0.05, learner_blocked=0.05, n_actors=8, actors_alive=8,
)  # fmt: skip
BELOW = WAITS - 0.01


def advised(cores: int | None = None, **changes: Any) -> str:
    return advice(replace(TRAINING, **changes), cores)


@pytest.mark.parametrize(
    ("cores", "changes", "text"),
    [
        # 8 actors that are busy 37% of the time do the work of 2.96 actors; 10% more is 3.26, so 4
        (None, {"actors_blocked": 0.63}, "learner-bound: the actors wait 63% of the time; n_actors=4 would"),
        # the learner is idle half of the time: twice the actors, but four times as many at most, or one per core
        (None, {"learner_blocked": 0.99}, "actor-bound: the learner waits 99% of the time; n_actors=32"),
        (12, {"learner_blocked": 0.99}, "actor-bound: the learner waits 99% of the time; n_actors=11 would"),
        (
            8,
            {"learner_blocked": 0.5},
            "actor-bound: the learner waits 50% of the time; if env steps use the CPU,",
        ),
        (None, {"actors_blocked": 0.3, "learner_blocked": 0.4}, "hand-over-bound: the actors wait 30%"),
        (None, {"actors_blocked": BELOW, "learner_blocked": BELOW}, "balanced:"),
        (None, {"ratio_target": None}, "ratio not enforced: trainer.opt_interval="),
        (None, {"asynchronous": False}, "one thread: acting and opt steps take turns; "),
        (None, {"phase": "starting"}, "starting: "),
        (None, {"phase": "warm-up", "env_steps": 999}, "warm-up: 1 env step to go before the first opt step"),
        (None, {"phase": "evaluating", "opt_steps": 10, "max_opts": 10}, "the budget is used up: the last"),
        (None, {"learner_blocked": None}, "not measured yet: what bounds the speed of the run"),
    ],
)
def test_what_bounds_the_run(cores: int | None, changes: dict[str, Any], text: str) -> None:
    assert advised(cores, **changes).startswith(text)


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
        (replace(WARMING, seconds=10), Budget("env steps", 500, 1_000, None)),
        (replace(WARMING, seconds=80), Budget("s", 80, 100, 20)),
        (Progress(opt_steps=10, max_opts=10), Budget("opt steps", 10, 10, None)),
    ],
)
def test_the_budget_that_ends_the_run(progress: Progress, first: Budget | None) -> None:
    assert first_to_end(progress) == first
