"""Opt steps with a loss or gradient that is not finite change no weight, and are counted."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from border_cli.agents.agent import NetworkAgent
from border_cli.agents.dqn.agent import make_agent
from border_cli.agents.dqn.config import DqnConfig
from border_cli.core.types import Batch
from tests.unit.test_step_processor import SPEC

SIZE = 8
COUNTED = ("stats.skipped", "stats.skipped_in_a_row")
NAN, INF = float("nan"), float("inf")


def good_batch(seed: int = 0) -> Batch:
    rng = np.random.default_rng(seed)
    return Batch(
        obs={"obs": rng.normal(size=(SIZE, 1)).astype(np.float32)},
        action=rng.integers(0, 9, SIZE),
        reward=rng.normal(size=SIZE).astype(np.float32),
        discount=np.full(SIZE, 0.9, np.float32),
        terminated=np.zeros(SIZE, bool),
        next_obs={"obs": rng.normal(size=(SIZE, 1)).astype(np.float32)},
        ix=np.arange(SIZE),
    )


def bad_batch(reward: float = NAN, obs: float = 0.0, next_obs: float = 0.0) -> Batch:
    batch = good_batch()
    batch.reward[3], batch.obs["obs"][2], batch.next_obs["obs"][1] = reward, obs, next_obs
    return batch


def overflowing_batch() -> Batch:
    """Return a batch with a finite loss, and a gradient of the last layer whose norm is infinite."""
    batch = good_batch()
    batch.obs["obs"][...] = 1e30
    batch.next_obs["obs"][...] = 0.0
    return batch


class Batches:
    """A buffer that returns these batches in turn."""

    capacity = 1000

    def __init__(self, *batches: Batch) -> None:
        self._batches = list(batches)

    def batch(self, size: int, into: Batch | None = None) -> Batch:
        return self._batches.pop(0)


def agent(**changes: Any) -> NetworkAgent:
    return make_agent(DqnConfig(hidden=[8], batch_size=SIZE, **changes), SPEC, seed=5)


def learn(learner: NetworkAgent, *batches: Batch) -> None:
    buffer: Any = Batches(*batches)
    for _ in batches:
        learner.opt(buffer)


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


def test_e1_the_counts_of_skipped_steps_are_saved() -> None:
    learner, other = agent(), agent()
    learn(learner, good_batch(1), bad_batch(), bad_batch())
    other.load_state(learner.state())
    assert other.skipped_in_a_row == 2
    for each in (learner, other):
        learn(each, bad_batch())
        assert each.skipped_in_a_row == 3
    recorded = values(learner)
    assert recorded == values(other) and recorded["agent/skipped_steps"] == 3.0
