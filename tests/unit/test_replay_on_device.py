"""`buffer.device`: rows of the replay in the memory of the learner's device. Here that device is the CPU."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from border_cli.agents.capture import capture_opt_steps
from border_cli.agents.dqn.config import DqnConfig
from border_cli.config.registry import BUFFERS
from border_cli.config.resolve import inherit
from border_cli.config.schema import BufferConfig, TrainConfig
from border_cli.core.errors import ResourceError, UsageError
from border_cli.core.types import Column, SequenceShape, empty_items, item_columns
from border_cli.replay.buffer import Returns
from border_cli.replay.device import DeviceRows
from border_cli.replay.samplers import UniformSampler
from border_cli.replay.sequences import SequenceReplayBuffer
from border_cli.run import factories, preflight, run
from border_cli.run.probes import made_up
from tests.learners import assert_same_state, config_of, make_learner, spec_of
from tests.unit.test_capture import record

CPU = torch.device("cpu")
COLUMNS = [
    Column("a", (2, 2), "float64"),
    Column("b", (), "bool"),
    Column("c", (3,), "uint16"),
    Column("d", (), "int64"),
    Column("e", (5,), "uint8"),
]


def test_rows_of_any_dtype_come_back_as_they_were_written() -> None:
    rng, rows = np.random.default_rng(0), DeviceRows(COLUMNS, 6, CPU)
    written = {c.name: rng.integers(0, 2, (3, *c.shape)).astype(c.dtype) for c in COLUMNS}
    written["c"][0] = 65_535
    rows.write(slice(1, 4), written)
    rows.write(np.array([5, 0]), {name: part[:2] for name, part in written.items()})
    back, into = rows.read(np.array([3, 5, 4])), DeviceRows(COLUMNS, 2, CPU)
    rows.take(np.array([0, 1]), into)
    for column in COLUMNS:
        part = written[column.name]
        assert back[column.name].dtype == column.dtype
        assert np.array_equal(back[column.name], np.stack([part[2], part[0], np.zeros_like(part[0])]))
        assert np.array_equal(into.columns[column.name].numpy(), part[[1, 0]])


@pytest.mark.parametrize(
    ("agent", "buffer", "captured"),
    [("rainbow", "prioritized", True), ("sac", "uniform", False), ("tqc", "prioritized", False)],
)
def test_an_agent_learns_the_same_from_it(agent: str, buffer: str, captured: bool) -> None:
    learners = []
    for device in ("cpu", "cuda"):
        rows = BUFFERS[buffer].config(type=buffer, capacity=200, device=device)
        config, spec = TrainConfig(agent=config_of(agent), buffer=rows), spec_of(agent)
        learner = make_learner(agent)
        if captured:
            learner.compiling = partial(capture_opt_steps, learner.algorithm, record=record)
        replay = factories.make_buffer(config, spec)
        replay.push(made_up(spec, 150, config))
        for _ in range(6):
            learner.opt(replay)
        assert learner._batches.last is not None
        assert isinstance(learner._batches.last.reward, torch.Tensor) is (device == "cuda")
        learners.append(learner)
    assert_same_state(*learners)


@pytest.mark.parametrize(
    ("typed", "device", "free", "expected"),
    [
        ("auto", "cuda", 2_000, True),
        ("auto", "cuda:1", 1_999, False),
        ("auto", "cpu", 10**9, False),
        ("cpu", "cuda", 10**9, False),
        ("cuda", "cuda", 1_000, False),  # only `auto` asks for half
    ],
)
def test_auto_takes_at_most_half_of_the_free_memory(
    monkeypatch: pytest.MonkeyPatch, typed: str, device: str, free: int, expected: bool
) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda asked: {device: (free, 10**10)}[asked])
    config = TrainConfig(buffer=BufferConfig(device=typed), device=device)
    assert preflight._replay_on_gpu(config, 1_000) is expected


def test_what_cannot_be_on_the_gpu_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    config = TrainConfig(buffer=BufferConfig(device="cuda"), device="cuda")
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda asked: (999, 10**10))
    with pytest.raises(ResourceError, match=r"allowed: a smaller buffer\.capacity, or buffer\.device=cpu"):
        preflight._replay_on_gpu(config, 1_000)
    monkeypatch.setattr(factories, "buffer_knows", lambda argument, config: False)
    with pytest.raises(UsageError, match="buffer=uniform has its rows in the main memory"):
        preflight._replay_on_gpu(config, 1_000)
    config.buffer.device = "auto"
    assert preflight._replay_on_gpu(config, 1) is False


class InMemory:
    @staticmethod
    def make_buffer(config: Any, spec: Any, seed: int, extra: Any, returns: Any) -> str:
        return "no device"


def test_only_a_buffer_whose_maker_takes_a_device_can_be_there(monkeypatch: pytest.MonkeyPatch) -> None:
    config = TrainConfig(agent=config_of("dqn"), buffer=BufferConfig(device="cpu"), device="cuda:1")
    assert factories.buffer_knows("device", config)
    monkeypatch.setitem(BUFFERS, "uniform", SimpleNamespace(load=lambda: InMemory))
    assert not factories.buffer_knows("device", config)
    assert factories.make_buffer(config, spec_of("dqn")) == "no device"


def test_a_sequence_up_to_a_lost_life_ends_with_the_newest_row() -> None:
    """Its last transition is complete one row behind the lost life, not n."""
    spec, device = spec_of("dqn"), torch.device("cpu")
    sampler, rows = UniformSampler(np.random.default_rng(0)), partial(DeviceRows, device=device)
    buffer = SequenceReplayBuffer(100, spec, sampler, 3, (), Returns(), rows, SequenceShape(4, 2), None)
    for t in range(5):
        items = empty_items(item_columns(spec), 1)
        items["step"][:], items["reward"][:], items["terminated"][:] = t, 1.0, t == 3
        buffer.push(items)
    batch = buffer.batch(1)
    assert batch.extra["is_valid"].all() and (batch.discount[0] == 0.0).tolist() == [False, True, True, True]
    assert batch.extra["next"].tolist() == [[3, 4, 4, 4]]


@pytest.mark.parametrize(
    ("agent", "her", "what"), [("r2d2", "none", "agent=r2d2"), ("dqn", "future", "buffer.her=future")]
)
def test_a_buffer_that_lacks_what_the_run_asks_of_it_is_refused(
    monkeypatch: pytest.MonkeyPatch, agent: str, her: str, what: str
) -> None:
    config = TrainConfig(agent=config_of(agent), buffer=BufferConfig(her=her))
    preflight._check_buffer(config)
    monkeypatch.setitem(BUFFERS, "uniform", SimpleNamespace(load=lambda: InMemory))
    with pytest.raises(UsageError, match=f"{what} needs a buffer with the argument"):
        preflight._check_buffer(config)


@pytest.mark.parametrize(("device", "expected"), [("cuda:1", "cuda"), ("cpu", "auto"), ("mps", "auto")])
def test_resume_auto_on_another_device_decides_again(device: str, expected: str) -> None:
    """Where the rows are, and whether opt steps are compiled; without a GPU, auto is main memory."""
    stored = TrainConfig(agent=DqnConfig(compile="true"), buffer=BufferConfig(device="cuda"), device="cuda")
    auto = inherit(TrainConfig(agent=DqnConfig(), device=device), stored)
    assert auto.buffer.device == expected
    assert auto.agent.compile == ("true" if expected == "cuda" else "auto")
    typed = TrainConfig(agent=DqnConfig(compile="false"), buffer=BufferConfig(device="cpu"), device=device)
    inherited = inherit(typed, stored)
    assert (inherited.agent.compile, inherited.buffer.device) == ("false", "cpu")


def test_a_gpu_without_enough_memory_is_no_defect() -> None:
    with pytest.raises(ResourceError) as caught, run._resource_errors():
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB.\nmore of it")
    assert str(caught.value) == (
        "CUDA out of memory. Tried to allocate 2 GiB.\n"
        "allowed: buffer.device=cpu, a smaller batch or network, or device=cpu"
    )
