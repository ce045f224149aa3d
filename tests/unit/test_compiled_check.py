"""Compiled code is used only if it changes the state as the eager opt step does."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor

from border_cli.agents import graph
from border_cli.agents.algorithm import Algorithm
from border_cli.agents.compiler import CompileJob, graph_path
from border_cli.agents.dqn.agent import make_agent
from border_cli.agents.dqn.config import BtrConfig, DqnConfig
from border_cli.agents.graph import TensorLayout, leaves, map_leaves
from border_cli.agents.params import BatchLoader, TensorBatch
from border_cli.envs.gym_spaces import env_spec
from tests.learners import SIZE, OneBatchBuffer, batch_of, config_of, make_learner, spec_of


def job(agent: str, **settings: Any) -> CompileJob:
    buffer: Any = OneBatchBuffer(batch_of(agent, 0))
    layout = map_leaves(TensorLayout.of, BatchLoader(SIZE, torch.device("cpu")).next(buffer))
    return CompileJob(config_of(agent, **settings), [], spec_of(agent), layout)


def vector_learner(agent: str, **settings: Any) -> tuple[Algorithm, TensorBatch]:
    return make_learner(agent, seed=0, **settings).algorithm, job(agent).example_batch()


def image_learner(config: DqnConfig) -> tuple[Algorithm, TensorBatch]:
    """An agent with convolutions, which `torch.export` cannot trace."""
    spec = env_spec(spaces.Box(0, 255, (12, 12, 1), np.uint8), spaces.Discrete(2))
    obs = {"obs": torch.randint(256, (16, 12, 12, 1), dtype=torch.uint8)}
    ends = torch.arange(16) % 4 == 0
    batch = TensorBatch(obs, torch.arange(16) % 2, torch.ones(16), torch.full((16,), 0.9), ends, obs)
    return make_agent(config, spec, 0).algorithm, batch


IMAGES = {"convolutions": DqnConfig, "residual blocks": BtrConfig}


def check_code(
    algorithm: Algorithm,
    example: TensorBatch,
    monkeypatch: pytest.MonkeyPatch,
    error: Callable[[TensorBatch, Tensor], object] = lambda batch, lr_scale: None,
) -> None:
    """Check code that computes the opt step of a batch and learning rate that `error` has changed."""
    noise, variant = algorithm.noise(SIZE), algorithm.variants[-1]
    traced = graph.trace(algorithm, example, noise, variant)
    before = len(list(leaves(algorithm.state)))

    def run(arguments: list[Tensor]) -> list[Tensor]:
        rest = iter(arguments[before:])
        changed = map_leaves(lambda _: next(rest).clone(), example)
        lr_scale = arguments[-2].clone()
        error(changed, lr_scale)
        end = before + len(list(leaves(example)))
        traced(*arguments[:before], *leaves(changed), *arguments[end:-2], lr_scale, arguments[-1])
        return []

    monkeypatch.setattr(graph, "_load", lambda path: run)
    graph.check(algorithm, example, noise, variant, Path("graph.pt2"))


ERRORS: dict[str, Callable[[TensorBatch, Tensor], object]] = {
    "no change of the parameters": lambda batch, lr_scale: lr_scale.zero_(),
    "one percent less": lambda batch, lr_scale: lr_scale.mul_(0.99),
    "terminated is not read": lambda batch, lr_scale: batch.terminated.zero_(),
    "action 0 alone": lambda batch, lr_scale: batch.action.zero_(),
}


@pytest.mark.parametrize("error", ERRORS)
def test_code_with_an_error_is_refused(error: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        RuntimeError, match=r"the compiled opt step with threads=1 differs from the eager one"
    ):
        check_code(*vector_learner("dqn"), monkeypatch, ERRORS[error])


@pytest.mark.parametrize(
    "agent", ["dqn", "c51", "iqn", "td3", "sac", "tqc", "crossq", "flashsac", "btr", *IMAGES]
)
def test_code_without_an_error_is_taken(agent: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if agent not in IMAGES:
        check_code(*vector_learner(agent), monkeypatch)
    else:
        check_code(*image_learner(IMAGES[agent](hidden=[8], channels=[4], batch_size=16)), monkeypatch)


DROPPED: dict[str, Any] = {"critics": 4, "critic_subset": 2, "critic_dropout": 0.2, "weight_decay": 0.1}


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
@pytest.mark.parametrize(("norm", "is_traceable"), [("none", True), ("layer", False)])
def test_code_of_random_critics_without_some_units_and_with_weight_decay_is_taken(
    norm: str, is_traceable: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    check_code(*vector_learner("sac", **DROPPED, norm=norm), monkeypatch)
    algorithm, batch = vector_learner("sac", **DROPPED, norm=norm)
    noise = algorithm.noise(SIZE)
    traced = graph.trace(algorithm, batch, noise, 1)
    assert graph.is_traceable(traced) is is_traceable
    if is_traceable:
        graph.save_traced(traced, graph.example(algorithm, batch, noise), tmp_path / "step.pt")


@pytest.mark.parametrize(
    ("settings", "is_read"),
    [
        # the step of a plugin's agent may compute its own targets
        *(({name: value}, True) for name, value in (("gamma", 0.9), ("reward_clip", 1.0), ("lr", 0.5))),
        ({"weight_decay": 0.5}, True),
        ({"target_interval": 7, "target_tau": 0.5, "reset_interval": 9}, False),
        ({"epsilon_start": 0.5, "epsilon_final": 0.3, "eval_epsilon": 0.1}, False),
        ({"lr_schedule": "linear", "lr_opt_steps": 400, "lr_final": 0.5}, False),
    ],
    ids=str,
)
def test_code_is_kept_for_each_value_that_a_step_may_read(settings: dict[str, Any], is_read: bool) -> None:
    assert (graph_path(job("dqn", **settings), 0) != graph_path(job("dqn"), 0)) is is_read


@pytest.mark.parametrize("beta1", [0.0, 0.5, 0.9])
def test_adams_corrections_by_hand(beta1: float) -> None:
    learner = make_learner("dqn", adam_beta1=beta1)
    learner.algorithm.state.nets["online"].step.fill_(1.0)  # so the next one is the second
    expected = 1 / (1 - beta1**2), (1 - 0.999**2) ** -0.5
    assert graph.bias_corrections([learner.algorithm.state.nets["online"]]) == [pytest.approx(expected)]
