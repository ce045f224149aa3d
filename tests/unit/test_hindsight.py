"""Goals in hindsight: which goals and rewards are drawn and how often, by hand; what is asked of an environment.

See also `tests/contract/test_every_buffer.py`.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from border_cli.config.schema import BufferConfig, EnvConfig, TrainConfig, WrapperConfig
from border_cli.core.errors import IncompatibleStateError, UsageError
from border_cli.core.spaces import ActionSpec, Array, EnvSpec, ObsLeaf, ObsSpec
from border_cli.core.types import Items, empty_items, item_columns
from border_cli.envs.goals import GoalOutcome
from border_cli.envs.try_env import Probed, try_env
from border_cli.replay.buffer import Returns, RowReplayBuffer, make_buffer
from border_cli.run import preflight
from tests.envs import Sampled
from tests.goal_envs import BitFlip, Reach

GAMMA, CLIP, RATIO = 0.5, 0.75, 0.8
GOAL_SPEC = EnvSpec(
    ObsSpec(
        tuple(
            ObsLeaf(f"obs.{name}", (name,), "box", (1,), "float32")
            for name in ("observation", "achieved_goal", "desired_goal")
        )
    ),
    ActionSpec("discrete", n=2),
)
OWN = 99.0
"""The goal of the environment, which is never achieved."""


def missed(achieved: Array, desired: Array) -> tuple[Array, None]:
    return -np.abs(achieved - desired)[:, 0], None


def missed_or_over(achieved: Array, desired: Array) -> tuple[Array, Array]:
    return missed(achieved, desired)[0], (achieved == desired)[:, 0]


def episode(start: int, length: int, terminated: bool) -> Items:
    """Return the rows of an episode which achieves start, start + 1, …, start + length; each reward is 0.25."""
    items = empty_items(item_columns(GOAL_SPEC), length + 1)
    items["step"][:] = np.arange(length + 1)
    items["obs.achieved_goal"][:, 0] = start + np.arange(length + 1)
    items["obs.desired_goal"][:] = OWN
    items["reward"][:length] = 0.25
    items["terminated"][length - 1] = terminated
    items["final"][length] = True
    return items


def two_episodes(outcome: Any) -> RowReplayBuffer:
    buffer = make_buffer(BufferConfig(her="future"), GOAL_SPEC, 3, (), Returns(GAMMA, CLIP), outcome=outcome)
    buffer.push(episode(0, 4, terminated=True))
    buffer.push(episode(10, 2, terminated=False))
    return buffer


def drawn(buffer: RowReplayBuffer, batches: int) -> Array:
    """Return (achieved, goal, next achieved, reward, discount, terminated) of sampled rows."""
    rows = []
    for _ in range(batches):
        batch = buffer.batch(6)
        assert (batch.obs["obs.desired_goal"] == batch.next_obs["obs.desired_goal"]).all()
        goals = batch.obs["obs.desired_goal"]
        columns = batch.obs["obs.achieved_goal"], goals, batch.next_obs["obs.achieved_goal"]
        rows.append(np.column_stack([*columns, batch.reward, batch.discount, batch.terminated]))
    return np.concatenate(rows)


def test_each_later_row_of_the_episode_gives_the_goal_equally_often() -> None:
    rows = drawn(two_episodes(missed), 4000)
    assert (rows[:, 2] == rows[:, 0] + 1).all()
    for start, end in ((0, 4), (10, 12)):
        for achieved in range(start, end):
            goals = rows[rows[:, 0] == achieved, 1]
            expected = {OWN: 1 - RATIO} | {
                float(goal): RATIO / (end - achieved) for goal in range(achieved + 1, end + 1)
            }
            assert set(goals) == set(expected)
            for goal, p in expected.items():
                # four standard deviations
                assert np.mean(goals == goal) == pytest.approx(p, abs=4 * (p * (1 - p) / len(goals)) ** 0.5)


@pytest.mark.parametrize("outcome", [missed, missed_or_over])
def test_reward_and_terminated_are_those_of_the_new_goal(outcome: Any) -> None:
    for achieved, goal, after, reward, discount, terminated in drawn(two_episodes(outcome), 200):
        is_last = achieved == 3.0  # of the episode that terminated with its own goal
        is_over = is_last if goal == OWN or outcome is missed else after == goal
        assert reward == (0.25 if goal == OWN else -min(abs(after - goal), CLIP))
        assert (discount, terminated) == (0.0 if is_over else GAMMA, is_over)


def test_without_goals_in_hindsight_the_generator_has_the_state_of_before() -> None:
    plain = make_buffer(BufferConfig(), GOAL_SPEC, 3)
    assert "hindsight" not in plain.generator_state()
    with pytest.raises(IncompatibleStateError):
        two_episodes(missed).load_generator_state(plain.generator_state())


# -- environments ----------------------------------------------------------------


class Dense(BitFlip):
    """The reward is the number of wrong bits, negative. Unsigned integers would underflow in it."""

    def compute_reward(self, achieved_goal: Any, desired_goal: Any, info: dict[str, Any]) -> Any:
        return -np.abs(achieved_goal - desired_goal).sum(-1).astype(np.float64)


class NeverOver(Reach):
    """As gymnasium-robotics has it: False, for any number of goals."""

    def compute_terminated(self, achieved_goal: Any, desired_goal: Any, info: dict[str, Any]) -> bool:
        return False


class SingleOver(Reach):
    """Takes all goals as one."""

    def compute_terminated(self, achieved_goal: Any, desired_goal: Any, info: dict[str, Any]) -> bool:
        return bool(np.linalg.norm(achieved_goal - desired_goal) < 0.1)


class Aimless(Sampled):
    """Has goals, but says nothing of them."""

    def __init__(self) -> None:
        box = spaces.Box(-1.0, 1.0, (2,), np.float32)
        super().__init__(spaces.Dict(achieved_goal=box, desired_goal=box))


def halved(env: gymnasium.Env[Any, Any]) -> gymnasium.Env[Any, Any]:
    """Halves each reward."""
    return gymnasium.wrappers.TransformReward(env, lambda reward: reward / 2)


class Wide(Reach):
    def compute_reward(self, achieved_goal: Any, desired_goal: Any, info: dict[str, Any]) -> Any:
        return -np.abs(achieved_goal - desired_goal) if achieved_goal.ndim > 1 else 0.0


class NeedsInfo(Reach):
    def compute_reward(self, achieved_goal: Any, desired_goal: Any, info: dict[str, Any]) -> Any:
        return info["reward"] if achieved_goal.ndim > 1 else 0.0


def probed(make: str, **options: Any) -> tuple[EnvConfig, Probed]:
    config = EnvConfig(entry_point=make if ":" in make else f"{__name__}:{make}", **options)
    return config, try_env(config)


def test_stored_goals_become_those_of_the_environment() -> None:
    config, trial = probed("Dense", kwargs={"n": 3})
    outcome = GoalOutcome(config, trial.spec)
    outcome.check(trial.spec, trial.first)
    achieved, desired = np.array([[0, 0, 1], [1, 1, 0]], np.uint8), np.array([[1, 1, 1], [1, 1, 0]], np.uint8)
    reward, terminated = outcome(achieved, desired)
    assert reward.tolist() == [-2.0, 0.0]
    assert terminated is not None and terminated.tolist() == [False, True]


def test_one_answer_for_all_goals_is_allowed() -> None:
    config, trial = probed("NeverOver")
    outcome = GoalOutcome(config, trial.spec)
    outcome.check(trial.spec, trial.first)
    terminated = outcome(np.zeros((3, 4)), np.ones((3, 4)))[1]
    assert terminated is not None and terminated.tolist() == [False] * 3


@pytest.mark.parametrize(
    ("make", "options", "message"),
    [
        ("tests.envs:Reporting", {}, "lacks goals in its observations, or compute_reward"),
        (
            "Reach",
            {"obs_keys": ["observation", "desired_goal"]},
            "lacks goals in its observations, or compute_reward",
        ),
        ("Reach", {"frame_stack": 2}, "lacks goals in its observations, or compute_reward"),
        ("Aimless", {}, "lacks goals in its observations, or compute_reward"),
        ("Wide", {}, "the rewards of four goals raise ValueError: "),
        ("NeedsInfo", {}, "the rewards of four goals raise KeyError: 'reward'"),
        ("SingleOver", {}, r"\[0\.0, 0\.0, 0\.0, 0\.0\]\],\nand .*, \[0\.0, 0\.0, 1\.0, 1\.0\]\]"),
        (
            "Reach",
            {"wrappers": ["tests.unit.test_hindsight:halved"]},
            r"\[\[-1\.0, .*\n.* as the env step gave it, \[\[-0\.5, ",
        ),
    ],
)
def test_an_environment_without_rewards_of_other_goals_is_refused(
    make: str, options: dict[str, Any], message: str
) -> None:
    wrappers = [WrapperConfig(name) for name in options.pop("wrappers", [])]
    config, trial = probed(make, wrappers=wrappers, **options)
    with pytest.raises(UsageError, match=message) as refusal:
        GoalOutcome(config, trial.spec).check(trial.spec, trial.first)
    assert 2 <= len(str(refusal.value).splitlines()) <= 3


def test_rows_with_goals_in_hindsight_are_in_the_main_memory() -> None:
    config = TrainConfig(buffer=BufferConfig(her="future"), device="cuda")
    assert preflight._replay_on_gpu(config, 1) is False
