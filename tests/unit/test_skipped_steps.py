"""Opt steps with a loss or gradient that is not finite change no weight, and are counted."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from border_cli.agents.agent import NetworkAgent
from border_cli.core.types import Batch
from tests.learners import batch_of, learn_from, make_learner

COUNTED = ("stats.skipped", "stats.skipped_in_a_row")
NAN, INF = float("nan"), float("inf")


def good_batch(seed: int = 0) -> Batch:
    batch = batch_of("dqn", seed)
    batch.terminated[:] = False
    return batch


def bad_batch(reward: float = NAN, next_obs: float = 0.0) -> Batch:
    batch = good_batch()
    batch.reward[3], batch.next_obs["obs.x"][1] = reward, next_obs
    return batch


def overflowing_batch() -> Batch:
    """Return a batch with a finite loss, and a gradient of the last layer whose norm is infinite."""
    batch = good_batch()
    batch.obs["obs.x"][...] = 1e30
    batch.next_obs["obs.x"][...] = 0.0
    return batch


agent = partial(make_learner, "dqn")


def learn(learner: NetworkAgent, *batches: Batch) -> None:
    for batch in batches:
        learn_from(learner, batch)


def bits(learner: NetworkAgent) -> dict[str, bytes]:
    return {n: a.tobytes() for n, a in learner.state().arrays.items() if n not in COUNTED}


@pytest.mark.parametrize(
    ("bad", "loss"),
    [
        (bad_batch(reward=NAN), "huber"),
        (bad_batch(reward=1e30), "mse"),  # its square is infinite in float32
        (bad_batch(reward=0.0, next_obs=INF), "mse"),
        (overflowing_batch(), "huber"),
    ],
    ids=["NaN reward", "huge reward", "infinite next obs", "gradient"],
)
def test_e1_a_bad_step_changes_nothing_bit_for_bit(bad: Batch, loss: str) -> None:
    learner, other = agent(loss=loss), agent(loss=loss)
    for each in (learner, other):
        learn(each, good_batch(1), good_batch(2))
    before = bits(learner)
    learn(learner, bad)
    assert bits(learner) == before
    assert (learner.opt_steps, learner.skipped_in_a_row) == (3, 1)
    for each in (learner, other):
        learn(each, good_batch(3))
    assert bits(learner) == bits(other) != before
    assert learner.check_finite()
    assert learner.skipped_in_a_row == 0


class ElsewhereDevice:
    """The CPU, treated like a device on which reading a number is slow."""

    type = "cuda"


def test_e1_on_other_devices_skipped_steps_are_noticed_even_without_records() -> None:
    learner: Any = agent()
    learner._device = ElsewhereDevice()
    learn(learner, *[bad_batch()] * 99)
    assert learner.skipped_in_a_row == 0
    learn(learner, bad_batch())
    assert learner.skipped_in_a_row == 100


def test_e1_the_target_has_its_own_interval() -> None:
    learner = agent(target_interval=3)
    learn(learner, good_batch(1), good_batch(2), bad_batch())
    state = learner.state().arrays
    for name in [name for name in state if name.startswith("target.")]:
        assert (state[name] == state[name.replace("target.", "online.params.")]).all()


def values(learner: NetworkAgent) -> dict[str, float]:
    record = learner.take_record()
    assert record is not None
    return dict(record.values)


def test_e1_recorded_means_exclude_skipped_steps() -> None:
    learner, other = agent(), agent()
    learn(learner, good_batch(1), bad_batch(), bad_batch(), good_batch(2))
    learn(other, good_batch(1), good_batch(2))
    without = values(other)
    assert without["agent/skipped_steps"] == 0.0
    assert values(learner) == without | {"agent/skipped_steps": 2.0}
    learn(learner, bad_batch())
    assert values(learner) == {"agent/skipped_steps": 1.0}
    assert learner.take_record() is None
