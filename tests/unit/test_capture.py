"""The path of a batch and of an opt step on a GPU, as far as a CPU can take it: only streams and recording are replaced."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from border_cli.agents.agent import NetworkAgent
from border_cli.agents.capture import CapturedStep, StepCall, capture_opt_steps
from border_cli.agents.params import BatchLoader, Prefetch, TensorBatch
from border_cli.config.schema import TrainConfig
from border_cli.run import factories
from tests.kinds import AGENTS
from tests.learners import SIZE, OneBatchBuffer, assert_same_state, batch_of, config_of, learn, make_learner

CPU = torch.device("cpu")
LR = 2.0**-8
"""Exact in float32, the dtype of a captured step's learning rate."""


Recorded = tuple[Callable[[], None], Tensor | None]
Recording = Callable[[StepCall, torch.device], Recorded]


def record(step: StepCall, device: torch.device, warm_up: int = 3) -> Recorded:
    """As `record_graph`, but the step itself is called in each replay. Its result is kept in one tensor too."""
    for _ in range(warm_up):
        step()
    result = step()

    def replay() -> None:
        again = step()
        if result is not None and again is not None:
            result.copy_(again)

    return replay, result


def captured(agent: str, record: Recording = record, **settings: Any) -> NetworkAgent:
    """Return an agent that captures its opt steps."""
    learner = make_learner(agent, lr=LR, **settings)
    learner.compiling = partial(capture_opt_steps, learner.algorithm, record=record)
    return learner


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("agent", AGENTS)
def test_captured_opt_steps_equal_eager_ones(agent: str, weighted: bool) -> None:
    eager, graph = make_learner(agent, lr=LR), captured(agent)
    errors = [learn(agent, learner, range(7), weighted) for learner in (eager, graph)]
    assert set(graph.algorithm.graphs) == set(graph.algorithm.variants) and graph.compiling is None
    assert_same_state(eager, graph)
    np.testing.assert_array_equal(*errors)
    assert len(errors[0]) == (7 if weighted else 0)


def loaded(number: int, weighted: bool = True) -> TensorBatch:
    """Return the tensors of a batch."""
    buffer: Any = OneBatchBuffer(batch_of("dqn", number, weighted=weighted))
    return BatchLoader(SIZE, CPU).next(buffer)


def test_a_captured_step_reads_its_copies_of_the_arguments_it_gets() -> None:
    algorithm = make_learner("dqn", lr_schedule="linear", lr_opt_steps=4).algorithm
    first, second = loaded(0), loaded(1)
    seen: list[tuple[float, float]] = []

    def watched(step: StepCall, device: torch.device) -> Recorded:
        inner = [cell.cell_contents for cell in step.__closure__ or ()]
        copies = next(value for value in inner if hasattr(value, "reward"))
        captured = next(value for value in inner if isinstance(value, CapturedStep))
        assert copies.reward.data_ptr() != first.reward.data_ptr()
        return lambda: seen.append((copies.reward[0].item(), captured._lr_scale.item())), None

    step = CapturedStep(algorithm, first, algorithm.noise(SIZE), 0, watched)
    step(second, algorithm.noise(SIZE), 0.75)
    step(first, algorithm.noise(SIZE), 0.5)
    assert seen == [(second.reward[0].item(), 0.75), (first.reward[0].item(), 0.5)]
    assert second.reward[0].item() != first.reward[0].item()


def test_a_recording_that_fails_leaves_the_opt_steps_eager(caplog: pytest.LogCaptureFixture) -> None:
    def fails(step: StepCall, device: torch.device) -> Recorded:
        step()
        raise RuntimeError("operation not permitted when stream is capturing\nmore of it")

    eager, other = make_learner("sac", lr=LR), captured("sac", fails)
    for learner in (eager, other):
        learn("sac", learner, range(7))
    assert not other.algorithm.graphs and other.compiling is None
    assert [r.message for r in caplog.records] == [
        "agent.compile: opt steps stay eager, recording them failed: "
        "operation not permitted when stream is capturing"
    ]
    assert_same_state(eager, other)


@pytest.mark.parametrize(("compiled", "captures"), [("auto", True), ("true", True), ("false", False)])
def test_which_opt_steps_are_captured(compiled: str, captures: bool) -> None:
    learner = make_learner("dqn")
    config = TrainConfig(agent=config_of("dqn", compile=compiled), device="cuda:1")
    factories.capture_on_gpu(learner, config)
    assert getattr(learner.compiling, "func", None) is (capture_opt_steps if captures else None)


class LoggedCuda:
    """Stands for torch.cuda: records what streams and events are asked for, and by whom."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self._events = (f"{kind}{slot}" for slot in itertools.count() for kind in ("copied", "used"))

    def Stream(self, device: torch.device) -> Logged:
        return Logged("side", self.calls)

    def Event(self) -> Logged:
        return Logged(next(self._events), self.calls)

    def current_stream(self, device: torch.device) -> Logged:
        return Logged("main", self.calls)

    def stream(self, stream: Any) -> Any:
        return torch.cpu.stream(None)  # type: ignore[arg-type]


@dataclass
class Logged:
    """A stream or an event."""

    name: str
    calls: list[str]

    def wait_event(self, other: Logged) -> None:
        self.calls.append(f"{self.name} waits for {other.name}")

    wait_stream = wait_event

    def record(self, stream: Logged) -> None:
        self.calls.append(f"{self.name} on {stream.name}")

    def synchronize(self) -> None:
        self.calls.append(f"host waits for {self.name}")


def test_no_memory_of_a_batch_is_written_while_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    log = LoggedCuda()
    monkeypatch.setattr(torch, "get_device_module", lambda device: log)
    host = loaded(0)
    prefetch = Prefetch(host, CPU)
    assert log.calls == ["side waits for main"]
    for slot, last in ((0, 1), (1, 0), (0, 1)):
        log.calls.clear()
        prefetch.load(host)
        assert log.calls == [
            f"used{last} on main",  # after the opt step that reads the other slot
            f"host waits for copied{slot}",  # before it writes the pinned memory
            f"side waits for used{slot}",  # before it writes the memory on the device
            f"copied{slot} on side",
            f"main waits for copied{slot}",
        ]


def test_two_batches_in_turn_have_memory_of_their_own() -> None:
    sources = [loaded(number) for number in range(4)]
    prefetch = Prefetch(sources[0], CPU)
    copies = [prefetch.load(source) for source in sources]
    assert copies[0] is copies[2] and copies[1] is copies[3]
    for copy, source in ((copies[2], sources[2]), (copies[3], sources[3])):
        for name, tensor in source.obs.items():
            assert torch.equal(copy.obs[name], tensor) and copy.obs[name].data_ptr() != tensor.data_ptr()
            assert torch.equal(copy.next_obs[name], source.next_obs[name])
        for name in ("action", "reward", "discount", "terminated", "weight"):
            assert torch.equal(getattr(copy, name), getattr(source, name)), name
    with pytest.raises(ValueError):
        prefetch.load(loaded(0, weighted=False))
