"""Priorities that actors compute (Ape-X), by hand and in the replay."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from border_cli.agents.dqn.agent import make_agent
from border_cli.agents.dqn.config import DqnConfig
from border_cli.config.schema import EnvConfig
from border_cli.core.types import Q_ACTION, Q_MAX, UNKNOWN_PRIORITY, Step
from border_cli.envs.group import GymEnv
from border_cli.replay.buffer import make_buffer
from border_cli.replay.config import PrioritizedConfig
from border_cli.replay.n_step import NStepProcessor
from tests.rows import processed, sampler_of
from tests.unit.test_step_processor import SPEC, step

GAMMA = 0.5


def estimated(t: int, q_max: float, q_action: float, **ends: bool) -> Step:
    """Return an env step with reward 1."""
    made = step(t, 1.0, **ends)
    made.extras = {Q_MAX: np.array([q_max]), Q_ACTION: np.array([q_action])}
    return made


def columns(parts: list[dict[str, Any]], *names: str) -> list[list[Any]]:
    return [np.concatenate([part[name] for part in parts]).tolist() for name in names]


def test_one_step_by_hand() -> None:
    p = NStepProcessor(SPEC, 1, 1, GAMMA, with_priority=True)
    parts = [
        processed(p, estimated(0, 9.0, 3.0)),
        processed(p, estimated(1, 4.0, 2.0)),
        processed(p, estimated(2, 6.0, 5.0, terminated=True)),
    ]
    assert [len(part["n_steps"]) for part in parts] == [0, 1, 3]
    # |1 + 0.5·4 - 3|, |1 + 0.5·6 - 2|, |1 - 5| because it is terminated; final observations have no priority
    assert columns(parts, "priority", "n_steps") == [[0.0, 2.0, 4.0, UNKNOWN_PRIORITY], [1, 1, 1, 0]]


def test_three_steps_by_hand_and_a_truncated_end() -> None:
    p = NStepProcessor(SPEC, 1, 3, GAMMA, with_priority=True)
    parts = [processed(p, estimated(t, 10.0 + t, float(t))) for t in range(3)]
    parts += [processed(p, estimated(3, 13.0, 3.0)), processed(p, estimated(4, 14.0, 4.0, truncated=True))]
    assert [len(part["n_steps"]) for part in parts] == [0, 0, 0, 1, 1 + 4]
    priority, span = columns(parts, "priority", "n_steps")
    assert span == [3, 3, 3, 2, 1, 0]
    three = 1 + 0.5 + 0.25
    # The values after three steps are 13 and 14. At the end the value 14 of the last observation with an action is used.
    expected = [
        abs(three + 0.125 * 13 - 0), abs(three + 0.125 * 14 - 1), abs(three + 0.125 * 14 - 2),
        abs(1.5 + 0.25 * 14 - 3), abs(1 + 0.5 * 14 - 4), UNKNOWN_PRIORITY,
    ]  # fmt: skip
    assert priority == pytest.approx(expected)


def test_rows_enter_the_replay_with_the_weight_of_their_priority() -> None:
    env = GymEnv(EnvConfig(id="CartPole-v1"), 2)
    agent = make_agent(DqnConfig(hidden=[8]), env.spec, 0)
    config = PrioritizedConfig(capacity=500, alpha=1.0, priority_eps=1e-9, initial_priority="actor")
    buffer = make_buffer(config, env.spec, 0)
    sampler = sampler_of(env, agent, NStepProcessor(env.spec, 2, 1, 0.9, with_priority=True))
    for _ in range(60):
        items = sampler.sample([0, 1], 0)
        if len(items["n_steps"]):
            buffer.push(items)
    batch = buffer.batch(64)
    agent.eval()
    policy: Any = agent.policy

    def values(obs: np.ndarray) -> np.ndarray:
        found: np.ndarray = policy.action_values({"obs": np.array(obs)})
        return found

    q = values(batch.obs["obs"])[np.arange(64), batch.action]
    target = batch.reward + np.where(
        batch.terminated, 0.0, batch.discount * values(batch.next_obs["obs"]).max(1)
    )
    saved = buffer.state().arrays["priority"]  # of row r, which is in slot r + 1
    assert saved[batch.ix - 1] == pytest.approx(np.abs(target - q) + 1e-9, rel=1e-3, abs=1e-5)


def test_values_that_are_not_finite_and_cut_streams_have_no_priority() -> None:
    p = NStepProcessor(SPEC, 1, 1, GAMMA, with_priority=True)
    for q_max, q_action in ((-np.inf, -np.inf), (np.nan, 1.0), (1e300, 0.0)):
        processed(p, estimated(0, 1.0, q_action))
        rows = processed(p, estimated(1, q_max, 1.0, truncated=True))
        assert rows["priority"][0] == UNKNOWN_PRIORITY
    p = NStepProcessor(SPEC, 1, 2, GAMMA, with_priority=True)
    processed(p, estimated(0, 1.0, 1.0))
    p.cut(0)
    assert p.take()["priority"].tolist() == [UNKNOWN_PRIORITY] * 2
