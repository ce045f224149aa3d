"""Contract tests of every registered agent."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from border_cli import load
from border_cli.checkpoints.contents import ModelDescription
from border_cli.config.registry import AGENTS
from border_cli.core.errors import UsageError
from border_cli.core.protocols import ActingPolicy, Agent
from border_cli.core.spaces import Array, EnvSpec, Obs, decode_actions
from border_cli.core.state import State
from border_cli.core.types import Batch, Evaluation, ModelInfo
from border_cli.envs.gym_spaces import env_spec
from tests.envs import SPACES, START
from tests.faults.amounts import times
from tests.trained import save_best

CONFIGS: dict[str, dict[str, Any]] = {agent: {"hidden": [8]} for agent in AGENTS}
"""Smaller than the defaults, so that many networks are made quickly."""
ACTIONS: dict[str, spaces.Space[Any]] = {
    "two": spaces.Discrete(2, start=START),
    "seven from -3": spaces.Discrete(7, start=-3),
    "one": spaces.Discrete(1, start=5),
    "box": spaces.Box(np.array([-2.0, 0.0], np.float32), np.array([2.0, 0.1], np.float32)),
    "box of float64": spaces.Box(-0.3, 0.7, (1, 2), np.float64),
}
OBSERVATIONS = SPACES["number and kind"]
NETS, BATCH = times(100, 10_000), times(100, 4)
"""Networks per agent and action space, half of them in train mode; observations per network."""


def agent_action_pairs() -> Iterator[tuple[str, str]]:
    for agent, entry in AGENTS.items():
        for action, space in ACTIONS.items():
            try:
                entry.load().check_spec(entry.config(), env_spec(OBSERVATIONS, space))
            except UsageError:
                continue
            yield agent, action


def random_model(info: ModelInfo, rng: np.random.Generator) -> ModelInfo:
    """Random weights on a scale of 1e-6 to 1e12. In one model of ten all weights are equal."""
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
    config = entry.config(**CONFIGS[agent])
    acting: ActingPolicy = entry.load().make_policy(config, env_spec(OBSERVATIONS, space), seed=3)
    return acting


PAIRS = list(agent_action_pairs())


@pytest.mark.parametrize(("agent", "action"), PAIRS)
def test_e4_no_action_is_outside_its_space(agent: str, action: str) -> None:
    space, rng = ACTIONS[action], np.random.default_rng(0)
    spec, acting = env_spec(OBSERVATIONS, space), policy(agent, space)
    seen = set()
    for net in range(NETS):
        (acting.train if net % 2 else acting.eval)()
        acting.sync_model(random_model(acting.model_info(), rng))
        for chosen in decode_actions(spec.action, acting.sample(observations(rng), env_steps=net * 100)):
            assert space.contains(chosen), (chosen, space)
            seen.add(str(chosen))
    if isinstance(space, spaces.Discrete):
        assert len(seen) == space.n  # every action is chosen at least once


@pytest.mark.parametrize(("agent", "action"), PAIRS)
def test_e4_no_action_of_a_loaded_model_is_outside_its_space(agent: str, action: str, tmp_path: Path) -> None:
    space, rng = ACTIONS[action], np.random.default_rng(1)
    config = AGENTS[agent].config(**CONFIGS[agent])
    env = {"id": "CartPole-v1"}  # never made: acting needs only the stored spaces
    described = ModelDescription(asdict(config) | {"type": agent}, env, env_spec(OBSERVATIONS, space))
    for net in range(5):
        info = random_model(policy(agent, space).model_info(), rng)
        loaded = load(save_best(tmp_path, info.arrays, described, Evaluation(net, (1.0,), (1,))))
        acting = policy(agent, space)
        acting.sync_model(info)
        acting.eval()
        OBSERVATIONS.seed(net)
        for _ in range(20):
            observation = OBSERVATIONS.sample()
            chosen = loaded.sample(observation)
            assert space.contains(chosen), (chosen, space)
            rows = {"obs.x": observation["x"][None], "obs.k": np.array([observation["k"] - 1])}
            assert np.array_equal(chosen, decode_actions(described.spec.action, acting.sample(rows))[0])


# -- acting and learning ------------------------------------------------

FIRST = dict(reversed(PAIRS))
"""The first action space that each agent accepts."""


def rows(rng: np.random.Generator, n: int = 64) -> Obs:
    return {"obs.x": rng.normal(size=(n, 3)).astype(np.float32), "obs.k": rng.integers(0, 4, n)}


def config_of(agent: str) -> Any:
    return AGENTS[agent].config(**CONFIGS[agent] | {"batch_size": 16})


def spec_of(agent: str) -> EnvSpec:
    return env_spec(OBSERVATIONS, ACTIONS[FIRST[agent]])


def make_learner(agent: str, seed: int = 3) -> Agent:
    new: Agent = AGENTS[agent].load().make_agent(config_of(agent), spec_of(agent), seed)
    return new


def batch(agent: str, seed: int, n: int = 16) -> Batch:
    rng, space = np.random.default_rng(seed), ACTIONS[FIRST[agent]]
    if isinstance(space, spaces.Discrete):
        action: Array = rng.integers(0, space.n, n)
    else:
        assert isinstance(space, spaces.Box)
        action = rng.uniform(space.low, space.high, (n, *space.shape)).astype(np.float32)
    return Batch(
        rows(rng, n), action, rng.normal(size=n).astype(np.float32), np.full(n, 0.9, np.float32),
        rng.random(n) < 0.2, rows(rng, n), np.arange(n),
    )  # fmt: skip


class OneBatchBuffer:
    """Returns the same batch every time, and records the errors that it gets."""

    capacity = 1000

    def __init__(self, rows: Batch) -> None:
        self.rows = rows
        self.errors: list[Array] = []

    def batch(self, size: int, into: Batch | None = None) -> Batch:
        return self.rows

    def update_priority(self, ix: Array, td_error: Array) -> None:
        self.errors.append(td_error)


def learn(agent: str, learner: Agent, seeds: Iterable[int]) -> None:
    for seed in seeds:
        buffer: Any = OneBatchBuffer(batch(agent, seed))
        learner.opt(buffer)


@pytest.fixture(params=[False, True], ids=["", "normalized"])
def normalize_obs(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the test without and with `agent.normalize_obs=true`."""
    for agent in AGENTS:
        settings = CONFIGS[agent] | {"normalize_obs": request.param}
        monkeypatch.setitem(CONFIGS, agent, settings)


