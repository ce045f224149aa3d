"""Which actor this is, and how it is to be built. Plain data that travels to the actor's process."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


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
class Factory:
    """A function by its import path `module:name`, and the arguments it gets after those of its role.

    Nothing is imported before `load`, which happens in the actor's own process.
    """

    path: str
    args: tuple[Any, ...] = ()

    def load(self) -> Callable[..., Any]:
        """Import the function. Raises ImportError or AttributeError."""
        module, _, name = self.path.partition(":")
        function: Callable[..., Any] = getattr(importlib.import_module(module), name)
        return function


@dataclass(frozen=True)
class ActorSpec:
    """What every actor of a run is made of.

    env: (place, *args) → Env of place.n_envs environments.
    policy: (place, spec, *args) → ActingPolicy. processor: (place, spec, *args) → StepProcessor.
    """

    env: Factory
    policy: Factory
    processor: Factory
    n_envs: int
    n_buffer: int
    seed: int

    def place(self, actor: int, incarnation: int, n_actors: int, taken: int = 0) -> Place:
        """The place of one actor."""
        return Place(actor, incarnation, n_actors, self.n_envs, self.seed, taken)
