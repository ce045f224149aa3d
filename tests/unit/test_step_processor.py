"""n-step transitions by hand: rewards 1, 2, 4, 8 … and γ = 0.5, so that every sum is exact in binary."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from border_cli.agents.dqn.agent import make_agent
from border_cli.agents.dqn.config import DqnConfig
from border_cli.config.schema import EnvConfig
from border_cli.core.spaces import ActionSpec, EnvSpec, ObsLeaf, ObsSpec
from border_cli.core.types import Q_ACTION, Q_MAX, UNKNOWN_PRIORITY, Items, Step, concat_items
from border_cli.envs.group import GymEnv
from border_cli.replay.buffer import make_buffer
from border_cli.replay.config import PrioritizedConfig
from border_cli.replay.n_step import NStepProcessor
from tests.fakes import processed, sampler_of

SPEC = EnvSpec(ObsSpec((ObsLeaf("obs", (), "box", (1,), "float32"),)), ActionSpec("discrete", n=9))


def step(t: int, reward: float, terminated: bool = False, truncated: bool = False, env: int = 0) -> Step:
    """Return env step t: observation t, next observation t + 1, action t."""
    return Step(
        [env],
        {"obs": np.array([[t]], np.float32)},
        np.array([t]),
        np.array([reward]),
        np.array([terminated]),
        np.array([truncated]),
        {"obs": np.array([[t + 1]], np.float32)},
    )


def rows(items: Items) -> list[tuple[float, int, float, float, bool, int]]:
    """Return (observation, action, reward, discount, terminated, n_steps) of each row."""
    names = ("action", "reward", "discount", "terminated", "n_steps")
    return list(zip(items["obs"][:, 0].tolist(), *(items[name].tolist() for name in names), strict=True))


def run(n: int, steps: list[Step], clip: float | None = None) -> Items:
    processor = NStepProcessor(SPEC, 1, n, 0.5, clip)
    return concat_items([processed(processor, s) for s in steps])


@pytest.mark.parametrize("terminated", [True, False])
def test_n_step_returns_get_shorter_at_an_end_and_the_final_observation_comes_last(terminated: bool) -> None:
    """1 + 2/2 + 4/4 = 3, then 2 + 4/2 + 8/4 = 6; γ³ = 0.125."""
    end = step(3, 8.0, terminated=terminated, truncated=not terminated)
    items = run(3, [step(0, 1.0), step(1, 2.0), step(2, 4.0), end])
    assert rows(items) == [
        (0.0, 0, 3.0, 0.125, False, 3),
        (1.0, 1, 6.0, 0.125, terminated, 3),
        (2.0, 2, 8.0, 0.25, terminated, 2),
        (3.0, 3, 8.0, 0.5, terminated, 1),
        (4.0, 0, 0.0, 1.0, False, 0),
    ]
    assert items["episode_return"].tolist() == [0.0] * 4 + [15.0]
    assert items["episode_length"].tolist() == [0] * 4 + [4]


def test_rewards_are_clipped_per_step_and_the_episode_return_is_not() -> None:
    items = run(2, [step(0, 10.0), step(1, -10.0, terminated=True)], clip=1.0)
    assert rows(items)[0][2] == 1.0 - 0.5
    assert rows(items)[1][2] == -1.0
    assert items["episode_return"][-1] == 0.0


def test_a_cut_stream_drops_the_step_without_a_next_observation() -> None:
    processor = NStepProcessor(SPEC, 1, 3, 0.5)
    processed(processor, step(0, 1.0))
    processed(processor, step(1, 2.0))
    processor.cut(0)
    items = processor.take()
    assert rows(items) == [
        (0.0, 0, 2.0, 0.25, False, 2),
        (1.0, 1, 2.0, 0.5, False, 1),
        (2.0, 0, 0.0, 1.0, False, 0),
    ]
    assert not items["episode_length"].any()
    processor.cut(0)
    assert not rows(processor.take())


def test_a_life_lost_in_a_truncated_step_prevents_the_bootstrap() -> None:
    steps = [step(t, 1.0) for t in range(3)]
    last = replace(step(3, 1.0, truncated=True), life_lost=np.array([True]))
    processor = NStepProcessor(SPEC, 1, 2, 0.5)
    items = [processed(processor, each) for each in (*steps, last)]
    assert [row[4] for row in rows(items[-1])][:2] == [True, True]
    assert not any(row[4] for earlier in items[:-1] for row in rows(earlier))


# -- priorities that actors compute (Ape-X) ------------------------------------

GAMMA = 0.5


def estimated(t: int, q_max: float, q_action: float, **ends: bool) -> Step:
    """Return an env step with reward 1."""
    estimated_step = step(t, 1.0, **ends)
    estimated_step.extras = {Q_MAX: np.array([q_max]), Q_ACTION: np.array([q_action])}
    return estimated_step


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
        q_values: np.ndarray = policy.action_values({"obs": np.array(obs)})
        return q_values

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
