"""The rules that find the best model of a run, and tell whether it is good enough. They need no evaluator and no files.

Every model plays the run's regular episodes, whose seeds never change. The models with the highest scores there are
candidates. A score that decides is too high by its luck. So when the run ends the candidates play the same fresh
episodes, and the score of the winner comes from others, which decide nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from border_cli.core.metrics import t975
from border_cli.core.types import Evaluation, ModelInfo

CANDIDATES = 5
"""So many models are candidates for the best."""


@dataclass(frozen=True, eq=False)
class Candidate:
    """A model and its evaluation on the regular seeds."""

    model: ModelInfo
    regular: Evaluation


def with_candidate(candidates: Sequence[Candidate], new: Candidate) -> list[Candidate]:
    """The candidates after a new model, the highest regular score first. Among equals, the first comes first and the
    newest others stay.
    """
    if not math.isfinite(new.regular.mean):
        return list(candidates)
    kept = [one for one in candidates if one.model.version != new.model.version]
    kept = sorted([*kept, new], key=lambda one: (-one.regular.mean, one.model.version))
    if len(kept) > CANDIDATES:
        kept.remove(min(kept[1:], key=lambda one: (one.regular.mean, one.model.version)))
    return kept


def fresh_rounds(evaluations: int) -> int:
    """How many times the candidates play as many fresh episodes as a regular evaluation has.

    If the run had many regular evaluations, all fresh episodes together are half as many as the regular ones: those of
    each candidate, and those of the winner and of the last model for their scores.
    """
    return max(1, evaluations // (2 * (CANDIDATES + 2)))


def winner(candidates: Sequence[Candidate], fresh: Sequence[Evaluation]) -> Candidate:
    """The candidate with the highest mean return over its regular and its fresh episodes, the newest among equals."""

    def value(pair: tuple[Candidate, Evaluation]) -> tuple[float, int]:
        mean = joined([pair[0].regular, pair[1]]).mean
        return mean if math.isfinite(mean) else -math.inf, pair[0].model.version

    return max(zip(candidates, fresh, strict=True), key=value)[0]


def joined(parts: Sequence[Evaluation]) -> Evaluation:
    """Evaluations of one model as one."""
    returns = tuple(value for part in parts for value in part.returns)
    return Evaluation(parts[0].opt_steps, returns, tuple(n for part in parts for n in part.lengths))


def least_mean(evaluation: Evaluation) -> float:
    """The lower end of the 95% interval of Student's t around the mean return: mean - t·se. At least 2 episodes."""
    n = len(evaluation.returns)
    return evaluation.mean - t975(n - 1) * evaluation.std / math.sqrt(n - 1)
