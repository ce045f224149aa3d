"""Small agents of every kind, and batches for their opt steps."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from gymnasium import spaces
from torch import Tensor

from border_cli.agents.agent import NetworkAgent
from border_cli.agents.algorithm import Algorithm
from border_cli.agents.memory import STATE
from border_cli.agents.nets import Encoder, arrays_of
from border_cli.agents.numpy_policy import Network
from border_cli.agents.params import TensorBatch
from border_cli.config.registry import AGENTS
from border_cli.core.errors import UsageError
from border_cli.core.spaces import Array, EnvSpec, Obs
from border_cli.core.types import Batch, SequenceShape
from border_cli.envs.gym_spaces import env_spec
from tests.envs import SPACES, START

OBSERVATIONS = SPACES["number and kind"]
ACTIONS: dict[str, spaces.Space[Any]] = {
    "two": spaces.Discrete(2, start=START),
    "seven from -3": spaces.Discrete(7, start=-3),
    "one": spaces.Discrete(1, start=5),
    "several": spaces.MultiDiscrete([2, 3], start=[1, -1]),
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


SHAPE = SequenceShape(length=3, burn_in=2)
"""Of the sequences of agents with a memory."""


def config_of(agent: str, **settings: Any) -> Any:
    config = AGENTS[agent].config(hidden=[8], batch_size=SIZE)
    if getattr(config, "sequences", None) is not None:
        config = replace(config, sequence_length=SHAPE.length, burn_in=SHAPE.burn_in)
    return replace(config, **settings)


def spec_of(agent: str) -> EnvSpec:
    return env_spec(OBSERVATIONS, _FIRST[agent])


def opt_step(algorithm: Algorithm, batch: TensorBatch, number: int = 1) -> Tensor | None:
    """Opt step `number`, eager. Returns the errors of a batch with weights."""
    noise, variant = algorithm.noise(len(batch.reward)), algorithm.variant(number)
    return algorithm.step(batch, noise, algorithm.config.lr_scale(number), variant)


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
    extra_columns = getattr(AGENTS[agent].load(), "extra_columns", lambda config, spec: ())
    for column in extra_columns(config_of(agent), spec_of(agent)):
        batch.extra[column.name] = rng.normal(size=(n, *column.shape)).astype(column.dtype)
    if weighted:
        batch.weight = rng.random(n).astype(np.float32)
    return (
        batch
        if getattr(config_of(agent), "sequences", None) is None
        else sequences_of(batch, config_of(agent), rng)
    )


def sequences_of(rows: Batch, config: Any, rng: np.random.Generator) -> Batch:
    """Sequences of one-step transitions. Every fourth one begins an episode, and every third one ends after two rows."""
    n, length = len(rows.reward), SHAPE.length
    end = np.where(np.arange(n) % 3 == 0, 2, length)[:, None]
    parts = [observations(int(seed), n) for seed in rng.integers(0, 2**31, SHAPE.burn_in + length + 1)]
    place = np.arange(length)

    def repeated(row: Array) -> Array:
        return np.stack([row] * length, axis=1)

    return Batch(
        {name: np.stack([part[name] for part in parts], axis=1) for name in rows.obs},
        *map(repeated, (rows.action, rows.reward, rows.discount, rows.terminated)), {}, rows.ix, rows.weight,
        {
            STATE: rng.normal(size=(n, 2, config.gru)).astype(np.float32),
            "has_burn_in": np.arange(n) % 4 > 0,
            "is_valid": place < end,
            "next": np.minimum(place + 1, end),
        },
    )  # fmt: skip


def encoded_by_numpy(encoder: Encoder, obs: Obs) -> Array:
    """The vector that an encoder makes of observations, as numpy computes it."""
    arrays = {f"encoder.{name}": array for name, array in (arrays_of(encoder) or {}).items()}
    _, encoded, _ = Network({"encoder": encoder.described()}, arrays)(obs)
    return np.asarray(encoded)


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


def sums(algorithm: Algorithm) -> list[float]:
    """The sums of the scalars of the opt steps since the last record, in the order of `Algorithm.scalars`."""
    values: list[float] = algorithm.state.stats.totals.view(2, -1)[0].tolist()
    return values
