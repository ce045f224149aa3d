"""What bounds a run, told from one snapshot."""

from __future__ import annotations

import dataclasses
import itertools
import math
from typing import Any

import pytest

from border_cli.core.progress import Progress
from border_cli.recorders.advice import WAITS, advice

TRAINING = Progress(
    phase="training", seconds=60.0, opt_steps=1_000, env_steps=3_000, warmup_period=1_000, ratio_target=2.0,
    ratio_actual=2.0, actors_blocked=0.05, learner_blocked=0.05, n_actors=8, actors_alive=8,
)  # fmt: skip


def said(cores: int | None = None, **changes: Any) -> str:
    return advice(dataclasses.replace(TRAINING, **changes), cores)


def test_learner_bound_counts_the_actors_that_would_do() -> None:
    # 8 actors busy 37% of the time do the work of 2.96; with a tenth to spare 3.26, so 4
    assert said(actors_blocked=0.63) == (
        "learner-bound: the actors wait 63% of the time; n_actors=4 would do, "
        "a larger trainer.opt_interval uses all but learns less from each"
    )


def test_fewer_actors_free_cores_only_where_they_are_short() -> None:
    assert "n_actors=4 frees cores" in said(cores=8, actors_blocked=0.63)
    assert "n_actors=4 would do" in said(cores=16, actors_blocked=0.63)


def test_with_one_actor_the_learner_itself_has_to_be_faster() -> None:
    text = said(n_actors=1, actors_alive=1, actors_blocked=0.9)
    assert "n_actors" not in text
    assert "agent.batch_size" in text


def test_actor_bound_counts_the_actors_that_would_feed_it() -> None:
    # half of the learner's time is idle: twice the actors
    assert said(learner_blocked=0.5) == (
        "actor-bound: the learner waits 50% of the time; n_actors=16 would feed it better, "
        "or a smaller trainer.opt_interval learns more from the same env steps"
    )


@pytest.mark.parametrize(("cores", "suggested"), [(12, "n_actors=11"), (None, "n_actors=32")])
def test_no_more_actors_than_cores_nor_than_four_times_as_many(cores: int | None, suggested: str) -> None:
    assert suggested in said(cores, learner_blocked=0.99)


def test_where_no_core_is_left_other_ways_are_named() -> None:
    text = said(8, learner_blocked=0.5)
    assert "n_actors=" not in text
    assert "actor_manager.envs_per_actor" in text


def test_when_both_wait_the_hand_over_costs() -> None:
    text = said(actors_blocked=0.3, learner_blocked=0.4)
    assert text.startswith("hand-over-bound: the actors wait 30% of the time and the learner 40%")
    assert "trainer.ratio_tolerance" in text


def test_balanced_below_the_threshold() -> None:
    below = WAITS - 0.01
    assert said(actors_blocked=below, learner_blocked=below).startswith("balanced:")
    assert said(actors_blocked=WAITS, learner_blocked=below).startswith("learner-bound:")
    assert said(actors_blocked=below, learner_blocked=WAITS).startswith("actor-bound:")


def test_free_running_says_the_ratio_that_could_be_held() -> None:
    # without a measured ratio: (3,000 - 1,000) env steps over 1,000 opt steps
    text = said(ratio_target=None, ratio_actual=None)
    assert text.startswith("free-running: 2.00 env steps per opt step")
    assert "trainer.opt_interval=2 " in text
    assert "trainer.opt_interval=0.5 " in said(ratio_target=None, ratio_actual=0.5)
    assert "trainer.opt_interval would" in said(ratio_target=None, ratio_actual=math.nan)


@pytest.mark.parametrize(
    "changes",
    [{"opt_steps": 0}, {"actors_blocked": None}, {"learner_blocked": None}, {"actors_blocked": math.nan}],
)
def test_too_early(changes: dict[str, Any]) -> None:
    assert said(**changes) == "too early to say what bounds the run"


def test_sync_has_its_own_words() -> None:
    text = said(asynchronous=False, actors_blocked=None, learner_blocked=None)
    assert text.startswith("sync: ")
    assert "trainer=async" in text


def test_warm_up_says_how_much_is_left() -> None:
    warm: dict[str, Any] = {"phase": "warm-up", "opt_steps": 0}
    assert said(**warm, env_steps=640, samples_per_sec=100.0) == (
        "warm-up: 360 env steps to go before the first opt step, about 0:00:04"
    )
    assert said(**warm, env_steps=999) == "warm-up: 1 env step to go before the first opt step"
    assert said(**warm, env_steps=1_000) == "warm-up: the first opt step waits for a batch"


@pytest.mark.parametrize("phase", ["evaluating", "saving"])
def test_a_short_phase_does_not_change_the_answer(phase: str) -> None:
    assert said(phase=phase, learner_blocked=0.5) == said(learner_blocked=0.5)


def test_starting_and_stopping() -> None:
    assert said(phase="starting").startswith("starting: the actors")
    assert said(phase="starting", asynchronous=False) == "starting: making environments"
    assert said(phase="stopping").startswith("stopping: ")


EXTREMES: tuple[float | None, ...] = (None, 0.0, 1.0, 1e300, math.nan, math.inf)


@pytest.mark.parametrize(("actors", "learner"), list(itertools.product(EXTREMES, EXTREMES)))
def test_never_fails(actors: float | None, learner: float | None) -> None:
    for n, target in itertools.product((0, 1, 1024), (None, 0.5)):
        text = said(2, actors_blocked=actors, learner_blocked=learner, n_actors=n, ratio_target=target)
        assert text and "\n" not in text
