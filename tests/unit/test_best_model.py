"""The choice of the best model: cases by hand, and the regret in simulated runs."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence

import pytest

from bench.best_model import confirm_rule, pendulum, selector_rule, simulate, taxi_mixed
from border_cli.core.types import Evaluation
from border_cli.training.best_model import BestSelector, Comparison, Job, difference

N = 2
"""Fresh episodes of each model in a round."""
T1 = 12.7062
"""97.5% quantile of Student's t with 1 degree of freedom."""

Rounds = Sequence[Sequence[float]]


def evaluation(opt_steps: int, returns: Sequence[float]) -> Evaluation:
    return Evaluation(opt_steps, tuple(map(float, returns)), tuple(range(1, len(returns) + 1)))


def play(
    selector: BestSelector, opt_steps: int, regular: Sequence[float], fresh: Mapping[int, Rounds]
) -> list[Job]:
    """Run all comparisons of a model. fresh: returns per round, by opt step. Returns the jobs."""
    comparison = selector.compare(evaluation(opt_steps, regular))
    jobs = answer(comparison, fresh)
    selector.finish(comparison)
    return jobs


def answer(comparison: Comparison, fresh: Mapping[int, Rounds]) -> list[Job]:
    jobs: list[Job] = []
    while (job := comparison.next_job) is not None:
        jobs.append(job)
        assert len(job.episodes) == N
        comparison.add(evaluation(job.opt_steps, fresh[job.opt_steps][job.episodes.start // N]))
    return jobs


def with_best(regular: Sequence[float], fresh: Sequence[float], unspent: int = 0) -> BestSelector:
    """Return a selector whose best model is that of opt step 10. unspent: episodes left for undecided comparisons."""
    selector = BestSelector(N)
    selector.load_state(
        {
            "regular": evaluation(10, regular).to_json(),
            "fresh": evaluation(10, fresh).to_json(),
            "regular_episodes": 100,
            "fresh_episodes": 50 - unspent + (len(regular) + 1) // 2,
        }
    )
    return selector


def published(selector: BestSelector) -> tuple[int, tuple[float, ...]]:
    assert selector.best is not None
    return selector.best.score.opt_steps, selector.best.score.returns


# -- the estimate -------------------------------------------------------------


@pytest.mark.parametrize(
    ("candidate", "best", "earlier", "mean", "half_width", "clear"),
    [
        # Only pairs; differences 2 and 4: sqrt(2 / 2).
        ([3, 5], [1, 1], [], 3.0, T1 * 1.0, False),
        # Seeds explain nothing: cov = 0, so w = 2 / (2 + 2): 2 - 0.5 * 1 - 0.5 * 1.
        # var(c - w b) / m = 0.5 / 2, and (1 - w)^2 * var(0, 2, 1, 1) / K = 0.25 * (2 / 3) / 2
        ([2, 2], [0, 2], [1, 1], 1.0, T1 * math.sqrt(0.25 + 0.25 / 3), False),
        # The seed determines the return, so the earlier returns have weight 0.
        ([1, 11, 101], [0, 10, 100], [-500, 700], 1.0, 0.0, True),
        # In between: slope = 1 / 2, so w = (0.5 / 2 + 1 / 2) / (1 / 2 + 1 / 2) = 0.75: 3 - 0.75 * 2 - 0.25 * 6.
        # c - w b = (2, 1): 0.5 / 2; var(0, 4, 5, 7) = 26 / 3
        ([2, 4], [0, 4], [5, 7], 0.0, T1 * math.sqrt(0.25 + 0.0625 * 26 / 3 / 2), False),
        # The slope -1 is taken as 0, and 3 as 1.
        ([4, 0], [0, 4], [5, 7], 2 - 0.5 * 2 - 0.5 * 6, None, False),
        ([0, 12], [0, 4], [5, 7], 6 - 2.0, None, False),
        # If the best has no variance on the pairs, its earlier returns count.
        ([5, 5], [5, 5], [5, 1], 1.0, None, False),
        ([5, 5], [5, 5], [5, 5], 0.0, 0.0, True),
        ([9], [1], [1, 1], 8.0, math.inf, False),
    ],
)
def test_the_estimated_difference_by_hand(
    candidate: list[float],
    best: list[float],
    earlier: list[float],
    mean: float,
    half_width: float | None,
    clear: bool,
) -> None:
    found = difference(candidate, best, earlier)
    assert found.mean == pytest.approx(mean)
    assert half_width is None or found.half_width == pytest.approx(half_width, rel=1e-5, abs=1e-9)
    assert found.is_clear is clear


# -- comparisons --------------------------------------------------------------


def test_the_first_model_plays_one_round_alone() -> None:
    selector = BestSelector(N)
    assert play(selector, 10, [1, 2, 3], {10: [[5, 7]]}) == [Job(10, range(2), of_best=False)]
    assert published(selector) == (10, (5.0, 7.0))
    assert (selector.regular_episodes, selector.fresh_episodes) == (3, 2)


def test_candidate_and_best_play_the_same_episodes_and_the_larger_mean_wins() -> None:
    selector = with_best([0, 1, 2], [1, 1])
    comparison = selector.compare(evaluation(20, [5, 6, 8]))
    jobs = answer(comparison, {20: [[7, 8]], 10: [[2, 3]]})
    assert jobs == [Job(20, range(2), of_best=False), Job(10, range(2), of_best=True)]
    assert comparison.fresh == evaluation(20, [7, 8])
    assert comparison.replaces
    assert published(selector) == (10, (1.0, 1.0))  # nothing changes before the comparison ends
    assert selector.finish(comparison)
    assert published(selector) == (20, (7.0, 8.0))


def test_a_model_that_is_clearly_worse_is_no_candidate() -> None:
    selector = with_best([10, 11, 12], [11, 11], unspent=40)
    assert play(selector, 20, [0, 1, 3], {}) == []
    assert published(selector) == (10, (11.0, 11.0))
    assert selector.regular_episodes == 103


def test_the_best_keeps_its_earlier_returns() -> None:
    selector = with_best([5, 6, 7], [9, 9])
    play(selector, 20, [5, 6, 8], {20: [[0, 2]], 10: [[3, 7]]})
    assert published(selector) == (10, (9.0, 9.0, 3.0, 7.0))
    play(selector, 30, [5, 6, 8], {30: [[1, 1]], 10: [[5, 3]]})
    assert published(selector) == (10, (9.0, 9.0, 3.0, 7.0, 5.0, 3.0))
    assert selector.best is not None and selector.best.score.lengths == (1, 2) * 3
    assert selector.best.regular == evaluation(10, [5, 6, 7])


def test_a_lucky_best_model_is_replaced() -> None:
    """As on Taxi: the mean 8.9 of its first fresh episodes is higher than that of any later model."""
    selector = with_best([8, 7, -200], [9, 8.8])
    assert play(selector, 20, [8, 7, 7], {20: [[7, 8]], 10: [[7, -200]]})
    assert published(selector) == (20, (7.0, 8.0))


def test_an_equal_model_is_compared_while_episodes_are_left_for_it() -> None:
    assert (
        len(play(with_best([5, 6, 7], [8, 8], unspent=1), 20, [5, 6, 7], {20: [[5, 5]], 10: [[5, 5]]})) == 2
    )
    assert play(with_best([5, 6, 7], [8, 8], unspent=0), 20, [5, 6, 7], {}) == []


def test_an_undecided_comparison_gets_a_second_round_on_further_episodes() -> None:
    fresh = {20: [[5, 9], [6, 6]], 10: [[7, 4], [8, 8]]}
    jobs = play(with_best([5, 6, 7], [6, 6], unspent=5), 20, [8, 5, 7], fresh)
    assert [(job.opt_steps, job.episodes) for job in jobs] == [
        (20, range(2)), (10, range(2)), (20, range(2, 4)), (10, range(2, 4)),
    ]  # fmt: skip
    assert len(play(with_best([5, 6, 7], [6, 6], unspent=4), 20, [8, 5, 7], fresh)) == 2
    clear = {20: [[105, 106]], 10: [[5, 6]]}
    assert len(play(with_best([5, 6, 7], [6, 5], unspent=40), 20, [105, 106, 108], clear)) == 2


@pytest.mark.parametrize("value", [5.0, 0.1, -200.7])
def test_the_earliest_of_equal_models_stays(value: float) -> None:
    selector = with_best([value] * 3, [value] * N, unspent=40)
    for step in 20, 30:  # one round each: a second one would add nothing
        assert len(play(selector, step, [value] * 3, {step: [[value] * N], 10: [[value] * N]})) == 2
    assert published(selector) == (10, (value,) * 6)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_returns_that_are_not_finite_never_win(bad: float) -> None:
    selector = BestSelector(N)
    assert play(selector, 5, [1, bad, 1], {}) == []
    assert play(selector, 6, [1, 1, 1], {6: [[1, bad]]})
    assert selector.best is None
    play(selector, 10, [1, 1, 1], {10: [[1, 2]]})
    jobs = play(selector, 20, [9, 9, 8], {20: [[9, bad]]})
    assert [job.opt_steps for job in jobs] == [20]  # it is not compared with the best
    assert published(selector) == (10, (1.0, 2.0))


def test_a_best_with_returns_that_are_not_finite_is_replaced() -> None:
    selector = with_best([1, 1, 2], [1, 2])
    play(selector, 20, [2, 3, 3], {20: [[0, 0]], 10: [[1, math.nan]]})
    assert published(selector) == (20, (0.0, 0.0))
    selector = with_best([1, 1, 2], [1, math.nan])
    play(selector, 20, [-9, -9, -8], {20: [[-9, -9]]})
    assert published(selector) == (20, (-9.0, -9.0))


def test_a_model_that_reaches_the_goal_is_always_a_candidate() -> None:
    selector = BestSelector(N, goal=8.0)
    selector.load_state(with_best([100, 101, 102], [7, 7]).state())
    assert len(play(selector, 20, [8, 8, 8], {20: [[9, 9]], 10: [[7, 7]]})) == 2


def test_without_fresh_episodes_the_larger_regular_mean_wins() -> None:
    selector = BestSelector(0)
    for opt_steps, returns in (10, [1, 3]), (20, [3, 1]), (30, [2, 3]), (40, [0, 4]), (50, [math.nan, 9]):
        assert play(selector, opt_steps, returns, {}) == []
    assert published(selector) == (30, (2.0, 3.0))
    assert selector.fresh_episodes == 0


# -- state --------------------------------------------------------------------


def test_a_comparison_repeated_after_a_resume_has_the_same_result() -> None:
    fresh = {20: [[5, 9], [6, 6]], 10: [[7, 4], [8, 9]]}
    first = with_best([5, 6, 7], [6, math.nan], unspent=5)
    play(first, 15, [5, 6, 7], {15: [[6, 7]], 10: [[5, 5]]})
    interrupted = first.compare(evaluation(20, [8, 5, 7]))
    interrupted.add(evaluation(20, [1, 1]))  # lost when the run was interrupted
    resumed = BestSelector(N)
    resumed.load_state(json.loads(json.dumps(first.state())))
    for selector in first, resumed:
        play(selector, 20, [8, 5, 7], fresh | {15: fresh[10]})
    assert first.state() == resumed.state()


def test_the_states_of_a_new_run_and_of_one_without_fresh_episodes_can_be_loaded() -> None:
    for selector in BestSelector(N), BestSelector(0):
        loaded = BestSelector(N)
        loaded.load_state(json.loads(json.dumps(selector.state())))
        assert loaded.best is None
    selector = BestSelector(0)
    play(selector, 10, [1, 2], {})
    loaded = BestSelector(N)  # resumed with evaluator.confirm=true
    loaded.load_state(selector.state())
    assert published(loaded) == (10, (1.0, 2.0))
    play(loaded, 20, [2, 2], {20: [[3, 4]], 10: [[5, 6]]})
    assert published(loaded) == (10, (5.0, 6.0))


def test_regular_episodes_that_both_launches_have_are_paired_after_a_resume() -> None:
    selector = with_best([5, 6, 7, 8], [6, 7])
    assert len(play(selector, 20, [6, 7], {20: [[9, 9]], 10: [[6, 7]]})) == 2
    assert published(selector) == (20, (9.0, 9.0))


@pytest.mark.parametrize(
    ("key", "value"), [("regular", None), ("fresh", 3), ("fresh_episodes", 1.5), ("regular_episodes", None)]
)
def test_a_state_that_does_not_fit_is_refused(key: str, value: object) -> None:
    with pytest.raises(ValueError, match=r"episodes|evaluation"):
        BestSelector(N).load_state(with_best([1, 2], [3, 4]).state() | {key: value})


# -- simulated runs -----------------------------------------------------------


@pytest.mark.parametrize("scenario", [taxi_mixed, pendulum])
def test_regret_is_a_fraction_of_that_of_the_earlier_rule(scenario) -> None:
    before, now = (simulate(rule, scenario, repetitions=12) for rule in (confirm_rule, selector_rule))
    assert now.regret.mean() < 0.3 * before.regret.mean()
    assert abs(now.bias.mean()) < 0.4 * before.bias.mean()
    assert now.episodes.mean() < 1_100  # of 2,000 in regular evaluations


def test_a_model_of_the_best_models_opt_step_plays_other_fresh_episodes() -> None:
    """After a resume: the best has played the first two of this opt step's already."""
    selector = with_best([5.0, 7.0], [5.0, 5.0])
    for opt_steps, begin in ((10, 2), (20, 0)):
        comparison = selector.compare(evaluation(opt_steps, [8.0, 9.0]))
        assert comparison.next_job == Job(opt_steps, range(begin, begin + N), of_best=False)
