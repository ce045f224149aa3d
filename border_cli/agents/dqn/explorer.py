"""ε-greedy exploration over global env steps, with an optional constant ladder over actors."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from border_cli.agents.dqn.config import DqnConfig
from border_cli.core.spaces import Array


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


def ladder_power(alpha: float | None, actor: int, n_actors: int) -> float:
    """Exponent 1 + α·i/(n-1) of actor i (Horgan et al., 2018); 1 for a single actor or without a ladder."""
    if alpha is None or n_actors == 1:
        return 1.0
    return 1.0 + alpha * actor / (n_actors - 1)


def schedule(config: DqnConfig, actor: int, n_actors: int) -> EpsilonSchedule:
    """The schedule of one actor."""
    power = ladder_power(config.epsilon_ladder, actor, n_actors)
    return EpsilonSchedule(config.epsilon_start, config.epsilon_final, config.epsilon_env_steps, power)


def explore(greedy: Array, epsilon: float, n_actions: int, rng: np.random.Generator) -> Array:
    """Replace each action (B,) by a uniform one with probability ε. Draws nothing when ε is 0."""
    if epsilon == 0.0:
        return greedy
    random = rng.random(len(greedy)) < epsilon
    return np.where(random, rng.integers(0, n_actions, len(greedy)), greedy)
