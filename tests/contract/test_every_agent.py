"""Contract tests of every registered agent."""

from __future__ import annotations

import json
from copy import deepcopy
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from border_cli.core.protocols import ActingPolicy
from border_cli.core.spaces import Array, decode_actions
from border_cli.core.state import State
from border_cli.core.types import ModelInfo
from border_cli.envs.gym_spaces import env_spec
from border_cli.runtime import seeding
from tests.faults.amounts import times
from tests.kinds import AGENTS
from tests.learners import (
    ACTIONS,
    OBSERVATIONS,
    PAIRS,
    SIZE,
    assert_same_state,
    batch_of,
    config_of,
    learn,
    learn_from,
    make_learner,
    observations,
    spec_of,
)

NETS, BATCH = times(40, 10_000), times(50, 4)
"""Networks per agent and action space, half of them in train mode; observations per network."""
agents = pytest.mark.parametrize("agent", AGENTS)
normalized = pytest.mark.parametrize("normalize_obs", [False, True], ids=["", "normalized"])


def random_model(info: ModelInfo, rng: np.random.Generator) -> ModelInfo:
    """Random weights on a scale of 1e-6 to 1e12. In one model of ten all weights are equal."""
    scale = 10.0 ** rng.uniform(-6, 12)
    equal = rng.random() < 0.1
    arrays: dict[str, Array] = {}
    for name, array in info.arrays.items():
        values = np.ones(array.shape) if equal else rng.normal(size=array.shape)
        arrays[name] = (scale * values).astype(np.float32)
    return ModelInfo(info.version, arrays)


def policy_of(agent: str, space: spaces.Space[Any]) -> ActingPolicy:
    spec = env_spec(OBSERVATIONS, space)
    policy: ActingPolicy = AGENTS[agent].load().make_policy(config_of(agent), spec, seed=3)
    return policy


@pytest.mark.parametrize(("agent", "action"), PAIRS)
def test_e4_no_action_is_outside_its_space(agent: str, action: str) -> None:
    space, rng = ACTIONS[action], np.random.default_rng(0)
    spec, acting = env_spec(OBSERVATIONS, space), policy_of(agent, space)
    seen = set()
    for net in range(NETS):
        (acting.train if net % 2 else acting.eval)()
        acting.sync_model(random_model(acting.model_info(), rng))
        rows = observations(net, BATCH, scale=10.0 ** rng.uniform(-3, 6))
        for chosen in decode_actions(spec.action, acting.sample(rows, env_steps=net * 100)):
            assert space.contains(chosen), (chosen, space)
            seen.add(str(chosen))
    if isinstance(space, spaces.Discrete):
        assert len(seen) == space.n  # every action is chosen at least once


@agents
def test_evaluation_is_greedy_and_exploration_is_not(agent: str) -> None:
    learner, obs = make_learner(agent), observations(9)

    def first_actions(env_steps: int) -> Array:
        for env_ix in range(len(obs["obs.k"])):
            learner.begin_episode(env_ix)
        return learner.sample(obs, env_steps)

    learner.eval()
    chosen = first_actions(0)
    assert all((first_actions(env_steps) == chosen).all() for env_steps in (0, 10, 10**6))
    learner.train()
    assert any((first_actions(0) != chosen).any() for _ in range(20))


@agents
def test_the_same_seed_gives_the_same_agent_and_another_seed_another(agent: str) -> None:
    learner, same, other = (make_learner(agent, seed) for seed in (1, 1, 2))
    acted = []
    for each in (learner, same, other):
        each.train()
        learn(agent, each, range(5))
        acted.append(each.sample(observations(0), 10**6).tolist())
    assert acted[0] == acted[1]
    assert_same_state(learner, same)
    with pytest.raises(AssertionError):
        assert_same_state(learner, other)


@agents
def test_the_schedule_scales_every_learning_rate(agent: str) -> None:
    learner = make_learner(agent, lr_schedule="linear", lr_opt_steps=2, lr_final=0.0, target_interval=100)

    def weights() -> Array:
        trained = {name for name in learner.state().arrays if ".exp_avg." in name}
        names = [name.replace(".exp_avg.", ".params.") for name in trained]
        return np.concatenate([learner.state().arrays[name].ravel() for name in sorted(names)])

    before, changed = weights(), []
    for seed in range(4):  # at opt steps 3 and 4 the learning rates are 0
        learn(agent, learner, [seed])
        changed.append(np.abs(weights() - before).max() > 1e-6)  # norms of 1 are restored up to rounding
        before = weights()
    assert changed == [True, True, False, False]
    record = learner.take_record()
    assert record is not None and record.values["agent/lr"] == 0.0


