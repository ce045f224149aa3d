"""What every agent keeps to. A new one joins by its name in the registry, and a row of CONFIGS if it has layers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from border_cli import load
from border_cli.checkpoints.contents import ModelDescription, save_best
from border_cli.config.registry import AGENTS
from border_cli.core.errors import UsageError
from border_cli.core.protocols import ActingPolicy, Evaluation, ModelInfo
from border_cli.core.spaces import Array, Obs
from border_cli.envs.spaces import decode_action, env_spec
from tests.faults.amounts import times

SMALL = {"hidden": [8]}
CONFIGS: dict[str, dict[str, Any]] = dict.fromkeys(("dqn", "c51", "qrdqn", "iqn", "rainbow"), SMALL)
"""Less than the defaults, so that many networks take no time."""
ACTIONS: dict[str, spaces.Space[Any]] = {
    "two": spaces.Discrete(2),
    "seven from -3": spaces.Discrete(7, start=-3),
    "one": spaces.Discrete(1, start=5),
    "box": spaces.Box(np.array([-2.0, 0.0], np.float32), np.array([2.0, 0.1], np.float32)),
    "box of float64": spaces.Box(-0.3, 0.7, (1, 2), np.float64),
}
OBSERVATIONS = spaces.Dict(x=spaces.Box(-np.inf, np.inf, (3,), np.float32), k=spaces.Discrete(4, start=1))
NETS, BATCH = times(100, 10_000), times(100, 4)
"""For each agent and action space; half of the networks explore."""


def each() -> Iterator[tuple[str, str]]:
    for agent, entry in AGENTS.items():
        for action, space in ACTIONS.items():
            try:
                entry.load().check_spec(entry.config(), env_spec(OBSERVATIONS, space))
            except UsageError:
                continue
            yield agent, action


def random_model(info: ModelInfo, rng: np.random.Generator) -> ModelInfo:
    """Weights from tiny to as large as float32 can multiply, and some of nothing but equal ones."""
    scale = 10.0 ** rng.uniform(-6, 12)
    equal = rng.random() < 0.1
    arrays: dict[str, Array] = {}
    for name, array in info.arrays.items():
        values = np.ones(array.shape) if equal else rng.normal(size=array.shape)
        arrays[name] = (scale * values).astype(np.float32)
    return ModelInfo(info.version, arrays)


def observations(rng: np.random.Generator) -> Obs:
    scale = 10.0 ** rng.uniform(-3, 6)
    return {
        "obs.x": (scale * rng.normal(size=(BATCH, 3))).astype(np.float32),
        "obs.k": rng.integers(0, 4, BATCH),
    }


def policy(agent: str, space: spaces.Space[Any]) -> ActingPolicy:
    entry = AGENTS[agent]
    config = entry.config(**CONFIGS.get(agent, {}))
    made: ActingPolicy = entry.load().make_policy(config, env_spec(OBSERVATIONS, space), seed=3)
    return made


PAIRS = list(each())


def test_every_agent_takes_one_of_these_action_spaces() -> None:
    assert {agent for agent, _ in PAIRS} == set(AGENTS)


@pytest.mark.parametrize(("agent", "action"), PAIRS)
def test_e4_no_action_is_outside_its_space(agent: str, action: str) -> None:
    space, rng = ACTIONS[action], np.random.default_rng(0)
    spec, acting = env_spec(OBSERVATIONS, space), policy(agent, space)
    seen = set()
    for net in range(NETS):
        (acting.train if net % 2 else acting.eval)()
        acting.sync_model(random_model(acting.model_info(), rng))
        for chosen in acting.sample(observations(rng), env_steps=net * 100):
            given = decode_action(spec.action, chosen)
            assert space.contains(given), (given, space)
            seen.add(str(given))
    if isinstance(space, spaces.Discrete):
        assert len(seen) == space.n  # not always the same


@pytest.mark.parametrize(("agent", "action"), PAIRS)
def test_e4_nor_is_one_of_a_loaded_model(agent: str, action: str, tmp_path: Path) -> None:
    space, rng = ACTIONS[action], np.random.default_rng(1)
    config = AGENTS[agent].config(**CONFIGS.get(agent, {}))
    env = {"id": "CartPole-v1"}  # never made: what acting needs are the stored spaces
    described = ModelDescription(asdict(config) | {"type": agent}, env, env_spec(OBSERVATIONS, space))
    for net in range(5):
        info = random_model(policy(agent, space).model_info(), rng)
        loaded = load(save_best(tmp_path, info.arrays, described, Evaluation(net, (1.0,), (1,))))
        OBSERVATIONS.seed(net)
        for _ in range(20):
            given = loaded.sample(OBSERVATIONS.sample())
            assert space.contains(given), (given, space)
