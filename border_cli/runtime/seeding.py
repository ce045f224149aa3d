"""All seeds of a run come from one tree, so that no two streams are ever the same.

Spawn keys below the run's seed: agent (0,), what it draws while it learns (0, 1), replay (1,), evaluation
(2, episode), actor (3, actor, incarnation) and, below each actor, its environments (…, 0, env), its exploration (…, 1)
and what was made anew in place (…, 2, env, times). `border-eval` judges on branch (4, episode), so that it never sees
the episodes that training was selected on. What a policy draws in evaluations comes from branch (5,), anew in each. A
candidate for the best model is confirmed on branch (6, opt step, episode): on episodes that no other model was judged
on. Under sync and lockstep each episode has a seed of its own, (…, 0, env, episode).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from border_cli.core.errors import UnfitStateError

LEARNING = (0, 1)
AGENT, REPLAY, EVALUATION, ACTOR, JUDGEMENT, EVALUATION_POLICY, CONFIRMATION = range(7)


def stream(seed: int, *key: int) -> np.random.SeedSequence:
    """The node of the tree at this spawn key."""
    return np.random.SeedSequence(seed, spawn_key=key)


def generator(seed: int, *key: int) -> np.random.Generator:
    """A numpy generator at this spawn key."""
    return np.random.Generator(np.random.PCG64(stream(seed, *key)))


def integer(seed: int, *key: int) -> int:
    """A seed below 2**31 at this spawn key, for libraries that take an int."""
    return int(stream(seed, *key).generate_state(1, np.uint32)[0] >> 1)


def evaluation_seed(seed: int, episode: int) -> int:
    """Seed of the environment in routine evaluation episode i: the same in every evaluation of a run."""
    return integer(seed, EVALUATION, episode)


def confirmation_seed(seed: int, opt_steps: int, episode: int) -> int:
    """Seed of the environment in episode i of confirming the model of this opt step."""
    return integer(seed, CONFIRMATION, opt_steps, episode)


def judgement_seed(seed: int, episode: int) -> int:
    """Seed of the environment in episode i of `border-eval`."""
    return integer(seed, JUDGEMENT, episode)


def env_seed(seed: int, actor: int, incarnation: int, env: int) -> int:
    """Seed of the first reset of one environment of one actor; later resets continue its own generator."""
    return integer(seed, ACTOR, actor, incarnation, 0, env)


def episode_seed(seed: int, actor: int, incarnation: int, env: int, episode: int) -> int:
    """Seed of one episode, where every episode has one of its own: under sync and lockstep."""
    return integer(seed, ACTOR, actor, incarnation, 0, env, episode)


def exploration_key(actor: int, incarnation: int) -> tuple[int, ...]:
    """Spawn key of an actor's exploration."""
    return (ACTOR, actor, incarnation, 1)


def restore(rng: np.random.Generator, state: Mapping[str, Any]) -> None:
    """Let a generator go on from a saved state. Raises UnfitStateError for one that is not of its kind."""
    before = rng.bit_generator.state
    try:
        rng.bit_generator.state = dict(state)
    except (AttributeError, TypeError, KeyError, ValueError, OverflowError) as e:
        rng.bit_generator.state = before
        raise UnfitStateError(f"the saved state of a generator does not fit: {e}") from e


def remade_env_seed(seed: int, actor: int, incarnation: int, env: int, times: int) -> int:
    """Seed of the first reset of an environment that was made anew so many times in place."""
    return integer(seed, ACTOR, actor, incarnation, 2, env, times)
