"""The rule that decides which model of a run is the best. It needs neither an evaluator nor files.

Every model is evaluated on the run's regular seeds, which never change. A model that is not clearly worse than the best
there becomes a candidate: candidate and best then play the same fresh episodes, and the one with the larger estimated
mean return is the best from then on. All fresh episodes of the best are kept. So its score becomes more exact with each
comparison, and a model that was the best by luck is replaced.

A comparison changes nothing before `finish`, so an interrupted one is simply repeated.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from border_cli.core.metrics import t975
from border_cli.core.state import State, check_like
from border_cli.core.types import Evaluation

MAX_ROUNDS = 2
"""Most rounds of a comparison. In each round each of the two models plays `fresh_episodes` episodes."""
FRESH_SHARE = 0.5
"""Limit of the fresh episodes for doubtful cases, as a share of the run's regular evaluation episodes.

A model with the larger estimated mean always plays one round. A second round, and a round of a model that is about equal
to the best but not better, take place only while the run has played fewer fresh episodes than that.
"""


@dataclass(frozen=True)
class Evidence:
    """What is known of the best model.

    regular: its evaluation on the regular seeds · fresh: all its fresh episodes, in the order in which it played them;
    None if there are none.
    """

    regular: Evaluation
    fresh: Evaluation | None = None

    @property
    def score(self) -> Evaluation:
        """The evaluation to publish: the fresh episodes if there are any, else the regular ones."""
        return self.fresh or self.regular


@dataclass(frozen=True)
class Job:
    """An evaluation that a comparison needs.

    opt_steps: opt step of the model to evaluate · episodes: indices of the fresh episodes; both models of a comparison use
    the same seed for the same index · of_best: whether this is the best model, not the new one.
    """

    opt_steps: int
    episodes: range
    of_best: bool


@dataclass(frozen=True)
class Difference:
    """Estimated mean return of one model minus that of another, with its 95% interval `mean` ± `half_width`."""

    mean: float
    half_width: float

    @property
    def is_clear(self) -> bool:
        """Whether zero lies outside the interval, or returns do not vary, so that more episodes would show nothing new."""
        return abs(self.mean) > self.half_width or self.half_width == 0.0


def difference(candidate: Sequence[float], best: Sequence[float], earlier: Sequence[float]) -> Difference:
    """Estimate how much better a candidate is than the best, from paired and unpaired returns.

    With m pairs (c, b) on common seeds and K earlier returns of the best, for any weight w

        mean(c) - w * mean(b) - (1 - w) * mean(earlier)

    estimates the difference without bias. w = 1 uses the pairs alone, which is best if the seed determines most of the
    return. w = m / (m + K) pools all returns of the best, which is best if seeds explain nothing. The variance

        var(c - w * b) / m + (1 - w)^2 * var(best) / K

    is smallest at w = (slope / m + 1 / K) / (1 / m + 1 / K), where slope = cov(c, b) / var(b), limited to [0, 1].

    Args:
        candidate: returns of the candidate, m >= 1.
        best: returns of the best on the same m seeds.
        earlier: K >= 0 returns of the best on other seeds.

    Returns:
        The estimate with the 95% interval of Student's t; the interval is infinite for a single pair.
    """
    # Without the offset, equal returns can differ by rounding.
    c, b, old = (np.asarray(values, np.float64) - best[0] for values in (candidate, best, earlier))
    m, k = len(c), len(old)
    if m < 2:
        return Difference(float(np.mean(c - b)), math.inf)
    if k == 0:
        weight, variance_of_earlier = 1.0, 0.0
    else:
        variance = float(np.var(b, ddof=1))
        slope = float(np.cov(c, b)[0, 1]) / variance if variance > 0.0 else 0.0
        weight = (min(max(slope, 0.0), 1.0) / m + 1.0 / k) / (1.0 / m + 1.0 / k)
        variance_of_earlier = float(np.var(np.concatenate([b, old]), ddof=1)) / k
    paired = c - weight * b
    mean = float(np.mean(paired)) - ((1.0 - weight) * float(np.mean(old)) if k else 0.0)
    squared_error = float(np.var(paired, ddof=1)) / m + (1.0 - weight) ** 2 * variance_of_earlier
    return Difference(mean, t975(m - 1) * math.sqrt(squared_error))


class Comparison:
    """A new model compared with the best, evaluation by evaluation. Made by `BestSelector.compare`.

    If there is no best model, the new one plays one round alone. Without fresh episodes the regular means decide.

    Args:
        regular: evaluation of the new model on the regular seeds.
        per_round: fresh episodes of each model in a round; 0: the regular means decide.
        affordable: fresh episodes that may be spent on doubtful cases.
        required: the new model plays a round of fresh episodes even if it is clearly worse than the best.

    Attributes:
        fresh: evaluation of the new model on fresh episodes so far; None if it is not a candidate.
        best: the best model with its episodes of this comparison added; None if there was none.
        fresh_episodes: episodes of both models in this comparison so far.
    """

    def __init__(
        self, regular: Evaluation, best: Evidence | None, per_round: int, affordable: float, required: bool
    ) -> None:
        self.regular = regular
        self.fresh: Evaluation | None = None
        self.best = best
        self.fresh_episodes = 0
        self._per_round = per_round
        self._affordable = affordable
        self._earlier = () if best is None else _returns(best.fresh)
        # After a resume the best may come from this opt step too, where it has played the first of these episodes already.
        is_again = best is not None and best.regular.opt_steps == regular.opt_steps
        self._begin = len(self._earlier) if is_again else 0
        self._jobs: list[Job] = []
        self._rounds = 0
        if not per_round or not math.isfinite(regular.mean):
            return
        is_candidate = required or best is None
        if best is not None:
            found = self._difference(best)
            is_candidate |= found.mean > 0.0 or (affordable > 0 and found.mean >= -found.half_width)
        if is_candidate:
            self._add_round()

    @property
    def next_job(self) -> Job | None:
        """The next evaluation that is needed; None when the comparison is over."""
        return self._jobs[0] if self._jobs else None

    @property
    def replaces(self) -> bool:
        """Whether the new model is better than the best, which stays the best if both are equal."""
        shown = self.fresh if self._per_round else self.regular
        if shown is None or not math.isfinite(shown.mean):
            return False
        if self.best is None or not math.isfinite(self.best.score.mean):
            return True
        return self._difference(self.best).mean > 0.0

    def add(self, evaluation: Evaluation) -> None:
        job, best = self._jobs.pop(0), self.best
        self.fresh_episodes += len(evaluation.returns)
        if not job.of_best:
            self.fresh = _joined(self.fresh, evaluation)
        elif best is not None:
            self.best = best = Evidence(best.regular, _joined(best.fresh, evaluation))
        if not math.isfinite(evaluation.mean):
            self._jobs.clear()  # this model has lost
        elif not self._jobs and best is not None:
            may_add = self._rounds < MAX_ROUNDS and self.fresh_episodes < self._affordable
            if may_add and not self._difference(best).is_clear:
                self._add_round()

    def _add_round(self) -> None:
        begin = self._begin + self._rounds * self._per_round
        episodes = range(begin, begin + self._per_round)
        self._jobs.append(Job(self.regular.opt_steps, episodes, of_best=False))
        if self.best is not None:
            self._jobs.append(Job(self.best.regular.opt_steps, episodes, of_best=True))
        self._rounds += 1

    def _difference(self, best: Evidence) -> Difference:
        """From the regular episodes of both, the fresh ones of this comparison, and the earlier ones of the best."""
        # A resumed run may have another number of regular episodes: those in common are the first ones.
        pairs = list(zip(self.regular.returns, best.regular.returns, strict=False))
        if self._per_round:
            pairs += zip(_returns(self.fresh), _returns(best.fresh)[len(self._earlier) :], strict=True)
        earlier = self._earlier if self._per_round else ()
        return difference([c for c, _ in pairs], [b for _, b in pairs], earlier)


class BestSelector:
    """Chooses the best model of a run from evaluations.

    Args:
        fresh_episodes: episodes of each model in a round of a comparison; 0: regular evaluations decide.
        goal: a mean return that the run is to reach; a model that reaches it on the regular seeds is always a candidate.

    Attributes:
        regular_episodes: episodes of all regular evaluations so far.
        fresh_episodes: episodes of all comparisons so far.
    """

    def __init__(self, fresh_episodes: int, goal: float | None = None) -> None:
        self._per_round = fresh_episodes
        self._goal = goal
        self.best: Evidence | None = None
        self.regular_episodes = 0
        self.fresh_episodes = 0

    @property
    def goal_reached(self) -> bool:
        return self._goal is not None and self.best is not None and self.best.score.mean >= self._goal

    def compare(self, regular: Evaluation) -> Comparison:
        """Start to compare a new model, given its evaluation on the regular seeds, with the best."""
        best = self.best if self.best is not None and math.isfinite(self.best.score.mean) else None
        affordable = FRESH_SHARE * (self.regular_episodes + len(regular.returns)) - self.fresh_episodes
        required = self._goal is not None and regular.mean >= self._goal
        return Comparison(regular, best, self._per_round, affordable, required)

    def finish(self, comparison: Comparison) -> bool:
        """Apply the result of a comparison that is over. Returns whether the new model is the best now."""
        if comparison.replaces:
            self.best = Evidence(comparison.regular, comparison.fresh)
        else:
            self.best = comparison.best or self.best
        self.regular_episodes += len(comparison.regular.returns)
        self.fresh_episodes += comparison.fresh_episodes
        return comparison.replaces

    def state(self) -> dict[str, Any]:
        best = self.best
        return {
            "regular": best and best.regular.to_json(),
            "fresh": best and best.fresh and best.fresh.to_json(),
            "regular_episodes": self.regular_episodes,
            "fresh_episodes": self.fresh_episodes,
        }

    def load_state(self, state: dict[str, Any]) -> None:
        check_like(State({}, state), State({}, BestSelector(0).state()), "the best model")
        regular, fresh = (
            None if state[key] is None else Evaluation.from_json(state[key]) for key in ("regular", "fresh")
        )
        if fresh is not None and (regular is None or regular.opt_steps != fresh.opt_steps):
            raise ValueError("the regular and the fresh episodes of the best model are not of one opt step")
        self.regular_episodes, self.fresh_episodes = state["regular_episodes"], state["fresh_episodes"]
        self.best = None if regular is None else Evidence(regular, fresh)


def _joined(first: Evaluation | None, second: Evaluation) -> Evaluation:
    if first is None:
        return second
    return Evaluation(second.opt_steps, first.returns + second.returns, first.lengths + second.lengths)


def _returns(evaluation: Evaluation | None) -> tuple[float, ...]:
    return () if evaluation is None else evaluation.returns
