"""Which models are candidates for the best, which of them wins, and when a mean return is surely reached."""

from __future__ import annotations

import math

import pytest

from border_cli.core.types import Evaluation, ModelInfo
from border_cli.training.choose_best import CANDIDATES, Candidate, choose, least_mean, with_candidate


def evaluation(opt_steps: int, *returns: float) -> Evaluation:
    return Evaluation(opt_steps, returns, (1,) * len(returns))


def candidates(*scores: tuple[int, float]) -> list[Candidate]:
    """The candidates after models with these opt steps and regular scores."""
    kept: list[Candidate] = []
    for opt_steps, score in scores:
        kept = with_candidate(kept, Candidate(ModelInfo(opt_steps, {}), evaluation(opt_steps, score)))
    return kept


def steps(*scores: tuple[int, float]) -> list[int]:
    return [candidate.model.version for candidate in candidates(*scores)]


def test_the_highest_regular_scores_are_candidates() -> None:
    rising = [(n, float(n)) for n in range(1, 9)]
    assert steps(*rising) == steps(*rising[::-1]) == [8, 7, 6, 5, 4]
    assert len(rising) > CANDIDATES
    assert steps((1, 5.0), (2, math.nan), (3, -math.inf), (4, 2.0), (5, math.inf)) == [1, 4]
    assert steps((1, 5.0), (2, 6.0), (1, 7.0)) == [1, 2], "evaluated again after a resume"


def test_among_equal_scores_the_first_and_the_newest_stay() -> None:
    assert steps(*((n, 500.0) for n in range(1, 10))) == [1, 6, 7, 8, 9]
    assert steps((0, 1.0), *((n, 500.0) for n in range(1, 6))) == [1, 2, 3, 4, 5]


def played(
    kept: list[Candidate], evaluations: int, returns: dict[int, list[float]]
) -> tuple[int, list[tuple[int, int]]]:
    """The chosen opt steps, and who played how many rounds of one episode, with these returns by opt steps."""
    calls = list[tuple[int, int]]()

    def play(model: ModelInfo, rounds: range) -> Evaluation:
        calls.append((model.version, len(rounds)))
        return evaluation(model.version, *(returns[model.version][n] for n in rounds))

    return choose(kept, evaluations, play).model.version, calls


def test_all_candidates_play_and_then_the_best_two_by_all_their_episodes() -> None:
    three = candidates((10, 8.0), (20, 6.0), (30, 1.0))
    # one round of all, one of the best two: means 6, 6.5, 0.5, then 14/3 and 16/3
    returns = {10: [4.0, 2.0], 20: [7.0, 3.0], 30: [0.0, 0.0]}
    assert played(three, 12, returns) == (20, [(10, 1), (20, 1), (30, 1), (20, 1), (10, 1)])
    assert played(three, 12, returns | {10: [4.0, 4.0]})[0] == 20, "the newest of two with a mean of 16/3"
    assert played(three, 12, returns | {10: [4.0, 4.1]})[0] == 10
    assert played(three, 12, returns | {20: [math.nan]})[0] == 10


def test_two_candidates_of_a_short_run_play_once_and_one_does_not() -> None:
    two = candidates((10, 8.0), (20, 6.0))
    assert played(two, 11, {10: [2.0], 20: [5.0]}) == (20, [(10, 1), (20, 1)])  # 5, 5.5
    assert played(two[:1], 12, {}) == (10, [])


def test_the_least_mean_by_hand() -> None:
    # mean 4, standard deviation 2 of three episodes, t = 4.303 with 2 degrees of freedom
    assert least_mean(evaluation(0, 2.0, 4.0, 6.0)) == pytest.approx(
        4.0 - 4.3027 * 2.0 / math.sqrt(3), abs=1e-3
    )
    assert least_mean(evaluation(0, 3.0, 3.0)) == 3.0
