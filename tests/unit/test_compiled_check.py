"""Compiled code is used only if it changes the state as the eager opt step does."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from border_cli.agents import graph
from border_cli.agents.compiler import CompileJob, graph_path
from border_cli.agents.config import NetworkConfig
from border_cli.agents.graph import TensorLayout, leaves, map_leaves
from border_cli.agents.params import BatchLoader, TensorBatch
from border_cli.config.registry import AGENTS
from tests.contract.test_every_agent import OneBatchBuffer, batch, config_of, spec_of


def job(agent: str, **settings: Any) -> CompileJob:
    buffer: Any = OneBatchBuffer(batch(agent, 0))
    layout = map_leaves(TensorLayout.of, BatchLoader(16, torch.device("cpu")).next(buffer))
    config = config_of(agent)
    for name, value in settings.items():
        setattr(config, name, value)
    assert isinstance(config, NetworkConfig)
    return CompileJob(config, [], spec_of(agent), layout)


def check_wrongly(
    agent: str, error: Callable[[TensorBatch, Tensor], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check code that computes the opt step of a changed batch and learning rate."""
    one = job(agent)
    example = one.example_batch()
    algorithm = AGENTS[agent].load().make_agent(one.config, one.spec, 0).algorithm
    noise = algorithm.noise(16)
    traced = graph.trace(algorithm, example, noise, 0)
    before = len(list(leaves(algorithm.state)))

    def run(arguments: list[Tensor]) -> list[Tensor]:
        given = iter(arguments[before:])
        changed = map_leaves(lambda _: next(given).clone(), example)
        lr_scale = arguments[-2].clone()
        error(changed, lr_scale)
        end = before + len(list(leaves(example)))
        traced(*arguments[:before], *leaves(changed), *arguments[end:-2], lr_scale, arguments[-1])
        return []

    monkeypatch.setattr(graph, "_load", lambda path: run)
    graph.check(algorithm, example, noise, 0, Path("graph.pt2"))


ERRORS: dict[str, Callable[[TensorBatch, Tensor], object]] = {
    "no change of the parameters": lambda batch, lr_scale: lr_scale.zero_(),
    "one percent less": lambda batch, lr_scale: lr_scale.mul_(0.99),
    "terminated is not read": lambda batch, lr_scale: batch.terminated.zero_(),
    "action 0 alone": lambda batch, lr_scale: batch.action.zero_(),
}


@pytest.mark.parametrize("error", ERRORS)
def test_code_with_an_error_is_refused(error: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RuntimeError, match=r"the compiled opt step differs from the eager one in online\."):
        check_wrongly("dqn", ERRORS[error], monkeypatch)  # type: ignore[arg-type]


@pytest.mark.parametrize("agent", ["dqn", "c51", "iqn", "td3", "sac", "tqc"])
def test_code_without_an_error_is_taken(agent: str, monkeypatch: pytest.MonkeyPatch) -> None:
    check_wrongly(agent, lambda batch, lr_scale: None, monkeypatch)


def test_a_graph_has_what_happens_below_autograd_and_the_tensors_of_others_as_constants() -> None:
    """f(x, y) = ∂/∂x (x·c)² = 2·c²·x, and y grows by 1 in place."""
    c, x, y = torch.tensor(3.0), torch.tensor(2.0), torch.tensor(5.0)
    recorder = graph.Recorder([x, y])
    with recorder:
        free = x.detach().requires_grad_()
        (gradient,) = torch.autograd.grad((free * c).square(), free)
        y.add_(1.0)
    recorded = recorder.finish([gradient])
    given = torch.tensor(10.0)
    (found,) = recorded(torch.tensor(1.0), given)
    assert (found.item(), given.item()) == (18.0, 11.0)


@pytest.mark.parametrize("settings", [{"gamma": 0.9}, {"reward_clip": 1.0}, {"lr": 0.5}])
def test_code_is_kept_for_each_value_that_a_step_may_read(settings: dict[str, Any]) -> None:
    """The step of a plugin's agent may compute its own targets."""
    assert graph_path(job("dqn", **settings), 0) != graph_path(job("dqn"), 0)