@pytest.mark.parametrize("agent", [agent for agent in AGENTS if agent != "flashsac"])
def test_weight_decay_shrinks_matrices_alone(agent: str) -> None:
    """The first step of Adam is the same with and without, so the parameters differ by lr · weight_decay · θ.

    FlashSAC sets the norms of its weights afterwards.
    """
    learners = [make_learner(agent, weight_decay=decay, lr=0.25) for decay in (0.0, 0.5)]
    before = deepcopy(learners[0].state().arrays)
    for learner in learners:
        learner.opt_steps = 5  # so that all networks change
        learn(agent, learner, [1])
    without, decayed = (learner.state().arrays for learner in learners)
    for name, array in before.items():
        if ".params." in name:
            is_matrix = (
                name.rpartition(".")[2] in ("weight", "weight_x", "weight_h") and ".norms." not in name
            )
            expected = 0.25 * 0.5 * array if is_matrix else 0.0
            np.testing.assert_allclose(without[name] - decayed[name], expected, atol=1e-6, err_msg=name)


@agents
def test_a_reset_draws_anew_what_is_trained_and_nothing_else(agent: str) -> None:
    learner, other = (make_learner(agent, normalize_obs=True, reset_interval=n) for n in (3, None))
    bad = batch_of(agent, 7)
    bad.reward[:] = np.nan  # skips the opt step, which leaves what the reset has made
    drawn = []
    for number in (1, 2):
        learn(agent, learner, range(3 * number - learner.opt_steps))
        before = deepcopy(learner.state().arrays)
        if number == 1:
            learn(agent, other, range(3))
            assert_same_state(learner, other)
        learn_from(learner, bad)
        fresh = (
            make_learner(agent, seeding.integer(3, *seeding.RESET, number), normalize_obs=True).state().arrays
        )
        after = deepcopy(learner.state().arrays)
        for name, array in after.items():
            network, _, part = name.partition(".")
            if ".exp_avg" in name or name == f"{network}.step":
                assert not array.any()
            elif "target" in network:
                online = f"{network.removesuffix('_target').replace('target', 'online')}.params.{part}"
                assert (array == after[online]).all(), name
            elif network != "stats":
                is_kept = ".encoder.parts." in name or ".returns." in name
                assert (array == (before if is_kept else fresh)[name]).all(), name
        drawn.append(after)
    assert any(
        (drawn[0][name] != array).any() for name, array in drawn[1].items() if name.endswith(".weight")
    )


@normalized
@agents
def test_an_agent_that_loads_a_state_continues_bit_for_bit(agent: str, normalize_obs: bool) -> None:
    learner, other = (make_learner(agent, seed, normalize_obs=normalize_obs) for seed in (3, 77))
    learn(agent, learner, range(5))
    state = learner.state()
    other.load_state(State(deepcopy(state.arrays), json.loads(json.dumps(state.values))))
    other.load_generator_state(json.loads(json.dumps(learner.generator_state())))
    for each in (learner, other):
        each.train()
    obs = observations(0)
    assert (learner.sample(obs, 10**6) == other.sample(obs, 10**6)).all()
    for each in (learner, other):
        learn(agent, each, range(5, 10))
        each.eval()
    assert_same_state(learner, other)
    assert (learner.sample(obs) == other.sample(obs)).all()


@normalized
@agents
def test_a_model_acts_as_the_agent_it_was_taken_from(agent: str, normalize_obs: bool) -> None:
    learner = make_learner(agent, normalize_obs=normalize_obs)
    learn(agent, learner, range(5))
    config = config_of(agent, normalize_obs=normalize_obs)
    acting = AGENTS[agent].load().make_policy(config, spec_of(agent), 8)
    acting.sync_model(learner.model_info())
    assert acting.version == 5
    for each in (learner, acting):
        each.eval()
    assert (acting.sample(observations(9)) == learner.sample(observations(9))).all()
    for name, array in acting.model_info().arrays.items():
        assert not np.shares_memory(array, learner.model_info().arrays[name])


@normalized
@agents
@pytest.mark.parametrize(
    ("column", "bad"), [("reward", np.nan), ("obs", np.inf), ("obs", np.nan), ("next_obs", -np.inf)]
)
def test_a_bad_number_changes_nothing(agent: str, column: str, bad: float, normalize_obs: bool) -> None:
    learner = make_learner(agent, normalize_obs=normalize_obs, weight_decay=0.1)
    batch = batch_of(agent, 7, weighted=True)
    learn(agent, learner, range(4))
    before = deepcopy(learner.state().arrays)
    if column == "next_obs" and not batch.next_obs:
        batch.obs["obs.x"][2, -1] = (
            bad  # the last observation of a sequence, of which only a target is computed
        )
    else:
        (batch.reward if column == "reward" else getattr(batch, column)["obs.x"])[2] = bad
    batch.terminated[2] = False
    (errors,) = learn_from(learner, batch)
    assert learner.skipped_in_a_row == 1
    # That row keeps its priority; with batch normalisation it spoils the values of all rows.
    known = 0 if agent in ("crossq", "flashsac") and column != "reward" else SIZE - 1
    assert len(errors) == known and np.isfinite(errors).all()
    for name, array in learner.state().arrays.items():
        assert "target" in name or name.startswith("stats.skipped") or (array == before[name]).all(), name
    assert learner.check_finite()


@agents
def test_a_weighted_batch_updates_the_priorities(agent: str) -> None:
    (errors,) = learn(agent, make_learner(agent), [1], weighted=True)
    assert errors.shape == (SIZE,)
    assert (errors >= 0).all() and errors.max() > 0
