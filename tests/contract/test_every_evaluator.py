"""Contract tests of every evaluator: the same weights get the same scores, inline and in a process; then its episodes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager

import numpy as np
import pytest

from border_cli.core.protocols import Evaluator
from border_cli.core.spaces import Array, Obs
from border_cli.core.types import Step
from border_cli.runtime import forkserver
from border_cli.training import evaluators
from border_cli.training.evaluators import EpisodeRunner, InlineEvaluator
from tests.evaluators import SeededEnv, WeightPolicy, await_result, beside, expected, make_env, model, spec_of
from tests.fakes import LIGHT_PRELOAD

SEEDS = [10 * i + 3 for i in range(9)]
Make = Callable[..., AbstractContextManager[Evaluator]]


@contextmanager
def inline(n_envs: int = 2, cap: int = 100, truncating: bool = False) -> Iterator[Evaluator]:
    envs: list[SeededEnv] = []

    def make() -> EpisodeRunner:
        envs.append(SeededEnv(n_envs, truncating))
        return EpisodeRunner(envs[-1], cap, lambda: False)

    evaluator = InlineEvaluator(make, WeightPolicy())
    assert not envs
    yield evaluator
    evaluator.close()
    assert len(envs) <= 1 and all(env.closed for env in envs)


@contextmanager
def process(n_envs: int = 2, cap: int = 100, truncating: bool = False) -> Iterator[Evaluator]:
    with beside(spec_of(make_env, n_envs, truncating, cap=cap)) as evaluator:
        yield evaluator


@pytest.fixture(params=[inline, process], ids=["inline", "process"])
def evaluating(request: pytest.FixtureRequest) -> Make:
    forkserver.start_early(LIGHT_PRELOAD)
    make: Make = request.param
    return make


@pytest.mark.parametrize(("n_envs", "truncating"), [(1, False), (4, True), (20, False)])
def test_results_are_in_the_order_of_the_seeds(evaluating: Make, n_envs: int, truncating: bool) -> None:
    with evaluating(n_envs, truncating=truncating) as evaluator:
        evaluator.begin(model(1, 42), SEEDS)
        assert await_result(evaluator) == expected(1, 42, SEEDS)


def test_each_evaluation_uses_its_own_weights_and_seeds(evaluating: Make) -> None:
    """A model may be evaluated again on other seeds. Changing its arrays after `begin` has no effect."""
    with evaluating() as evaluator:
        for version, (weight, seeds) in enumerate(
            [(1, SEEDS), (0, SEEDS), (7, SEEDS[:3]), (7, [5]), (7, SEEDS)]
        ):
            evaluated = model(weight, version)
            evaluator.begin(evaluated, seeds)
            evaluated.arrays["weight"][...] = 100
            assert await_result(evaluator) == expected(weight, version, seeds)


def test_poll_returns_each_result_once_and_none_before_a_model(evaluating: Make) -> None:
    with evaluating() as evaluator:
        assert evaluator.poll() is None
        evaluator.begin(model(1), SEEDS)
        await_result(evaluator)
        assert [evaluator.poll() for _ in range(3)] == [None] * 3


@pytest.mark.parametrize("cap", [1, 3])
def test_a12_an_episode_that_is_cut_counts_with_its_return_so_far(evaluating: Make, cap: int) -> None:
    with evaluating(cap=cap) as evaluator:
        evaluator.begin(model(1, 2), SEEDS)
        assert await_result(evaluator) == expected(1, 2, SEEDS, cap)


def test_close_works_without_a_model_and_more_than_once(evaluating: Make) -> None:
    with evaluating() as evaluator:
        evaluator.poll()
        evaluator.close()


# -- episodes: seeds, the policy's mode and stopping -----------------------


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
