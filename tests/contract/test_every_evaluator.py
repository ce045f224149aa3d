"""What every evaluator has to do, wherever it judges: the same scores for the same weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest

from border_cli.core.protocols import Evaluator
from border_cli.evaluation.deferred import DeferredEvaluator
from border_cli.evaluation.episodes import EpisodeRunner
from border_cli.evaluation.inline import InlineEvaluator
from border_cli.runtime import forkserver
from tests.evaluators import SeededEnv, WeightPolicy, await_result, beside, expected, model, spec_of
from tests.fakes import LIGHT_PRELOAD

SEEDS = [10 * i + 3 for i in range(9)]
Make = Callable[..., AbstractContextManager[Evaluator]]


@contextmanager
def inline(n_envs: int = 2, cap: int = 100, truncating: bool = False) -> Iterator[Evaluator]:
    runner = EpisodeRunner(SeededEnv(n_envs, truncating), cap, lambda: False, lambda: None)
    evaluator = InlineEvaluator(runner, WeightPolicy())
    yield evaluator
    evaluator.close()


@contextmanager
def process(n_envs: int = 2, cap: int = 100, truncating: bool = False) -> Iterator[Evaluator]:
    with beside(spec_of("make_env", n_envs, truncating, cap=cap)) as evaluator:
        yield evaluator


@contextmanager
def deferred(n_envs: int = 2, cap: int = 100, truncating: bool = False) -> Iterator[Evaluator]:
    """One that is made by the first model, of either kind."""
    made = []

    def make() -> Evaluator:
        runner = EpisodeRunner(SeededEnv(n_envs, truncating), cap, lambda: False, lambda: None)
        made.append(InlineEvaluator(runner, WeightPolicy()))
        return made[-1]

    evaluator = DeferredEvaluator(make, concurrent=False)
    assert evaluator.poll() is None
    yield evaluator
    evaluator.close()
    assert len(made) <= 1


@pytest.fixture(params=[inline, process, deferred], ids=lambda make: make.__name__)
def evaluating(request: pytest.FixtureRequest) -> Make:
    forkserver.start_early(LIGHT_PRELOAD)
    make: Make = request.param
    return make


@pytest.mark.parametrize(("n_envs", "truncating"), [(1, False), (4, True), (20, False)])
def test_results_are_in_the_order_of_the_seeds_however_many_run_at_once(
    evaluating: Make, n_envs: int, truncating: bool
) -> None:
    with evaluating(n_envs, truncating=truncating) as evaluator:
        evaluator.begin(model(1, 42), SEEDS)
        assert await_result(evaluator) == expected(1, 42, SEEDS)


def test_one_model_after_the_other_each_with_its_own_weights_and_seeds(evaluating: Make) -> None:
    with evaluating() as evaluator:
        for version, (weight, seeds) in enumerate([(1, SEEDS), (0, SEEDS), (7, SEEDS[:3]), (7, [5])]):
            evaluator.begin(model(weight, version), seeds)
            assert await_result(evaluator) == expected(weight, version, seeds)


def test_the_same_model_may_be_judged_again(evaluating: Make) -> None:
    with evaluating() as evaluator:
        for seeds in (SEEDS, SEEDS[::-1]):
            evaluator.begin(model(3, 5), seeds)
            assert await_result(evaluator) == expected(3, 5, seeds)


def test_later_changes_of_the_arrays_do_not_reach_it(evaluating: Make) -> None:
    with evaluating() as evaluator:
        judged = model(1, 2)
        evaluator.begin(judged, SEEDS)
        judged.arrays["weight"][...] = 100
        assert await_result(evaluator) == expected(1, 2, SEEDS)


def test_a_result_is_given_once_and_before_a_model_there_is_none(evaluating: Make) -> None:
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


def test_it_may_be_closed_without_a_model_and_more_than_once(evaluating: Make) -> None:
    with evaluating() as evaluator:
        evaluator.poll()
        evaluator.close()
