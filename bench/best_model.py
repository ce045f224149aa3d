"""Simulation of the rule that chooses the best model, with policies of known value.

100 policies arrive one after the other. The return of a policy on a seed is its mean, plus what the seed makes easier or
harder for every policy, plus noise of its own, less a loss where it fails. Every policy is evaluated on the same 20
regular seeds; a rule then chooses the best from these and from fresh episodes. Regret is the true mean of the best policy
seen minus the true mean of the chosen one; bias is the published score minus the true mean of the chosen one, in standard
deviations of its episodes.

    python -m bench.best_model [--repetitions 200]
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bench.report import markdown, number
from border_cli.core.types import Evaluation, ModelInfo
from border_cli.training.choose_best import Candidate, choose, fresh_rounds, with_candidate

POLICIES = 100
EPISODES = 20
"""Of a regular evaluation, and of a round of fresh episodes."""
_EPISODES_OF_TRUTH = 4_000

Floats = NDArray[np.float64]


class Policies:
    """Policies in the order of their arrival.

    values: (POLICIES,) true mean returns.
    """

    def __init__(
        self,
        rng: np.random.Generator,
        mean: Floats,
        seed_std: float,
        own_std: Floats | float,
        failure: Floats | float = 0.0,
        loss: float = 0.0,
        most: float = np.inf,
    ) -> None:
        """Describe the returns of all policies.

        Args:
            rng: draws seeds and episodes.
            mean: (POLICIES,) mean return of an episode that does not fail.
            seed_std: standard deviation of what a seed adds for every policy.
            own_std: standard deviation of a policy's own noise.
            failure: probability that a policy fails in an episode.
            loss: what a failure costs.
            most: no return is larger.
        """
        self._rng = rng
        self._mean = mean
        self._seed_std = seed_std
        self._own_std = np.broadcast_to(own_std, mean.shape)
        self._failure = np.broadcast_to(failure, mean.shape)
        self._loss = loss
        self._most = most
        self._regular = self.seeds(EPISODES)
        if np.isfinite(most):
            seeds = self.seeds(_EPISODES_OF_TRUTH)
            self.values = np.array([self.play(i, seeds).mean() for i in range(len(mean))])
        else:
            self.values = mean - self._failure * loss

    def seeds(self, n: int) -> Floats:
        """Fresh seeds, each by what it adds to every return."""
        return self._rng.normal(0.0, self._seed_std, n)

    def play(self, policy: int, seeds: Floats) -> Floats:
        """Return of one policy, an episode per seed."""
        n = len(seeds)
        failed = self._rng.random(n) < self._failure[policy]
        noise = self._rng.normal(0.0, self._own_std[policy], n)
        returns: Floats = self._mean[policy] + seeds + noise - self._loss * failed
        return np.minimum(returns, self._most, out=returns)

    def play_regular(self, policy: int) -> Floats:
        """Return of one policy on the regular seeds."""
        return self.play(policy, self._regular)


@dataclass(frozen=True)
class Choice:
    """What a rule chose: the policy, its published score, and the fresh episodes that were needed."""

    policy: int
    score: float
    episodes: int


def candidates_rule(policies: Policies) -> Choice:
    """The rule of `border_cli.training.choose_best`."""
    candidates: list[Candidate] = []
    for policy in range(POLICIES):
        regular = _evaluation(policy, policies.play_regular(policy))
        candidates = with_candidate(candidates, Candidate(ModelInfo(policy, {}), regular))
    first, more, scoring = fresh_rounds(POLICIES)
    seeds = policies.seeds(EPISODES * (first + more)).reshape(-1, EPISODES)
    fresh = 0

    def play(model: ModelInfo, rounds: range) -> Evaluation:
        nonlocal fresh
        returns = policies.play(model.version, seeds[rounds].ravel())
        fresh += len(returns)
        return _evaluation(model.version, returns)

    best = choose(candidates, POLICIES, play).model.version
    score = policies.play(best, policies.seeds(EPISODES * scoring)).mean()
    return Choice(best, float(score), fresh + 2 * EPISODES * scoring)


def regular_rule(policies: Policies) -> Choice:
    """The highest regular score, which is published."""
    scores = [float(policies.play_regular(policy).mean()) for policy in range(POLICIES)]
    best = int(np.argmax(scores))
    return Choice(best, scores[best], 0)


def _evaluation(policy: int, returns: Floats) -> Evaluation:
    return Evaluation(policy, tuple(returns.tolist()), (1,) * len(returns))


# -- scenarios ----------------------------------------------------------------

_T: Floats = np.arange(POLICIES, dtype=np.float64)


def rising(rng: np.random.Generator) -> Policies:
    """A learning curve up to 100 that flattens, policies differ by 5."""
    return Policies(rng, 100 * (1 - np.exp(-_T / 30)) + rng.normal(0, 5, POLICIES), 15, 10)


def taxi(rng: np.random.Generator) -> Policies:
    """An early mediocre policy (-5.9 ± 52) among worse ones, then mostly good ones (7.8 ± 2.6)."""
    failure = np.clip(1 - _T / 10, 0.2, 1.0)
    failure[10:60] = rng.uniform(0.03, 0.35, 50)
    failure[60:] = np.where(rng.random(40) < 0.8, 0.0, rng.uniform(0.01, 0.2, 40))
    failure[11] = 0.066
    return Policies(rng, 7.8 + rng.normal(0, 0.1, POLICIES), 2.6, 0.3, failure, 208)


def taxi_mixed(rng: np.random.Generator) -> Policies:
    """Like Taxi, but from the fortieth on each policy is either good or failing, at random."""
    failure = np.clip(1 - _T / 15, 0.066, 1.0) * np.exp(rng.normal(0, 0.4, POLICIES))
    failure[40:] = np.where(rng.random(60) < 0.5, 0.0, failure[40:])
    return Policies(rng, 7.8 + rng.normal(0, 0.1, POLICIES), 2.6, 0.3, np.clip(failure, 0, 1), 208)


def plateau(rng: np.random.Generator) -> Policies:
    """Policies that are nearly equal (they differ by 2), with returns that vary by 14."""
    return Policies(rng, rng.normal(0, 2, POLICIES), 10, 10)


def collapse(rng: np.random.Generator) -> Policies:
    """A rise to 100 over the first half, a fall to 25 over the second."""
    curve = np.where(_T < 50, 2 * _T, 100 - 1.5 * (_T - 50))
    return Policies(rng, curve + rng.normal(0, 6, POLICIES), 15, 15)


def pendulum(rng: np.random.Generator) -> Policies:
    """A fast rise to -150 ± 8, where the start decides the return (± 80), not the policy."""
    curve = -150 - 1100 * np.exp(-_T / 5) + rng.normal(0, 8, POLICIES)
    return Policies(rng, curve, 80, 10 + 300 * np.exp(-_T / 6))


def cartpole(rng: np.random.Generator) -> Policies:
    """Return of at most 500, which many policies reach in every episode."""
    curve = np.where(_T < 15, 20 + 30 * _T, 500) + rng.normal(0, 120, POLICIES)
    return Policies(rng, curve, 20, 40, most=500)


def noisy(rng: np.random.Generator) -> Policies:
    """A learning curve up to 1,000 whose policies differ by 100, their episodes by 300, whatever the seed."""
    return Policies(rng, 1000 * (1 - np.exp(-_T / 25)) + rng.normal(0, 100, POLICIES), 30, 300)


SCENARIOS: tuple[Callable[[np.random.Generator], Policies], ...] = (
    rising,
    taxi,
    taxi_mixed,
    plateau,
    collapse,
    pendulum,
    cartpole,
    noisy,
)
RULES: dict[str, Callable[[Policies], Choice]] = {
    "regular score": regular_rule,
    "candidates (now)": candidates_rule,
}

# -- the table ----------------------------------------------------------------


@dataclass(frozen=True)
class Result:
    """A rule in a scenario, one value per repetition each."""

    regret: Floats
    bias: Floats
    episodes: Floats


def simulate(
    rule: Callable[[Policies], Choice], scenario: Callable[[np.random.Generator], Policies], repetitions: int
) -> Result:
    """Repeat a scenario with one rule. Repetition i has the same policies and regular seeds with every rule."""
    rows = []
    for i in range(repetitions):
        policies = scenario(np.random.default_rng(i))
        choice = rule(policies)
        value = policies.values[choice.policy]
        std = policies.play(choice.policy, policies.seeds(_EPISODES_OF_TRUTH)).std()
        bias = (choice.score - value) / std if std else choice.score - value
        rows.append((policies.values.max() - value, bias, choice.episodes))
    return Result(*np.array(rows, np.float64).T)


def main(args: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description="Regret of the choice of the best model.")
    parser.add_argument("--repetitions", type=int, default=200)
    repetitions = parser.parse_args(args).repetitions
    rows = []
    for scenario in SCENARIOS:
        for name, rule in RULES.items():
            result = simulate(rule, scenario, repetitions)
            error = result.regret.std(ddof=1) / np.sqrt(repetitions)
            rows.append(
                [
                    scenario.__name__.replace("_", " "),
                    name,
                    f"{result.regret.mean():.2f} ± {error:.2f}",
                    f"{result.bias.mean():+.3f} ± {result.bias.std(ddof=1) / np.sqrt(repetitions):.3f}",
                    number(float(result.episodes.mean())),
                ]
            )
    print(markdown(["scenario", "rule", "regret", "bias of the score", "fresh episodes"], rows))


if __name__ == "__main__":
    main()
