"""Evaluation episodes: seeds, the policy's mode and stopping. `test_every_evaluator.py` tests the results."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from border_cli.core.spaces import Array, Obs
from border_cli.core.types import Step
from border_cli.training import evaluators
from border_cli.training.evaluators import EpisodeRunner
from tests.evaluators import SeededEnv, WeightPolicy

SEEDS = [10 * i + 3 for i in range(9)]


class Policy(WeightPolicy):
    """Records its modes."""

    def __init__(self) -> None:
        super().__init__()
        self.modes: list[str] = []

    def sample(self, obs: Obs, env_steps: int = 0, env_ix: Sequence[int] = ()) -> Array:
        assert self.modes == ["eval"]
        return np.zeros(len(env_ix), np.int64)

    def train(self) -> None:
        self.modes.append("train")

    def eval(self) -> None:
        self.modes.append("eval")


@pytest.mark.parametrize("n_envs", [1, 2, 20])
def test_every_episode_has_its_seed_and_a_tick_before_each_reset_and_env_step(n_envs: int) -> None:
    env, ticks = SeededEnv(n_envs), list[int]()
    runner = EpisodeRunner(env, 100, lambda: False)
    evaluation = runner.evaluate(Policy(), 42, SEEDS, lambda: ticks.append(1))
    assert evaluation is not None and sorted(filter(None, env.seeds)) == SEEDS
    if n_envs == 1:
        assert len(ticks) == sum(evaluation.lengths) + len(SEEDS)
    assert runner.evaluate(Policy(), 42, SEEDS) == evaluation
    runner.close()
    assert env.closed


def test_endless_episodes_are_cut(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluators, "_NO_END_S", 0.0)

    class Endless(SeededEnv):
        def step(self, env_ix: Sequence[int], action: Array) -> Step:
            going_on = np.zeros(len(env_ix), bool)
            obs = self.observe(env_ix)
            return Step(env_ix, obs, action, np.ones(len(env_ix)), going_on, going_on, obs)

    runner, ended = EpisodeRunner(Endless(2), 102, lambda: False), list[tuple[int, int]]()
    for _ in range(2):
        evaluation = runner.evaluate(
            Policy(), 42, SEEDS[:2], lambda: ended.append((runner.ended, runner.longest))
        )
        assert evaluation is not None and evaluation.lengths == (102, 102)
    assert ended[-1] == (0, 101)
    way_out = "at 102 env steps: env.max_episode_steps=<n> ends them, in training too"
    assert caplog.messages == [
        f"no episode of an evaluation has ended after a minute, and each is cut {way_out}",
        f"none of the 2 episodes of an evaluation has ended, and all were cut {way_out}",
    ]


@pytest.mark.parametrize("polls", [0, 5])
def test_a12_an_evaluation_stops_before_the_next_env_step(polls: int) -> None:
    env, policy, left = SeededEnv(1), Policy(), iter(range(polls))
    assert EpisodeRunner(env, 100, lambda: next(left, None) is None).evaluate(policy, 42, SEEDS) is None
    assert env.taken <= polls
    assert policy.modes == ["eval", "train"]
