"""One env step for some environments of an actor: act, step, make items, reset what ended.

Used as it is by an actor process and by the synchronous trainer.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

from border_cli.core.items import Items
from border_cli.core.protocols import Env, Policy, StepProcessor
from border_cli.core.state import State, count, joined, require, section

_MAX_EPISODES = 2**32 - 1
"""A number of an episode is a word of its seed."""
_logger = logging.getLogger(__name__)


class ResumableEnv(Env, Protocol):
    """Environments whose state can be kept in the middle of an episode."""

    def state(self) -> State:
        """All that is needed to bring them back to where they are."""

    def load_state(self, state: State) -> list[int]:
        """Bring them back; which of them could not be. Raises ValueError for a state that does not fit."""


class Sampler:
    """Joins an environment group, a policy and a step processor. `begin` comes first.

    seeds: first reset seed of each environment; later resets go on with the environment's own generator.
    phase: "reset" or "step", for whoever has to say where an exception came from.
    """

    def __init__(self, env: Env, policy: Policy, processor: StepProcessor, seeds: Sequence[int]) -> None:
        self._env = env
        self._policy = policy
        self._processor = processor
        self._seeds = seeds
        self.phase = "reset"

    def begin(self) -> None:
        """Start the first episode of every environment."""
        for env_ix, seed in enumerate(self._seeds):
            self._env.reset(env_ix, seed)

    def sample(self, env_ix: Sequence[int], env_steps: int) -> Items:
        """One env step in each of these environments; the rows it completes.

        env_steps: the global count that exploration schedules follow.
        """
        self.phase = "step"
        action = self._policy.sample(self._env.observe(env_ix), env_steps)
        step = self._env.step(env_ix, action)
        items = self._processor.process(step)
        self.phase = "reset"
        for k, i in enumerate(env_ix):
            if step.terminated[k] or step.truncated[k]:
                self._reset(i)
        return items

    def _reset(self, env_ix: int) -> None:
        self._env.reset(env_ix)


class ResumableSampler(Sampler):
    """A sampler whose state can be kept between any two env steps: every episode has a seed of its own.

    seed_of: (environment, number of its episode from 0) → seed. owner: who acts, for messages.
    exact: whether every environment came out of a saved state as it had been.
    """

    def __init__(
        self,
        env: ResumableEnv,
        policy: Policy,
        processor: StepProcessor,
        seed_of: Callable[[int, int], int],
        owner: str,
    ) -> None:
        super().__init__(env, policy, processor, [])
        self._resumable = env
        self._seed_of = seed_of
        self._owner = owner
        self._episodes = [0] * env.n_envs
        self._cut: list[Items] = []
        self.exact = True

    def begin(self, first_episode: int = 0) -> None:
        """Start an episode of this number in every environment."""
        self._episodes = [first_episode] * self._env.n_envs
        for env_ix in range(self._env.n_envs):
            self._env.reset(env_ix, self._seed_of(env_ix, first_episode))

    def begin_from(self, state: State) -> None:
        """Go on from a saved state. Raises ValueError for one that does not fit.

        Where an environment does not come out of it as it was, its episode is cut and a new one begins.
        """
        episodes = section(state, "episodes").values
        require(episodes, map(str, range(len(self._episodes))), "the sampler")
        self._episodes = [
            count(episodes[str(i)], "an episode's number", _MAX_EPISODES) for i in range(len(self._episodes))
        ]
        self._processor.load_state(section(state, "processor"))
        for env_ix in self._resumable.load_state(section(state, "env")):
            self.exact = False
            self._cut.append(self._processor.cut(env_ix))
            self._reset(env_ix)
            _logger.warning(
                "environment %d of %s cannot be resumed exactly: it is not determined by its seed and the actions; "
                "a new episode starts there",
                env_ix,
                self._owner,
            )

    def state(self) -> State:
        """Between two env steps: environments, what streams carry, numbers of episodes. The policy's is its own."""
        episodes = {str(i): n for i, n in enumerate(self._episodes)}
        return joined(
            {
                "env": self._resumable.state(),
                "processor": self._processor.state(),
                "episodes": State({}, episodes),
            }
        )

    def sample(self, env_ix: Sequence[int], env_steps: int) -> Items:
        """As of `Sampler`; rows of streams that were cut come first."""
        items = super().sample(env_ix, env_steps)
        if self._cut:
            parts, self._cut = [*self._cut, items], []
            items = {name: np.concatenate([part[name] for part in parts]) for name in items}
        return items

    def _reset(self, env_ix: int) -> None:
        self._episodes[env_ix] += 1
        self._env.reset(env_ix, self._seed_of(env_ix, self._episodes[env_ix]))
