"""All seeds of a run come from one tree of spawn keys, so that no two generators are equal.

Spawn keys below the run's seed:

    (0,)                                agent: initial weights
    (0, 1)                              agent: random numbers of the update
    (0, 2, reset)                       agent: initial weights of a reset
    (1,)                                replay sampling
    (1, 1)                              goals in hindsight
    (2, episode)                        regular evaluations: the same episodes each time
    (3, actor, incarnation, 0, env)     first reset of an environment in training
    (3, …, 0, env, episode)             each episode, with trainer=sync and in lockstep
    (3, actor, incarnation, 1)          exploration of an actor
    (4, episode)                        border-eval: episodes that training never selected on
    (5,)                                random numbers of a policy in an evaluation
    (6, opt_step, episode)              confirmation of a candidate for the best model
    (3, actor, incarnation, 2)          global generators of Python, numpy and torch in an actor's process
    (7, role, number)                   those of other processes: 0 learner, 1 trial of the environment, 2 evaluator, 3 film
"""

from __future__ import annotations

import random
import sys
import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np

from border_cli.core.errors import IncompatibleStateError
from border_cli.core.state import State, check_like

LEARNING, RESET = (0, 1), (0, 2)
AGENT, REPLAY, EVALUATION, ACTOR, EVAL_COMMAND, EVALUATION_POLICY, CONFIRMATION, GLOBAL = range(8)


def stream(seed: int, *key: int) -> np.random.SeedSequence:
    """The node of the tree at this spawn key."""
    return np.random.SeedSequence(seed, spawn_key=key)


def generator(seed: int, *key: int) -> np.random.Generator:
    """A numpy generator at this spawn key."""
    return np.random.Generator(np.random.PCG64(stream(seed, *key)))


def integer(seed: int, *key: int) -> int:
    """A seed below 2**31 at this spawn key, for libraries that take an int."""
    return int(stream(seed, *key).generate_state(1, np.uint32)[0] >> 1)


def first_seed(seed: int, actor: int, incarnation: int, env: int, episode: int) -> int | None:
    """Seed of the first reset of one environment of one actor. Later resets continue its own generator: None."""
    return None if episode else integer(seed, ACTOR, actor, incarnation, 0, env)


def episode_seed(seed: int, actor: int, incarnation: int, env: int, episode: int) -> int:
    """Seed of one episode, with trainer=sync and in lockstep."""
    return integer(seed, ACTOR, actor, incarnation, 0, env, episode)


def seed_global_generators(seed: int, *key: int) -> None:
    """Seed the generators that user code may draw from without asking: Python's, numpy's, and torch's if it is imported."""
    random.seed(integer(seed, *key, 0))
    np.random.seed(integer(seed, *key, 1))
    if (torch := sys.modules.get("torch")) is not None:
        torch.manual_seed(integer(seed, *key, 2))


def restore(rng: np.random.Generator, state: Mapping[str, Any]) -> None:
    """Set a generator to a saved state. Raises IncompatibleStateError if it is not of its kind."""
    check_like(State({}, {"state": state}), State({}, {"state": rng.bit_generator.state}), "a generator")
    try:
        with warnings.catch_warnings():
            # numpy below 2 warns of a negative number, and takes another one
            warnings.simplefilter("error", DeprecationWarning)
            rng.bit_generator.state = dict(state)
    except (ValueError, OverflowError, DeprecationWarning) as e:  # a number out of range
        raise IncompatibleStateError(f"the saved state of a generator does not fit: {e}") from e
