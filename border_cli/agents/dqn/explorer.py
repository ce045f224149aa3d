"""From action values to actions that explore: ε-greedy over global env steps, softmax, or greedy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from border_cli.agents.dqn.config import DqnConfig
from border_cli.core.spaces import Array

Explorer = Callable[[Array, int, np.random.Generator], Array]
"""Values (B, n), -inf for an action that is not allowed; global env steps; where chance comes from → actions (B,)."""


@dataclass(frozen=True)
class EpsilonSchedule:
    """Linear from start at env step 0 to final at `env_steps`; then raised to `power`."""

    start: float
    final: float
    env_steps: int
    power: float = 1.0

    def __call__(self, env_steps: int) -> float:
        """ε at this count of env steps."""
        share = min(env_steps / self.env_steps, 1.0)
        return float((self.start + share * (self.final - self.start)) ** self.power)


@dataclass(frozen=True)
class EpsilonGreedy:
    """The best action, but with probability ε any."""

    epsilon: EpsilonSchedule

    def __call__(self, values: Array, env_steps: int, rng: np.random.Generator) -> Array:
        """Actions (B,)."""
        return explore(values, self.epsilon(env_steps), rng)


@dataclass(frozen=True)
class Softmax:
    """Actions drawn with probabilities proportional to exp(value/temperature)."""

    temperature: float

    def __call__(self, values: Array, env_steps: int, rng: np.random.Generator) -> Array:
        """Actions (B,). The greatest of values with Gumbel noise is such a draw, and never overflows."""
        del env_steps
        noisy = values.astype(np.float64) / self.temperature + rng.gumbel(size=values.shape)
        return greedy(noisy, 0, rng)


def greedy(values: Array, env_steps: int, rng: np.random.Generator) -> Array:
    """The best action each, (B,)."""
    del env_steps, rng
    best: Array = values.argmax(1)
    return best


def make_explorer(config: DqnConfig, actor: int, n_actors: int) -> Explorer:
    """The explorer of one actor."""
    if config.exploration == "epsilon":
        return EpsilonGreedy(schedule(config, actor, n_actors))
    return Softmax(config.temperature) if config.exploration == "softmax" else greedy


def ladder_power(alpha: float | None, actor: int, n_actors: int) -> float:
    """Exponent 1 + α·i/(n-1) of actor i (Horgan et al., 2018); 1 for a single actor or without a ladder."""
    if alpha is None or n_actors == 1:
        return 1.0
    return 1.0 + alpha * actor / (n_actors - 1)


def schedule(config: DqnConfig, actor: int, n_actors: int) -> EpsilonSchedule:
    """The schedule of one actor."""
    power = ladder_power(config.epsilon_ladder, actor, n_actors)
    return EpsilonSchedule(config.epsilon_start, config.epsilon_final, config.epsilon_env_steps, power)


def explore(values: Array, epsilon: float, rng: np.random.Generator) -> Array:
    """The best action of each row (B, n), or with probability ε any. Draws nothing when ε is 0."""
    best: Array = values.argmax(1)
    if epsilon == 0.0:
        return best
    random = rng.random(len(best)) < epsilon
    if random.any():  # else, most often: drawing actions costs a third of what the network does
        best[random] = _any_allowed(values[random], rng)
    return best


def _any_allowed(values: Array, rng: np.random.Generator) -> Array:
    """One of the actions of each row whose value is not -inf, each as likely; of all where none is allowed."""
    n, forbidden = values.shape[1], np.isneginf(values)
    if not forbidden.any():
        return rng.integers(0, n, len(values))
    allowed = np.where(forbidden.all(1, keepdims=True), True, ~forbidden)
    drawn = rng.integers(0, allowed.sum(1))
    chosen: Array = (allowed.cumsum(1) > drawn[:, None]).argmax(1)
    return chosen