@pytest.mark.parametrize("agent", AGENTS)
def test_evaluation_is_greedy_and_exploration_is_not(agent: str) -> None:
    learner, obs = make_learner(agent), rows(np.random.default_rng(9))
    learner.eval()
    chosen = learner.sample(obs, 0)
    assert all((learner.sample(obs, env_steps) == chosen).all() for env_steps in (0, 10, 10**6))
    learner.train()
    assert any((learner.sample(obs, 0) != chosen).any() for _ in range(20))


@pytest.mark.usefixtures("normalize_obs")
@pytest.mark.parametrize("agent", AGENTS)
def test_the_same_seed_gives_the_same_agent_and_another_seed_another(agent: str) -> None:
    def history(seed: int) -> list[Any]:
        learner = make_learner(agent, seed)
        learner.train()
        learn(agent, learner, range(5))
        obs = rows(np.random.default_rng(0))
        return [
            learner.sample(obs, 10**6).tolist(),
            {n: a.tolist() for n, a in learner.state().arrays.items()},
        ]

    assert history(1) == history(1) != history(2)


@pytest.mark.parametrize("agent", AGENTS)
def test_the_schedule_scales_every_learning_rate(agent: str) -> None:
    config = replace(
        config_of(agent), lr_schedule="linear", lr_opt_steps=2, lr_final=0.0, target_interval=100
    )
    learner: Agent = AGENTS[agent].load().make_agent(config, spec_of(agent), 3)

    def weights() -> dict[str, list[float]]:
        return {name: a.tolist() for name, a in learner.state().arrays.items() if ".params." in name}

    before, changed = weights(), []
    for seed in range(4):  # at opt steps 3 and 4 the learning rates are 0
        learn(agent, learner, [seed])
        changed.append(weights() != before)
        before = weights()
    assert changed == [True, True, False, False]


