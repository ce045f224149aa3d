"""Judging: episodes by their index, eval mode, the cap, and stopping."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from border_cli.core.protocols import ActingPolicy, Env, Evaluation
from border_cli.core.spaces import Array, Obs
from border_cli.evaluation.episodes import EpisodeRunner
from tests.evaluators import SeededEnv


class ParityPolicy:
    """Action 1 for an odd seed; notes its modes."""

    def __init__(self, failing: bool = False) -> None:
        self.modes: list[str] = []
        self._failing = failing

    def begin_episode(self, env_ix: int) -> None:
        pass

    def estimates(self) -> None:
        return None

    def sample(self, obs: Obs, env_steps: int = 0, env_ix: Sequence[int] = ()) -> Array:
        if self._failing:
            raise RuntimeError("the policy fails")
        assert self.modes == ["eval"]
        return obs["obs"][:, 0].astype(np.int64) % 2

    def train(self) -> None:
        self.modes.append("train")

    def eval(self) -> None:
        self.modes.append("eval")


def seed_of(episode: int) -> int:
    return 10 * episode + 3


def seeds(episodes: int) -> list[int]:
    return [seed_of(i) for i in range(episodes)]


def judge(
    env: Env, policy: ParityPolicy, episodes: int = 9, cap: int = 100, stop_after: int = 10**9
) -> Evaluation | None:
    polls = iter(range(10**9))
    runner = EpisodeRunner(env, cap, lambda: next(polls) >= stop_after, lambda: None)
    acting: ActingPolicy = policy  # type: ignore[assignment]
    return runner.evaluate(acting, 42, seeds(episodes))


def expected(episodes: int, cap: int = 100) -> Evaluation:
    lengths = [min(seed % 7 + 1, cap) for seed in seeds(episodes)]
    returns = [float((seed + seed % 2) * n) for seed, n in zip(seeds(episodes), lengths, strict=True)]
    return Evaluation(42, tuple(returns), tuple(lengths))


@pytest.mark.parametrize("truncating", [False, True])
@pytest.mark.parametrize("n_envs", [1, 2, 4, 9, 20])
def test_results_are_in_the_order_of_the_episodes_however_many_run_at_once(
    n_envs: int, truncating: bool
) -> None:
    env, policy = SeededEnv(n_envs, truncating), ParityPolicy()
    assert judge(env, policy) == expected(9)
    assert sorted(filter(None, env.seeds)) == [seed_of(i) for i in range(9)]
    assert policy.modes == ["eval", "train"]


def test_one_episode() -> None:
    assert judge(SeededEnv(3), ParityPolicy(), episodes=1) == expected(1)


@pytest.mark.parametrize("cap", [1, 3])
def test_a12_an_episode_that_is_cut_counts_with_its_return_so_far(cap: int) -> None:
    assert judge(SeededEnv(2), ParityPolicy(), cap=cap) == expected(9, cap)


def test_the_same_evaluation_again_has_the_same_seeds() -> None:
    env = SeededEnv(2)
    assert judge(env, ParityPolicy()) == judge(env, ParityPolicy())
    assert sorted(filter(None, env.seeds[:9])) == sorted(filter(None, env.seeds[9:]))


@pytest.mark.parametrize("polls", [0, 1, 5])
def test_a12_it_stops_before_the_next_env_step(polls: int) -> None:
    env, policy = SeededEnv(1), ParityPolicy()
    assert judge(env, policy, stop_after=polls) is None
    assert env.taken <= polls
    assert policy.modes == ["eval", "train"]


def test_a_policy_that_fails_is_in_train_mode_again() -> None:
    policy = ParityPolicy(failing=True)
    with pytest.raises(RuntimeError, match="the policy fails"):
        judge(SeededEnv(1), policy)
    assert policy.modes == ["eval", "train"]


def test_an_environment_that_cannot_be_reset_leaves_train_mode_too() -> None:
    class Failing(SeededEnv):
        def reset(self, env_ix: int, seed: int | None = None) -> None:
            raise RuntimeError("no reset")

    policy = ParityPolicy()
    with pytest.raises(RuntimeError, match="no reset"):
        judge(Failing(1), policy)
    assert policy.modes == ["eval", "train"]


def test_time_goes_on_at_every_env_step() -> None:
    ticks: list[int] = []
    runner = EpisodeRunner(SeededEnv(1), 100, lambda: False, lambda: ticks.append(1))
    policy: ActingPolicy = ParityPolicy()  # type: ignore[assignment]
    evaluation = runner.evaluate(policy, 0, seeds(2))
    assert evaluation is not None and len(ticks) == sum(evaluation.lengths)


def test_closing_closes_the_environments() -> None:
    env = SeededEnv(1)
    EpisodeRunner(env, 1, lambda: False, lambda: None).close()
    assert env.closed


def test_equal_returns_have_no_deviation() -> None:
    assert Evaluation(0, (0.1,) * 7, (1,) * 7).std == 0.0
    assert Evaluation(0, (1.0, 3.0), (1, 1)).std == 1.0
