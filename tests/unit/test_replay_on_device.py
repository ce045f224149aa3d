"""`buffer.device`: rows of the replay in the memory of the learner's device. Here that device is the CPU."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from border_cli.agents.agent import NetworkAgent
from border_cli.agents.capture import capture_opt_steps
from border_cli.agents.dqn.config import DqnConfig
from border_cli.config import resources
from border_cli.config.registry import AGENTS, BUFFERS
from border_cli.config.resolve import Change, check_changes, inherit, keeps_the_bits
from border_cli.config.schema import BufferConfig, TrainConfig, TrainerConfig
from border_cli.core.errors import ResourceError, UsageError
from border_cli.core.spaces import ActionSpec, EnvSpec, ObsLeaf, ObsSpec
from border_cli.core.types import Column
from border_cli.replay.device import DeviceRows
from border_cli.run import factories, preflight, run
from border_cli.run.probes import made_up
from tests.contract.test_every_agent import config_of, spec_of
from tests.unit.test_capture import record
from tests.unit.test_resources import SIZES

COLUMNS = [
    Column("a", (2, 2), "float64"),
    Column("b", (), "bool"),
    Column("c", (3,), "uint16"),
    Column("d", (), "int64"),
    Column("e", (5,), "uint8"),
]


def config_with(agent: str, buffer: str, on_device: bool) -> TrainConfig:
    own = BUFFERS[buffer].config(type=buffer, capacity=200, device="cuda" if on_device else "cpu")
    return TrainConfig(agent=config_of(agent), buffer=own)


def test_rows_of_any_dtype_come_back_as_they_were_written() -> None:
    rng, rows = np.random.default_rng(0), DeviceRows(COLUMNS, 6, torch.device("cpu"))
    given = {c.name: rng.integers(0, 2, (3, *c.shape)).astype(c.dtype) for c in COLUMNS}
    given["c"][0] = 65_535
    rows.write(slice(1, 4), given)
    rows.write(np.array([5, 0]), {name: part[:2] for name, part in given.items()})
    back = rows.read(np.array([3, 5, 4]))
    for column in COLUMNS:
        expected = np.stack(
            [given[column.name][2], given[column.name][0], np.zeros_like(given[column.name][0])]
        )
        assert back[column.name].dtype == column.dtype and np.array_equal(back[column.name], expected)
    into = DeviceRows(COLUMNS, 2, torch.device("cpu"))
    rows.take(np.array([0, 1]), into)
    for column in COLUMNS:
        taken = into.columns[column.name]
        assert tuple(taken.shape) == (2, *column.shape)
        assert np.array_equal(taken.numpy(), given[column.name][[1, 0]])
    assert list(rows.read(np.array([0]), ["d"])) == ["d"]


@pytest.mark.parametrize(
    ("agent", "buffer"), [("rainbow", "prioritized"), ("sac", "uniform"), ("tqc", "prioritized")]
)
@pytest.mark.parametrize("captured", [False, True])
def test_an_agent_learns_the_same_from_it(agent: str, buffer: str, captured: bool) -> None:
    agents, states = [], []
    for on_device in (False, True):
        config, spec = config_with(agent, buffer, on_device), spec_of(agent)
        one: NetworkAgent = AGENTS[agent].load().make_agent(config.agent, spec, 3)
        if captured:
            one.compiling = partial(capture_opt_steps, one.algorithm, record=record)
        replay = factories.make_buffer(config, spec)
        replay.push(made_up(spec, 150, config))
        for _ in range(6):
            one.opt(replay)
        assert one._batches.last is not None
        assert isinstance(one._batches.last.reward, torch.Tensor) is on_device
        agents.append(one)
        states.append(replay.state().arrays)
    mine, other = (one.state().arrays for one in agents)
    for name, array in mine.items():
        np.testing.assert_array_equal(array, other[name], err_msg=name)
    for name, array in states[0].items():
        np.testing.assert_array_equal(array, states[1][name], err_msg=name)


@pytest.mark.parametrize(
    ("wanted", "device", "free", "expected"),
    [
        ("auto", "cuda", 2_000, True),
        ("auto", "cuda:1", 1_999, False),
        ("auto", "cpu", 10**9, False),
        ("auto", "mps", 10**9, False),
        ("cpu", "cuda", 10**9, False),
        ("cuda", "cuda", 1_000, False),  # as typed: only `auto` asks for half
    ],
)
def test_auto_takes_at_most_half_of_the_free_memory(
    monkeypatch: pytest.MonkeyPatch, wanted: str, device: str, free: int, expected: bool
) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda asked: {device: (free, 10**10)}[asked])
    config = TrainConfig(buffer=BufferConfig(device=wanted), device=device)
    assert preflight._replay_on_gpu(config, 1_000) is expected


def test_what_cannot_be_on_the_gpu_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    config = TrainConfig(buffer=BufferConfig(device="cuda"), device="cuda")
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda asked: (999, 10**10))
    with pytest.raises(ResourceError, match=r"allowed: a smaller buffer\.capacity, or buffer\.device=cpu"):
        preflight._replay_on_gpu(config, 1_000)
    monkeypatch.setattr(factories, "has_rows_on_gpu", lambda config: False)
    with pytest.raises(UsageError, match="buffer=uniform has its rows in the main memory"):
        preflight._replay_on_gpu(config, 1_000)
    config.buffer.device = "auto"
    assert preflight._replay_on_gpu(config, 1) is False


def test_only_a_buffer_whose_maker_takes_a_device_can_be_there(monkeypatch: pytest.MonkeyPatch) -> None:
    assert all(
        factories.has_rows_on_gpu(TrainConfig(buffer=entry.config(type=name)))
        for name, entry in BUFFERS.items()
    )

    class Elsewhere:
        @staticmethod
        def make_buffer(config: Any, spec: Any, seed: int, extra: Any = ()) -> str:
            return "no device"

    class Here(Elsewhere):
        @staticmethod
        def make_buffer(config: Any, spec: Any, seed: int, extra: Any = (), device: str = "cpu") -> str:
            return device

    def made(module: Any, where: str) -> Any:
        monkeypatch.setitem(BUFFERS, "uniform", type("Entry", (), {"load": staticmethod(lambda: module)})())
        config = TrainConfig(agent=config_of("dqn"), buffer=BufferConfig(device=where), device="cuda:1")
        return factories.has_rows_on_gpu(config), factories.make_buffer(config, spec_of("dqn"))

    assert made(Elsewhere, "cpu") == (False, "no device")
    assert made(Here, "cpu") == (True, "cpu")
    assert made(Here, "cuda") == (True, "cuda:1")


def test_a_replay_on_the_gpu_takes_no_main_memory() -> None:
    need = [
        resources.memory_need(TrainConfig(buffer=BufferConfig(device=where)), SIZES)
        for where in ("cpu", "cuda")
    ]
    assert need[0].pop("replay") == SIZES.replay
    assert need[0] == need[1]


def test_it_may_change_on_resume_and_keeps_the_bits() -> None:
    change = Change("buffer.device", "cuda", "cpu")
    check_changes(TrainConfig(trainer=TrainerConfig(type="sync")), [change])
    assert keeps_the_bits(change)


@pytest.mark.parametrize(("device", "expected"), [("cuda:1", "cuda"), ("cpu", "auto"), ("mps", "auto")])
def test_resume_auto_on_another_device_decides_again(device: str, expected: str) -> None:
    """Where the rows are, and whether opt steps are compiled; without a GPU, auto is main memory."""
    stored = TrainConfig(agent=DqnConfig(compile="true"), buffer=BufferConfig(device="cuda"), device="cuda")
    inherited = inherit(TrainConfig(agent=DqnConfig(), device=device), stored)
    assert inherited.buffer.device == expected
    assert inherited.agent.compile == ("true" if expected == "cuda" else "auto")
    assert (
        inherit(TrainConfig(agent=DqnConfig(compile="false"), device=device), stored).agent.compile == "false"
    )
    assert (
        inherit(TrainConfig(buffer=BufferConfig(device="cpu"), device=device), stored).buffer.device == "cpu"
    )


def test_frames_of_a_stack_are_gathered_on_the_device() -> None:
    leaf = ObsLeaf("obs", (), "box", (4, 6, 5), "uint8", 0.0, 255.0, stack=4)
    spec = EnvSpec(ObsSpec((leaf,)), ActionSpec("discrete", n=2))
    batches = []
    for on_device in (False, True):
        config = config_with("dqn", "uniform", on_device)
        replay = factories.make_buffer(config, spec)
        items = made_up(spec, 40, config)
        items["obs"][...] = np.arange(40, dtype=np.uint8)[:, None, None]
        items["step_in_episode"][:] = np.arange(40)
        replay.push(items)
        batches.append(replay.batch(16))
    for name in ("obs", "next_obs"):
        mine, other = (getattr(batch, name)["obs"] for batch in batches)
        assert isinstance(other, torch.Tensor) and other.is_contiguous()
        np.testing.assert_array_equal(mine, other.numpy())
    frames = batches[1].obs["obs"][:, :, 0, 0].numpy().astype(int)
    newest = frames[:, -1:]
    assert len(set(newest.ravel())) > 5
    assert np.array_equal(frames, np.maximum(newest + np.arange(-3, 1), 0)), "the first frame fills the stack"


def test_a_gpu_without_enough_memory_is_no_defect() -> None:
    with pytest.raises(ResourceError) as caught, run._resource_errors():
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB.\nmore of it")
    assert str(caught.value) == (
        "CUDA out of memory. Tried to allocate 2 GiB.\n"
        "allowed: buffer.device=cpu, a smaller batch or network, or device=cpu"
    )
