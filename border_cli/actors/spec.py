"""What an actor is made of, the rounds of lockstep, and the status that actors and learner share."""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from border_cli.actors.sampler import RowProcessor
from border_cli.core.protocols import ActingPolicy
from border_cli.core.spaces import EnvSpec
from border_cli.runtime.transport import CACHE_LINE, SharedBlock, SharedEvent


@dataclass(frozen=True)
class ActorId:
    """One incarnation of one actor.

    Args:
        incarnation: how often it was started before; with the actor's number it selects the seeds.
        env_steps: those of its earlier incarnations, which its credit includes.
    """

    actor: int
    incarnation: int
    n_actors: int
    n_envs: int
    seed: int
    env_steps: int = 0


@dataclass(frozen=True)
class ActorSpec:
    """What every actor of a run is made of. Plain data that is sent to the actor's process.

    Args:
        env: makes an Env with actor_id.n_envs environments; in lockstep a ReplayedEnv.
        policy, processor: make these parts for the spaces of the environment.
        credit: the most env steps that an actor takes before the learner inserts any; determines the size of its ring.
        rounds: of lockstep; None for actors that act on credit.
    """

    env: Callable[[ActorId], Any]
    policy: Callable[[ActorId, EnvSpec], ActingPolicy]
    processor: Callable[[ActorId, EnvSpec], RowProcessor]
    n_envs: int
    n_buffer: int
    credit: int
    seed: int
    rounds: Rounds | None = None

    def actor_id(self, actor: int, incarnation: int, n_actors: int, env_steps: int = 0) -> ActorId:
        return ActorId(actor, incarnation, n_actors, self.n_envs, self.seed, env_steps)


LOCKSTEP_SLOTS = 3
"""Slots of the model channel: the learner may publish twice before an actor has read the model of its next round."""


def model_number(round_: int) -> int:
    """Number of the publication that actors act with in this round."""
    return max(round_ - 1, 1)


@dataclass(frozen=True)
class Rounds:
    """How many env steps each environment takes in each round of lockstep.

    Args:
        steps: of each environment in a round.
        max_env_steps: budget of the run, or None; it may cut the last round short.
        first, first_env_steps: the first round that is counted by this budget, and the env steps before it. Rounds of
            an earlier launch may have had another budget.
    """

    n_actors: int
    envs_per_actor: int
    steps: int
    max_env_steps: int | None = None
    first: int = 0
    first_env_steps: int = 0

    @property
    def streams(self) -> int:
        """Environments of all actors."""
        return self.n_actors * self.envs_per_actor

    def before(self, round_: int) -> int:
        """Env steps of all rounds before this one, for round_ ≥ first."""
        env_steps = self.first_env_steps + (round_ - self.first) * self.streams * self.steps
        return env_steps if self.max_env_steps is None else min(env_steps, self.max_env_steps)

    def env_steps(self, round_: int, actor: int) -> list[int]:
        """Env steps of each environment of an actor in a round."""
        each, rest = divmod(self.before(round_ + 1) - self.before(round_), self.streams)
        first = actor * self.envs_per_actor
        return [each + (first + env < rest) for env in range(self.envs_per_actor)]


class ActorState(enum.IntEnum):
    """What an actor is doing."""

    STARTING = 0
    MAKING_ENVIRONMENT = 1
    WAITING_FOR_MODEL = 2
    RESETTING = 3
    ACTING = 4
    WAITING_FOR_CREDIT = 5
    WAITING_FOR_ROOM = 6
    STOPPING = 7
    DONE = 8


_STOP, _ENV_STEPS = range(2)  # words that all actors share


class _Word:
    """A word of an actor's status as an attribute."""

    def __init__(self, place: int) -> None:
        self._place = place

    def __get__(self, status: ActorStatus, _: object) -> int:
        return status.words[self._place]

    def __set__(self, status: ActorStatus, value: int) -> None:
        status.words[self._place] = value


class ActorStatus:
    """What an actor and the learner tell each other while the actor runs, in shared memory. Passed to the actor's process.

    Env steps include those of earlier incarnations.

    Args:
        block: the status of all actors · actor: number of this one.
        changed: set whenever the learner has changed something that the actor may be waiting for.

    Attributes:
        heartbeat: a counter that grows while the actor works or waits.
        first_step_ns: start of its first env step on the monotonic clock, 0 before it.
        blocked_ns: time spent waiting for credit or room.
    """

    heartbeat, first_step_ns, blocked_ns = _Word(1), _Word(2), _Word(3)

    def __init__(self, block: SharedBlock, actor: int, changed: SharedEvent) -> None:
        self._shared = block.words(0, 2)
        self._credit = block.words((1 + 2 * actor) * CACHE_LINE, 1)
        # of this actor alone; the first is its state
        self.words = block.words((2 + 2 * actor) * CACHE_LINE, 4)
        self.changed = changed
        self._parts = block, actor, changed

    def __reduce__(self) -> tuple[Callable[..., ActorStatus], tuple[Any, ...]]:
        return ActorStatus, self._parts

    @property
    def stop_requested(self) -> bool:
        return bool(self._shared[_STOP])

    @property
    def global_env_steps(self) -> int:
        """Env steps of the whole run, as of the last grant."""
        return int(self._shared[_ENV_STEPS])

    @property
    def credit(self) -> int:
        """Env steps that the actor may have taken in all."""
        return int(self._credit[0])

    @credit.setter
    def credit(self, env_steps: int) -> None:
        if env_steps != self._credit[0]:
            self._credit[0] = env_steps
            self.changed.set()

    @property
    def state(self) -> ActorState:
        return ActorState(self.words[0])

    @state.setter
    def state(self, state: ActorState) -> None:
        self.words[0] = state


class StatusBlock:
    """The status of all actors, on the learner's side. Raises ResourceError.

    Each word has one writer; the learner writes an actor's words while that actor has no process. The learner's words and
    each actor's words are on different cache lines, so that writers do not slow each other down.
    """

    def __init__(self, n_actors: int) -> None:
        self._block = SharedBlock((1 + 2 * n_actors) * CACHE_LINE, "the actors' status")
        self._shared = self._block.words(0, 2)
        self._actors = [ActorStatus(self._block, actor, SharedEvent()) for actor in range(n_actors)]

    def __getitem__(self, actor: int) -> ActorStatus:
        return self._actors[actor]

    def grant(self, credits: Sequence[int], env_steps: int) -> None:
        """See `ExperienceSource.grant`."""
        self._shared[_ENV_STEPS] = env_steps
        for actor, credit in zip(self._actors, credits, strict=True):
            actor.credit = credit

    def request_stop(self) -> None:
        self._shared[_STOP] = 1
        self.wake()

    def wake(self) -> None:
        for actor in self._actors:
            actor.changed.set()

    def close(self) -> None:
        self._block.close()
        for actor in self._actors:
            actor.changed.close()
