"""One env step for some environments of an actor: act, step, make items, reset what ended, mend what raised.

Used as it is by an actor process and by the synchronous trainer.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from border_cli.core.items import Items
from border_cli.core.protocols import Env, Estimates, Policy, Step, StepError, StepProcessor
from border_cli.core.spaces import Array
from border_cli.core.state import State, count, joined, listed, require, section

_MAX_EPISODES = 2**32 - 1
"""A number of an episode is a word of its seed."""
_logger = logging.getLogger(__name__)


class ResumableEnv(Env, Protocol):
    """Environments whose state can be kept in the middle of an episode."""

    def state(self) -> State:
        """All that is needed to bring them back to where they are."""

    def load_state(self, state: State) -> list[int]:
        """Bring them back; which of them could not be. Raises ValueError for a state that does not fit."""


@dataclass(frozen=True)
class EnvFault:
    """An environment raised `error` while it did `phase`, "step" or "reset".

    env: which one. episode, step: how many it had begun before this one, and how many env steps this one had.
    action: as stored, None in a reset.
    """

    error: BaseException
    phase: str
    env: int
    episode: int
    step: int
    action: Array | None


class Mender(Protocol):
    """Decides what becomes of an environment that raised."""

    def mend(self, fault: EnvFault) -> int:
        """Make the environment anew; the seed of its first reset. Raises when that should end the actor instead."""


class Sampler:
    """Joins an environment group, a policy and a step processor. `begin` comes first.

    seeds: first reset seed of each environment; later resets go on with the environment's own generator.
    mender: for environments that raise after their first reset; without one, what they raise goes on.
    fault: what was raised and went on, None until then.
    phase: "reset", "step" or "making the environment", for whoever has to say where an exception came from.
    env_steps: taken so far · dropped: those whose data was of no use, so that they are in no row and no count.
    """

    def __init__(
        self,
        env: Env,
        policy: Policy,
        processor: StepProcessor,
        seeds: Sequence[int],
        mender: Mender | None = None,
    ) -> None:
        self._env = env
        self._policy = policy
        self._processor = processor
        self._mender = mender
        self._seeds = seeds
        self._episodes = [0] * env.n_envs
        self._times = [0] * env.n_envs
        self._estimates: dict[int, tuple[float, float]] = {}
        self.phase = "reset"
        self.fault: EnvFault | None = None
        self.env_steps = self.dropped = 0

    def begin(self) -> None:
        """Start the first episode of every environment."""
        for env_ix, seed in enumerate(self._seeds):
            self._first_reset(env_ix, seed)

    def _first_reset(self, env_ix: int, seed: int) -> None:
        """Start an episode in an environment that is new; what that raises goes on."""
        self._policy.begin_episode(env_ix)
        try:
            self._env.reset(env_ix, seed)
        except (Exception, SystemExit) as error:
            self.fault = self._fault(error, "reset", env_ix, None)
            raise

    def sample(self, env_ix: Sequence[int], env_steps: int) -> Items:
        """One env step in each of these environments; the rows it completes.

        env_steps: the global count that exploration schedules follow. An environment that raised and was mended
        has taken none; its episode is cut there.
        """
        action = self._policy.sample(self._env.observe(env_ix), env_steps, env_ix)
        if self._processor.needs_estimates:
            self._note_estimates(env_ix)
        return self._step(env_ix, action)

    def _step(self, env_ix: Sequence[int], action: Array) -> Items:
        self.phase = "step"
        try:
            step = self._env.step(env_ix, action)
        except StepError as e:
            if self._mender is None:
                self.fault = self._fault(e.__cause__ or e, "step", e.env_ix, action[env_ix.index(e.env_ix)])
                raise
            return self._step_around(e, env_ix, action)
        return self._take(step)

    def _step_around(self, error: StepError, env_ix: Sequence[int], action: Array) -> Items:
        """What the environments did that were stepped, the cut episode of the one that raised, the steps of the rest."""
        cause, rows = error.__cause__ or error, {i: row for row, i in enumerate(env_ix)}
        parts = [] if error.taken is None else [self._take(error.taken)]
        parts.append(self._mend(cause, "step", error.env_ix, action[rows[error.env_ix]]))
        if error.not_taken:
            parts.append(self._step(error.not_taken, action[[rows[i] for i in error.not_taken]]))
        return _joined(parts)

    def _note_estimates(self, env_ix: Sequence[int]) -> None:
        """What the policy thought of each environment's observation and action, for when its step is known."""
        found = self._policy.estimates()
        if found is not None:
            self._estimates |= dict(zip(env_ix, zip(found.best, found.taken, strict=True), strict=True))

    def _take(self, step: Step) -> Items:
        if self._estimates:
            best, taken = zip(*(self._estimates[i] for i in step.env_ix), strict=True)
            step.estimates = Estimates(np.array(best), np.array(taken))
        items = self._processor.process(step)
        dropped = 0 if step.dropped is None else int(np.count_nonzero(step.dropped))
        self.dropped += dropped
        self.env_steps += len(step.env_ix) - dropped
        self.phase = "reset"
        for i, over in zip(step.env_ix, step.over.tolist(), strict=True):
            self._times[i] += 1
            if over:
                self._begin_episode(i)
        return items

    def _begin_episode(self, env_ix: int) -> None:
        self._episodes[env_ix] += 1
        self._times[env_ix] = 0
        self._policy.begin_episode(env_ix)
        try:
            self._reset(env_ix)
        except (Exception, SystemExit) as error:
            if self._mender is None:
                self.fault = self._fault(error, "reset", env_ix, None)
                raise
            self._mend(error, "reset", env_ix, None)  # the episode before is whole: there is nothing to cut

    def _reset(self, env_ix: int) -> None:
        self._env.reset(env_ix)

    def _mend(self, error: BaseException, phase: str, env_ix: int, action: Array | None) -> Items:
        """The rows of the episode that broke off; the environment is made anew and has begun another one."""
        if self._mender is None:
            raise AssertionError("nobody mends")
        fault = self._fault(error, phase, env_ix, action)
        items = self._processor.cut(env_ix)
        self.phase = "making the environment"
        seed = self._mender.mend(fault)
        self.phase = "reset"
        if phase == "step":
            self._episodes[env_ix] += 1
            self._times[env_ix] = 0
        self._first_reset(env_ix, seed)
        return items

    def _fault(self, error: BaseException, phase: str, env_ix: int, action: Array | None) -> EnvFault:
        return EnvFault(error, phase, env_ix, self._episodes[env_ix], self._times[env_ix], action)


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
        # Environments that began anew, of which the rows of the episode before are not handed over yet.
        self._to_cut: list[int] = []
        self.exact = True

    def begin(self, first_episode: int = 0) -> None:
        """Start an episode of this number in every environment."""
        self._episodes = [first_episode] * self._env.n_envs
        for env_ix in range(self._env.n_envs):
            self._first_reset(env_ix, self._seed_of(env_ix, first_episode))

    def begin_from(self, state: State) -> None:
        """Go on from a saved state. Raises ValueError for one that does not fit.

        Where an environment does not come out of it as it was, its episode is cut and a new one begins.
        """
        counts = section(state, "counts").values
        require(counts, ("episodes", "times"), "the sampler")
        n = self._env.n_envs
        episodes, times = (listed(counts[name], name, n) for name in ("episodes", "times"))
        self._episodes = [count(number, "an episode's number", _MAX_EPISODES) for number in episodes]
        self._times = [count(number, "the length of an episode") for number in times]
        self._to_cut = [count(i, "an environment", n - 1) for i in listed(counts.get("to_cut", []), "to_cut")]
        self.dropped = count(counts.get("dropped", 0), "dropped")
        self._processor.load_state(section(state, "processor"))
        for env_ix in self._resumable.load_state(section(state, "env")):
            self.exact = False
            self._to_cut.append(env_ix)
            self._begin_episode(env_ix)
            _logger.warning(
                "environment %d of %s cannot be resumed exactly: it is not determined by its seed and the actions; "
                "a new episode starts there",
                env_ix,
                self._owner,
            )

    def state(self) -> State:
        """Between two env steps: environments, what streams carry, numbers of episodes. The policy's is its own."""
        counts: dict[str, object] = {"episodes": list(self._episodes), "times": list(self._times)}
        if self._to_cut:
            counts["to_cut"] = list(self._to_cut)
        if self.dropped:
            counts["dropped"] = self.dropped
        return joined(
            {
                "env": self._resumable.state(),
                "processor": self._processor.state(),
                "counts": State({}, counts),
            }
        )

    def sample(self, env_ix: Sequence[int], env_steps: int) -> Items:
        """As of `Sampler`; rows of streams that are cut come first."""
        cut = [self._processor.cut(i) for i in self._to_cut]
        self._to_cut = []
        items = super().sample(env_ix, env_steps)
        return _joined([*cut, items]) if cut else items

    def _reset(self, env_ix: int) -> None:
        self._env.reset(env_ix, self._seed_of(env_ix, self._episodes[env_ix]))


def _joined(parts: Sequence[Items]) -> Items:
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
