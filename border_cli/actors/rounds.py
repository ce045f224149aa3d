"""Lockstep: who takes how many env steps in which round, and with which model (contract C8).

In round r every actor takes `steps` env steps in each of its environments with the model as it stood after the opt steps
of round r - 2, while the learner inserts what round r - 1 has brought. Models are told apart by the number of their
publication: 1 is the one that the run begins with, r + 1 the one after the opt steps of round r.
"""

from __future__ import annotations

from dataclasses import dataclass

LOCKSTEP_SLOTS = 3
"""Of the model channel: the learner may publish twice before an actor takes the model of the round that it may begin."""


def model_number(round_: int) -> int:
    """Number of the publication that actors act with in this round."""
    return max(round_ - 1, 1)


@dataclass(frozen=True)
class Rounds:
    """steps: of each environment per round · max_env_steps: budget of the run, None without; the last round that it
    allows is shorter · first: the first round that is counted so, which begins after `first_env_steps`. Those before it
    had another budget, in a run that was resumed.
    """

    n_actors: int
    envs_per_actor: int
    steps: int
    max_env_steps: int | None = None
    first: int = 0
    first_env_steps: int = 0

    @property
    def size(self) -> int:
        """Env steps of a whole round."""
        return self.n_actors * self.envs_per_actor * self.steps

    def before(self, round_: int) -> int:
        """Env steps of all rounds before this one, which is not before `first`: those that exploration counts from."""
        return self._limited(self.first_env_steps + (round_ - self.first) * self.size)

    def env_steps(self, round_: int, actor: int) -> list[int]:
        """Env steps of each environment of an actor in a round."""
        total = self.before(round_ + 1) - self.before(round_)
        streams = self.n_actors * self.envs_per_actor
        each, rest = divmod(total, streams)
        first = actor * self.envs_per_actor
        return [each + (first + env < rest) for env in range(self.envs_per_actor)]

    def _limited(self, env_steps: int) -> int:
        return env_steps if self.max_env_steps is None else min(env_steps, self.max_env_steps)
