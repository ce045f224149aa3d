"""Which models are candidates for the best, which of them wins, and when a mean return is surely reached."""

from __future__ import annotations

import math

import numpy as np
import pytest

from border_cli.core.types import Evaluation, ModelInfo
from border_cli.training.best_model import (
    CANDIDATES,
    Candidate,
    fresh_rounds,
    least_mean,
    winner,
    with_candidate,
)


def evaluation(opt_steps: int, *returns: float) -> Evaluation:
    return Evaluation(opt_steps, returns, (1,) * len(returns))


def candidates(*scores: tuple[int, float]) -> list[Candidate]:
    """The candidates after models with these opt steps and regular scores."""
    found: list[Candidate] = []
    for opt_steps, score in scores:
        found = with_candidate(found, Candidate(ModelInfo(opt_steps, {}), evaluation(opt_steps, score)))
    return found


def steps(*scores: tuple[int, float]) -> list[int]:
    return [one.model.version for one in candidates(*scores)]


def test_the_highest_regular_scores_are_candidates() -> None:
    rising = [(n, float(n)) for n in range(1, 9)]
    assert steps(*rising) == steps(*rising[::-1]) == [8, 7, 6, 5, 4]
    assert len(rising) > CANDIDATES
    assert steps((1, 5.0), (2, math.nan), (3, -math.inf), (4, 2.0), (5, math.inf)) == [1, 4]
    assert steps((1, 5.0), (2, 6.0), (1, 7.0)) == [1, 2], "evaluated again after a resume"


def test_among_equal_scores_the_first_and_the_newest_stay() -> None:
    assert steps(*((n, 500.0) for n in range(1, 10))) == [1, 6, 7, 8, 9]
    assert steps((0, 1.0), *((n, 500.0) for n in range(1, 6))) == [1, 2, 3, 4, 5]


@pytest.mark.parametrize(("evaluations", "rounds"), [(0, 1), (1, 1), (14, 1), (27, 1), (28, 2), (100, 7)])
def test_fresh_episodes_are_half_as_many_as_the_regular_ones(evaluations: int, rounds: int) -> None:
    assert fresh_rounds(evaluations) == rounds  # of 5 candidates, and of the winner and the last model


def test_the_winner_has_the_highest_mean_over_regular_and_fresh_episodes() -> None:
    two = candidates((10, 8.0), (20, 6.0))
    assert (
        winner(two, [evaluation(10, 4.0, 5.0), evaluation(20, 6.0, 7.0)]).model.version == 20
    )  # 5.67 < 6.33
    assert winner(two, [evaluation(10, 5.0, 6.0), evaluation(20, 6.0, 7.0)]).model.version == 20  # equal
    assert winner(two, [evaluation(10, 5.0, 6.1), evaluation(20, 6.0, 7.0)]).model.version == 10
    assert winner(two, [evaluation(10, 1.0), evaluation(20, math.nan)]).model.version == 10


def test_the_least_mean_by_hand() -> None:
    # mean 4, standard deviation 2 of three episodes, t = 4.303 with 2 degrees of freedom
    assert least_mean(evaluation(0, 2.0, 4.0, 6.0)) == pytest.approx(
        4.0 - 4.3027 * 2.0 / math.sqrt(3), abs=1e-3
    )
    assert least_mean(evaluation(0, 3.0, 3.0)) == 3.0


def test_a_goal_above_the_mean_is_not_reached_by_luck() -> None:
    """Models of mean 0 and standard deviation 1, with twenty episodes. One test alone is passed by 1 in 200."""
    rng = np.random.default_rng(0)
    reached = [least_mean(evaluation(0, *rng.normal(size=20))) >= 0.1 for _ in range(15_000)]
    assert 20 <= sum(reached) <= 150
    assert sum(a and b for a, b in zip(reached[::2], reached[1::2], strict=True)) <= 2
