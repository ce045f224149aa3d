"""The path of a batch and of an opt step on a GPU, as far as a CPU can take it: only streams and recording are replaced."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from border_cli.agents.agent import NetworkAgent
from border_cli.agents.capture import CapturedStep, StepCall, capture_opt_steps, record_graph
from border_cli.agents.params import BatchLoader, Prefetch
from border_cli.config.registry import AGENTS
from border_cli.config.schema import TrainConfig
from border_cli.run import factories
from tests.contract.test_every_agent import OneBatchBuffer, batch, config_of, spec_of

CPU = torch.device("cpu")
LR = 2.0**-8
"""Exact in float32, the dtype of a captured step's learning rate."""


def record(
    step: StepCall, device: torch.device, warm_up: int = 3
) -> tuple[Callable[[], None], Tensor | None]:
    """As `record_graph`, but the step itself is called in each replay. Its result is kept in one tensor too."""
    for _ in range(warm_up):
        step()
    result = step()

    def replay() -> None:
        again = step()
        if result is not None and again is not None:
            result.copy_(again)

    return replay, result


def learner(agent: str, **settings: Any) -> NetworkAgent:
    config = replace(config_of(agent), lr=LR, **settings)
    made: NetworkAgent = AGENTS[agent].load().make_agent(config, spec_of(agent), 3)
    return made


def learn(agent: str, one: NetworkAgent, weighted: bool, opt_steps: int = 7) -> list[Any]:
    """Opt steps on a new batch each. Returns the errors that the replay got."""
    errors = []
    for number in range(opt_steps):
        given = batch(agent, number)
        given.weight = np.random.default_rng(number).random(16).astype(np.float32) if weighted else None
        buffer: Any = OneBatchBuffer(given)
        one.opt(buffer)
        errors += [each.copy() for each in buffer.errors]
    return errors


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("agent", AGENTS)
def test_captured_opt_steps_equal_eager_ones(agent: str, weighted: bool) -> None:
    eager, captured = learner(agent), learner(agent)
    captured.compiling = partial(capture_opt_steps, captured.algorithm, record=record)
    errors = learn(agent, eager, weighted), learn(agent, captured, weighted)
    assert set(captured.algorithm.graphs) == set(captured.algorithm.variants) and captured.compiling is None
    for name, array in eager.state().arrays.items():
        np.testing.assert_array_equal(array, captured.state().arrays[name], err_msg=name)
    np.testing.assert_array_equal(*errors)
    assert len(errors[0]) == (7 if weighted else 0)
    assert eager.generator_state() == captured.generator_state()


def test_every_variant_is_captured() -> None:
    assert learner("td3").algorithm.variants == (0, 1)
    assert learner("sac").algorithm.variants == (1,)


def test_a_captured_step_reads_its_copies_of_the_arguments_it_gets() -> None:
    one = learner("dqn", lr_schedule="linear", lr_opt_steps=4)
    first, second = (BatchLoader(16, CPU).next(buffer(number)) for number in (0, 1))
    seen: list[tuple[float, float]] = []

    def watched(step: StepCall, device: torch.device) -> tuple[Callable[[], None], Tensor | None]:
        inner = [cell.cell_contents for cell in step.__closure__ or ()]
        own = next(value for value in inner if hasattr(value, "reward"))
        captured = next(value for value in inner if isinstance(value, CapturedStep))
        assert own.reward.data_ptr() != first.reward.data_ptr()
        return lambda: seen.append((own.reward[0].item(), captured._lr_scale.item())), None

    step = CapturedStep(one.algorithm, first, one.algorithm.noise(16), 0, watched)
    step(second, one.algorithm.noise(16), 0.75)
    step(first, one.algorithm.noise(16), 0.5)
    assert seen == [(second.reward[0].item(), 0.75), (first.reward[0].item(), 0.5)]
    assert second.reward[0].item() != first.reward[0].item()


def test_a_recording_that_fails_leaves_the_opt_steps_eager(caplog: pytest.LogCaptureFixture) -> None:
    def fails(step: StepCall, device: torch.device) -> tuple[Callable[[], None], Tensor | None]:
        step()
        raise RuntimeError("operation not permitted when stream is capturing\nmore of it")

    eager, other = learner("sac"), learner("sac")
    other.compiling = partial(capture_opt_steps, other.algorithm, record=fails)
    learn("sac", eager, False)
    with caplog.at_level(logging.WARNING):
        learn("sac", other, False)
    assert not other.algorithm.graphs and other.compiling is None
    assert [r.message for r in caplog.records] == [
        "agent.compile: opt steps stay eager, recording them failed: "
        "operation not permitted when stream is capturing"
    ]
    for name, array in eager.state().arrays.items():
        np.testing.assert_array_equal(array, other.state().arrays[name], err_msg=name)


