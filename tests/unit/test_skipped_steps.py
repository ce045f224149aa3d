"""Opt steps with a loss or gradient that is not finite change no weight, and are counted, logged and saved."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from border_cli.agents.agent import NetworkAgent
from border_cli.agents.dqn.agent import make_agent
from border_cli.agents.dqn.config import DqnConfig
from border_cli.agents.params import BatchLoader
from border_cli.config.schema import TrainConfig
from border_cli.core.spaces import Array
from border_cli.core.types import Batch
from border_cli.training.checkpointer import CheckpointManager
from border_cli.training.loop import NonFiniteMonitor
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
        (bad_batch(reward=INF), "huber"),  # the gradient is finite
        (bad_batch(reward=1e30), "mse"),  # its square is infinite in float32
        (bad_batch(reward=0.0, obs=NAN), "huber"),
        (bad_batch(reward=0.0, next_obs=INF), "mse"),
        (overflowing_batch(), "huber"),
    ],
    ids=["NaN reward", "infinite reward", "huge reward", "NaN obs", "infinite next obs", "gradient"],
)
def test_e1_a_bad_step_changes_nothing_bit_for_bit(bad: Batch, loss: str) -> None:
    learner, other = agent(loss=loss), agent(loss=loss)
    for one in (learner, other):
        learn(one, good_batch(1), good_batch(2))
    before = bits(learner)
    learn(learner, bad)
    assert bits(learner) == before
    assert (learner.opt_steps, learner.skipped_in_a_row) == (3, 1)
    for one in (learner, other):
        learn(one, good_batch(3))
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


def test_on_other_devices_every_batch_is_copied_even_if_it_is_refilled() -> None:
    class Refilled:
        def batch(self, size: int, into: Batch | None = None) -> Batch:
            return good_batch() if into is None else into

    buffer: Any = Refilled()
    for device, same in (("cpu", True), ("meta", False)):
        loader = BatchLoader(SIZE, torch.device(device))
        assert (loader.next(buffer) is loader.next(buffer)) == same


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
    for one in (learner, other):
        learn(one, bad_batch())
        assert one.skipped_in_a_row == 3
    found = values(learner)
    assert found == values(other) and found["agent/skipped_steps"] == 3.0


def test_e1_the_batch_of_a_skipped_step_is_available() -> None:
    learner, bad = agent(), bad_batch(reward=INF)
    learn(learner, good_batch(1))
    assert learner.skipped_batch() is None
    learn(learner, bad)
    columns = learner.skipped_batch()
    assert columns is not None
    assert set(columns) == {"obs", "next_obs", "action", "reward", "discount", "terminated", "ix"}
    assert columns["reward"].tolist() == bad.reward.tolist()
    assert columns["next_obs"].tolist() == bad.next_obs["obs"].tolist()
    bad.reward[...] = 0.0  # the next batch is written into the same arrays
    assert np.isinf(columns["reward"]).any()


class SkippingAgent:
    """An agent that has skipped this many opt steps in a row."""

    skipped_in_a_row = 0

    def skipped_batch(self) -> dict[str, Array] | None:
        return {"reward": np.array([NAN], np.float32)}


def manager(folder: Path) -> CheckpointManager:
    unused: Any = None
    return CheckpointManager(folder, TrainConfig(), SPEC, unused, unused)


def watch(folder: Path, in_a_row: list[int]) -> None:
    skipping, learner = NonFiniteMonitor(manager(folder)), SkippingAgent()
    for opt_steps, n in enumerate(in_a_row, 1):
        learner.skipped_in_a_row = n
        skipping.watch(learner, opt_steps)  # type: ignore[arg-type]


def test_e1_the_first_of_each_series_is_logged_and_three_batches_are_saved(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    watch(tmp_path, [0, 1, 2, 3, 0, 1, 0, 0, 1, 0, 1, 0, 1])
    names = ["step-000000002.safetensors", "step-000000006.safetensors", "step-000000009.safetensors"]
    assert sorted(path.name for path in (tmp_path / "nonfinite").iterdir()) == names
    assert np.isnan(load_file(tmp_path / "nonfinite" / names[0])["reward"]).all()
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    what = "was skipped: its loss or gradient is not finite;"
    assert warnings == [
        f"opt step 2 {what} its batch is in nonfinite/{names[0]}",
        f"opt step 6 {what} its batch is in nonfinite/{names[1]}",
        f"opt step 9 {what} its batch is in nonfinite/{names[2]}",
        f"opt step 11 {what} others are only counted from now on, as agent/skipped_steps",
    ]


def test_e1_a_disk_that_fails_does_not_end_the_run(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "nonfinite").write_text("in the way")
    watch(tmp_path, [1, 2])
    assert "step-000000001.safetensors cannot be written: File exists" in caplog.text
    assert "opt step 1 was skipped" in caplog.text


def test_an_existing_file_or_link_at_the_path_of_a_batch_is_replaced(tmp_path: Path) -> None:
    victim, folder = tmp_path / "victim", tmp_path / "nonfinite"
    victim.write_text("precious")
    folder.mkdir()
    (folder / ".step-000000002.safetensors.tmp").symlink_to(victim)
    path = manager(tmp_path).save_skipped_batch(2, {"reward": np.ones(3, np.float32)})
    assert path == folder / "step-000000002.safetensors"
    assert victim.read_text() == "precious"
    assert load_file(path)["reward"].tolist() == [1, 1, 1]
