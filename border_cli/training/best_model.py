"""The rules that find the best model of a run, and tell whether it is good enough. They need no evaluator and no files.

Every model plays the run's regular episodes, whose seeds never change. The models with the highest scores there are
candidates. A score that decides is too high by its luck. So when the run ends the candidates play the same fresh
episodes, the best two play more (sequential halving; Karnin et al., 2013), and the score of the winner comes from others,
which decide nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from border_cli.core.metrics import t975
from border_cli.core.types import Evaluation, ModelInfo

CANDIDATES = 5
"""So many models are candidates for the best."""
_FINALISTS = 2


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


class FreshRounds(NamedTuple):
    """How often as many fresh episodes as a regular evaluation has are played.

    candidates: by each candidate · finalists: by each of the best two, after these · scores: by the winner and by the last
    model, for their scores.
    """

    candidates: int
    finalists: int
    scores: int


def fresh_rounds(evaluations: int) -> FreshRounds:
    """The rounds at the end of a run with so many regular evaluations.

    If they were many, all fresh episodes together are half as many as the regular ones, a third of them for each purpose.
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
    known = [(one, one.regular) for one in candidates]
    for rounds in (range(first), range(first, first + more)):
        if rounds and len(known) > 1:
            known = [(one, joined([before, play(one.model, rounds)])) for one, before in known]
            known = sorted(known, key=_value, reverse=True)[:_FINALISTS]
    return known[0][0]


def _value(known: tuple[Candidate, Evaluation]) -> tuple[float, int]:
    one, evaluation = known
    return evaluation.mean if math.isfinite(evaluation.mean) else -math.inf, one.model.version


def joined(parts: Sequence[Evaluation]) -> Evaluation:
    """Evaluations of one model as one."""
    returns = tuple(value for part in parts for value in part.returns)
    return Evaluation(parts[0].opt_steps, returns, tuple(n for part in parts for n in part.lengths))


def least_mean(evaluation: Evaluation) -> float:
    """The lower end of the 95% interval of Student's t around the mean return: mean - t·se. At least 2 episodes."""
    n = len(evaluation.returns)
    return evaluation.mean - t975(n - 1) * evaluation.std / math.sqrt(n - 1)