@pytest.mark.parametrize(("compiled", "captures"), [("auto", True), ("true", True), ("false", False)])
def test_which_opt_steps_are_captured(compiled: str, captures: bool) -> None:
    one = learner("dqn")
    config = TrainConfig(agent=replace(config_of("dqn"), compile=compiled), device="cuda:1")
    factories.capture_on_gpu(one, config)
    assert (one.compiling is not None) is captures
    if captures:
        assert isinstance(one.compiling, partial) and one.compiling.func is capture_opt_steps


# -- batches -----------------------------------------------------------


def buffer(number: int, weighted: bool = True) -> Any:
    given = batch("dqn", number)
    given.weight = np.full(16, number, np.float32) if weighted else None
    return OneBatchBuffer(given)


class Log:
    """Stands for torch.cuda: records what streams and events are asked for, and by whom."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.made = 0

    def Stream(self, device: torch.device) -> Any:
        return LoggedStream("side", self)

    def Event(self) -> Any:
        self.made += 1
        return LoggedEvent(("copied", "used")[(self.made - 1) % 2] + str((self.made - 1) // 2), self)

    def current_stream(self, device: torch.device) -> Any:
        return LoggedStream("main", self)

    def stream(self, stream: Any) -> Any:
        return torch.cpu.stream(None)  # type: ignore[arg-type]


class LoggedStream:
    def __init__(self, name: str, log: Log) -> None:
        self.name, self.log = name, log

    def wait_event(self, event: Any) -> None:
        self.log.calls.append(f"{self.name} waits for {event.name}")

    def wait_stream(self, other: Any) -> None:
        self.log.calls.append(f"{self.name} waits for {other.name}")


class LoggedEvent:
    def __init__(self, name: str, log: Log) -> None:
        self.name, self.log = name, log

    def record(self, stream: Any) -> None:
        self.log.calls.append(f"{self.name} on {stream.name}")

    def synchronize(self) -> None:
        self.log.calls.append(f"host waits for {self.name}")


def test_no_memory_of_a_batch_is_written_while_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    log = Log()
    monkeypatch.setattr(torch, "get_device_module", lambda device: log)
    host = BatchLoader(16, CPU).next(buffer(0))
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


def test_a_failed_recording_is_waited_for_and_its_cause_is_named(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Otherwise the state would be restored while the GPU still changes it."""

    @contextmanager
    def graph(graph: Any, stream: Any) -> Iterator[None]:
        try:
            yield
        finally:
            raise RuntimeError("operation failed due to a previous error during capture")

    log, one, calls = Log(), learner("dqn"), []
    for name in ("Stream", "current_stream", "stream"):
        monkeypatch.setattr(torch.cuda, name, getattr(log, name))
    monkeypatch.setattr(torch.cuda, "CUDAGraph", object)
    monkeypatch.setattr(torch.cuda, "graph", graph)

    def record_broken(step: StepCall, device: torch.device) -> tuple[Callable[[], None], Tensor | None]:
        def broken() -> Tensor | None:
            calls.append(step())
            if len(calls) == 4:
                raise RuntimeError("operation not permitted when stream is capturing")
            return calls[-1]

        return record_graph(broken, device)

    with caplog.at_level(logging.WARNING):
        capture_opt_steps(one.algorithm, BatchLoader(16, CPU).next(buffer(0)), record_broken)
    assert log.calls == ["side waits for main", "main waits for side"] and len(calls) == 4
    (line,) = (r.message for r in caplog.records)
    assert line.endswith("recording them failed: operation not permitted when stream is capturing")


def test_two_batches_in_turn_have_memory_of_their_own() -> None:
    sources = [BatchLoader(16, CPU).next(buffer(number)) for number in range(4)]
    prefetch = Prefetch(sources[0], CPU)
    loaded = [prefetch.load(source) for source in sources]
    assert loaded[0] is loaded[2] and loaded[1] is loaded[3]
    for got, source in ((loaded[2], sources[2]), (loaded[3], sources[3])):
        for name, tensor in source.obs.items():
            assert torch.equal(got.obs[name], tensor) and got.obs[name].data_ptr() != tensor.data_ptr()
            assert torch.equal(got.next_obs[name], source.next_obs[name])
        for name in ("action", "reward", "discount", "terminated", "weight"):
            assert torch.equal(getattr(got, name), getattr(source, name)), name
    with pytest.raises(ValueError):
        prefetch.load(BatchLoader(16, CPU).next(buffer(0, weighted=False)))
