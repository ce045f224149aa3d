"""Which actor this is, and how it is to be built. Plain data that travels to the actor's process."""

from __future__ import annotations

from dataclasses import dataclass

from border_cli.actors.rounds import Rounds
from border_cli.runtime.factory import Factory


@dataclass(frozen=True)
class Place:
    """One actor among the others.

    incarnation: how often it was started again; with the actor's number it selects the seed stream.
    n_envs: environments it steps together. seed: root of the run's seed tree. taken: env steps of its earlier
    incarnations, which its credit counts too.
    """

    actor: int
    incarnation: int
    n_actors: int
    n_envs: int
    seed: int
    taken: int = 0


@dataclass(frozen=True)
class ActorSpec:
    """What every actor of a run is made of.

    env: (place, *args) → Env of place.n_envs environments.
    policy: (place, spec, *args) → ActingPolicy. processor: (place, spec, *args) → StepProcessor.
    rounds: of lockstep, where the environments are resumable ones; None where actors run free.
    """

    env: Factory
    policy: Factory
    processor: Factory
    n_envs: int
    n_buffer: int
    seed: int
    rounds: Rounds | None = None

    def place(self, actor: int, incarnation: int, n_actors: int, taken: int = 0) -> Place:
        """The place of one actor."""
        return Place(actor, incarnation, n_actors, self.n_envs, self.seed, taken)