@pytest.mark.usefixtures("normalize_obs")
@pytest.mark.parametrize("agent", AGENTS)
def test_an_agent_that_loads_a_state_continues_bit_for_bit(agent: str) -> None:
    learner, other = make_learner(agent), make_learner(agent, seed=77)
    learn(agent, learner, range(5))
    state, generators = learner.state(), json.loads(json.dumps(learner.generator_state()))
    other.load_state(State(state.copy().arrays, json.loads(json.dumps(state.values))))
    other.load_generator_state(generators)
    obs = rows(np.random.default_rng(0))
    for each in (learner, other):
        each.train()
    assert (learner.sample(obs, 10**6) == other.sample(obs, 10**6)).all()
    for each in (learner, other):
        learn(agent, each, range(5, 10))
    for name, array in learner.state().arrays.items():
        assert (array == other.state().arrays[name]).all(), name
    for each in (learner, other):
        each.eval()
    assert (learner.sample(obs) == other.sample(obs)).all()


@pytest.mark.usefixtures("normalize_obs")
@pytest.mark.parametrize("agent", AGENTS)
def test_a_model_acts_as_the_agent_it_was_taken_from(agent: str) -> None:
    learner = make_learner(agent)
    learn(agent, learner, range(5))
    acting = AGENTS[agent].load().make_policy(config_of(agent), spec_of(agent), 8)
    acting.sync_model(learner.model_info())
    assert acting.version == 5
    obs = rows(np.random.default_rng(9))
    for each in (learner, acting):
        each.eval()
    assert (acting.sample(obs) == learner.sample(obs)).all()
    for name, array in acting.model_info().arrays.items():
        assert not np.shares_memory(array, learner.model_info().arrays[name])


@pytest.mark.usefixtures("normalize_obs")
@pytest.mark.parametrize("agent", AGENTS)
@pytest.mark.parametrize("column", ["reward", "obs", "next_obs"])
def test_a_batch_with_numbers_that_are_not_finite_changes_no_weight(agent: str, column: str) -> None:
    learner, bad = make_learner(agent), batch(agent, 7)
    learn(agent, learner, range(4))
    before = {name: array.copy() for name, array in learner.state().arrays.items()}
    (bad.reward if column == "reward" else getattr(bad, column)["obs.x"])[2] = np.nan
    bad.terminated[2], bad.weight = False, np.ones(16, np.float32)
    buffer: Any = OneBatchBuffer(bad)
    learner.opt(buffer)
    assert learner.skipped_in_a_row == 1
    assert len(buffer.errors[0]) == 15 and np.isfinite(buffer.errors[0]).all()  # that row keeps its priority
    learned = [name for name in before if "target" not in name and not name.startswith("stats.skipped")]
    assert all((learner.state().arrays[name] == before[name]).all() for name in learned)
    assert learner.check_finite()


@pytest.mark.usefixtures("normalize_obs")
@pytest.mark.parametrize("agent", AGENTS)
def test_a_weighted_batch_updates_the_priorities(agent: str) -> None:
    learner, weighted = make_learner(agent), batch(agent, 1)
    weighted.weight = np.linspace(0.1, 1.0, 16, dtype=np.float32)
    buffer: Any = OneBatchBuffer(weighted)
    learner.opt(buffer)
    (errors,) = buffer.errors
    assert errors.shape == (16,)
    assert (errors >= 0).all()
    assert errors.max() > 0
