"""Small agents of every kind, and batches for their opt steps."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from gymnasium import spaces

from border_cli.agents.agent import NetworkAgent
from border_cli.config.registry import AGENTS
from border_cli.core.errors import UsageError
from border_cli.core.spaces import Array, EnvSpec, Obs
from border_cli.core.types import Batch
from border_cli.envs.gym_spaces import env_spec
from tests.envs import SPACES, START

OBSERVATIONS = SPACES["number and kind"]
ACTIONS: dict[str, spaces.Space[Any]] = {
    "two": spaces.Discrete(2, start=START),
    "seven from -3": spaces.Discrete(7, start=-3),
    "one": spaces.Discrete(1, start=5),
    "box": spaces.Box(np.array([-2.0, 0.0], np.float32), np.array([2.0, 0.1], np.float32)),
    "box of float64": spaces.Box(-0.3, 0.7, (1, 2), np.float64),
}


def _accepted() -> Iterator[tuple[str, str]]:
    for agent, entry in AGENTS.items():
        for action, space in ACTIONS.items():
            try:
                entry.load().check_spec(entry.config(), env_spec(OBSERVATIONS, space))
            except UsageError:
                continue
            yield agent, action


PAIRS = list(_accepted())
"""Each agent with each action space that it accepts."""
_FIRST = {agent: ACTIONS[action] for agent, action in reversed(PAIRS)}
SIZE = 16
"""Rows of a batch."""


def config_of(agent: str, **settings: Any) -> Any:
    return replace(AGENTS[agent].config(hidden=[8], batch_size=SIZE), **settings)


def spec_of(agent: str) -> EnvSpec:
    return env_spec(OBSERVATIONS, _FIRST[agent])


def make_learner(agent: str, seed: int = 3, device: str = "cpu", **settings: Any) -> NetworkAgent:
    learner: NetworkAgent = (
        AGENTS[agent].load().make_agent(config_of(agent, **settings), spec_of(agent), seed, device)
    )
    return learner


def observations(seed: int, n: int = 64, scale: float = 1.0) -> Obs:
    rng = np.random.default_rng(seed)
    return {
        "obs.x": (scale * rng.normal(size=(n, 3))).astype(np.float32),
        "obs.k": rng.integers(0, 4, n),
    }


def batch_of(agent: str, seed: int, n: int = SIZE, weighted: bool = False) -> Batch:
    rng, space = np.random.default_rng(seed), _FIRST[agent]
    if isinstance(space, spaces.Discrete):
        action: Array = rng.integers(0, space.n, n)
    else:
        assert isinstance(space, spaces.Box)
        action = rng.uniform(space.low, space.high, (n, *space.shape)).astype(np.float32)
    batch = Batch(
        observations(2 * seed, n), action, rng.normal(size=n).astype(np.float32), np.full(n, 0.9, np.float32),
        rng.random(n) < 0.2, observations(2 * seed + 1, n), np.arange(n),
    )  # fmt: skip
    if weighted:
        batch.weight = rng.random(n).astype(np.float32)
    return batch


class OneBatchBuffer:
    """Returns the same batch every time, and records the errors that it gets."""

    capacity = 1000

    def __init__(self, rows: Batch) -> None:
        self.rows = rows
        self.errors: list[Array] = []

    def batch(self, size: int, into: Batch | None = None) -> Batch:
        return self.rows

    def update_priority(self, ix: Array, td_error: Array) -> None:
        self.errors.append(td_error.copy())


def learn_from(learner: NetworkAgent, batch: Batch) -> list[Array]:
    """Do an opt step with this batch. Returns the errors that the replay gets."""
    buffer: Any = OneBatchBuffer(batch)
    learner.opt(buffer)
    return list(buffer.errors)


def learn(agent: str, learner: NetworkAgent, seeds: Iterable[int], weighted: bool = False) -> list[Array]:
    """Do an opt step with a new batch for each seed. Returns the errors that the replay gets."""
    return [
        errors for seed in seeds for errors in learn_from(learner, batch_of(agent, seed, weighted=weighted))
    ]


def assert_same_state(learner: NetworkAgent, other: NetworkAgent) -> None:
    """Check that parameters, moments, statistics and random generators are equal bit for bit."""
    arrays = other.state().arrays
    for name, array in learner.state().arrays.items():
        np.testing.assert_array_equal(array, arrays[name], err_msg=name)
    assert learner.generator_state() == other.generator_state()
