"""The rules that find the best model of a run, and tell whether it is good enough. They need no evaluator and no files.

Every model plays the run's regular episodes, whose seeds never change. The models with the highest scores are
candidates. The highest of several noisy scores is too high on average. So when the run ends, the candidates play the
same fresh episodes, the best two play more (sequential halving; Karnin et al., 2013), and the score of the winner comes
from other episodes, which decide nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from border_cli.core.metrics import t975
from border_cli.core.types import Evaluation, ModelInfo
from border_cli.runtime import seeding

CANDIDATES = 5
"""Number of candidates for the best model."""
_FINALISTS = 2


class EvalSeeds:
    """Seeds of the evaluation episodes of a run.

    Attributes:
        regular: the same for every model.
    """

    def __init__(self, seed: int, episodes: int) -> None:
        self._seed = seed
        self.regular = [seeding.integer(seed, seeding.EVALUATION, i) for i in range(episodes)]

    def fresh(self, opt_steps: int, number: int) -> list[int]:
        """Seeds of as many fresh episodes as there are regular ones: other seeds for each opt step and each number."""
        n = len(self.regular)
        episodes = range(number * n, (number + 1) * n)
        return [seeding.integer(self._seed, seeding.CONFIRMATION, opt_steps, i) for i in episodes]


@dataclass(frozen=True, eq=False)
class Candidate:
    """A model and its evaluation on the regular seeds."""

    model: ModelInfo
    regular: Evaluation


def with_candidate(candidates: Sequence[Candidate], new: Candidate) -> list[Candidate]:
    """The candidates with a new model, the highest regular score first. Among equal scores the oldest model comes
    first, and of the others the newest stay.
    """
    if not math.isfinite(new.regular.mean):
        return list(candidates)
    kept = [c for c in candidates if c.model.version != new.model.version]
    kept = sorted([*kept, new], key=lambda c: (-c.regular.mean, c.model.version))
    if len(kept) > CANDIDATES:
        kept.remove(min(kept[1:], key=lambda c: (c.regular.mean, c.model.version)))
    return kept


class FreshRounds(NamedTuple):
    """Numbers of rounds of fresh episodes. A round has as many episodes as a regular evaluation.

    candidates: for each candidate · finalists: more rounds for each of the best two · scores: for the winner and for
    the last model.
    """

    candidates: int
    finalists: int
    scores: int


def fresh_rounds(evaluations: int) -> FreshRounds:
    """The rounds at the end of a run with this number of regular evaluations.

    After many evaluations, there are half as many fresh episodes as regular ones, a third of them for each purpose.
    """
    third = evaluations // 6
    return FreshRounds(max(1, third // CANDIDATES), third // _FINALISTS, max(1, third // 2))


def choose(
    candidates: Sequence[Candidate], evaluations: int, play: Callable[[ModelInfo, range], Evaluation]
) -> Candidate:
    """The best candidate: all play the same fresh episodes, the best two play more, and the highest mean return wins.

    The mean is over all episodes of a model, the regular ones too; among equals, the newest wins.

    evaluations: regular ones of the run so far · play: evaluates a model in these rounds of fresh episodes.
    """
    first, more, _ = fresh_rounds(evaluations)
    scores = {c.model.version: c.regular for c in candidates}

    def value(candidate: Candidate) -> tuple[float, int]:
        mean = scores[candidate.model.version].mean
        return mean if math.isfinite(mean) else -math.inf, candidate.model.version

    best = list(candidates)
    for rounds in (range(first), range(first, first + more)):
        if rounds and len(best) > 1:
            for c in best:
                scores[c.model.version] = joined([scores[c.model.version], play(c.model, rounds)])
            best = sorted(best, key=value, reverse=True)[:_FINALISTS]
    return best[0]


def joined(parts: Sequence[Evaluation]) -> Evaluation:
    """Join the evaluations of one model."""
    returns = tuple(value for part in parts for value in part.returns)
    return Evaluation(parts[0].opt_steps, returns, tuple(n for part in parts for n in part.lengths))


def least_mean(evaluation: Evaluation) -> float:
    """The lower end of the 95% interval of Student's t around the mean return: mean - t·se. At least 2 episodes."""
    n = len(evaluation.returns)
    return evaluation.mean - t975(n - 1) * evaluation.std / math.sqrt(n - 1)
