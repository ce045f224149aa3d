"""The path of an opt step on a GPU, as far as a CPU can take it: only the recording is replaced."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from border_cli.agents.agent import NetworkAgent
from border_cli.agents.capture import CapturedStep, StepCall, capture_opt_steps
from border_cli.agents.params import BatchLoader, TensorBatch
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
