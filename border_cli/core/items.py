"""Items: what a step processor makes of env steps, and what crosses from an actor to the replay.

Rows of one environment form a stream. A row with `span` m > 0 is a transition over m env steps, and its next
observation is the `obs` of the row m places later in the same stream. A row with span 0 holds only the final
observation of an episode. So every observation is stored once and no row ever points across an episode's end.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from border_cli.core.spaces import Array, EnvSpec

Items = dict[str, Array]
"""Rows as one array per column, all of the same length (columns: see `item_columns`)."""


@dataclass(frozen=True)
class Column:
    """One named array of rows; `shape` is that of one row."""

    name: str
    shape: tuple[int, ...]
    dtype: str

    @property
    def row_bytes(self) -> int:
        """Bytes of one row."""
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize


def item_columns(spec: EnvSpec, with_priority: bool = False) -> tuple[Column, ...]:
    """Columns of an item, in order: one per observation leaf, then those below.

    action: as stored (see ActionSpec) · reward: float32, sum of γ^k r over the span, clipped per step if asked ·
    discount: float32, γ^m · terminated: bool, no bootstrapping from the next observation ·
    span: int32, env steps covered, 0 for a final observation · env: int32, environment within its actor ·
    episode_return, episode_length: float64 and int32, raw, on final rows only (elsewhere 0) ·
    age: only where observations are stacks: uint8, rows before it that are of its episode, at most 255.
    priority: only if asked for: float32, the absolute TD error as the actor knows it, -1 where it does not.
    Of a stack a row holds the newest observation; the others are those of the rows before it.
    """
    observations = tuple(Column(leaf.name, leaf.row_shape, leaf.dtype) for leaf in spec.obs.leaves)
    action = Column("action", spec.action.shape, spec.action.stored_dtype)
    age = () if stack_depth(spec) == 1 else (AGE,)
    return (*observations, action, *_FIXED, *age, *((PRIORITY,) if with_priority else ()))


def stack_depth(spec: EnvSpec) -> int:
    """The most observations that one stack is made of; 1 where there is none."""
    return max(leaf.stack for leaf in spec.obs.leaves)


MAX_AGE = 255
AGE = Column("age", (), "uint8")
PRIORITY = Column("priority", (), "float32")
UNKNOWN_PRIORITY = -1.0
_FIXED = (
    Column("reward", (), "float32"),
    Column("discount", (), "float32"),
    Column("terminated", (), "bool"),
    Column("span", (), "int32"),
    Column("env", (), "int32"),
    Column("episode_return", (), "float64"),
    Column("episode_length", (), "int32"),
)


def empty_items(columns: tuple[Column, ...], n: int) -> Items:
    """N rows of zeros."""
    return {c.name: np.zeros((n, *c.shape), c.dtype) for c in columns}


@dataclass
class Chunk:
    """A run of rows from one actor, as it leaves the transport.

    env_steps: env steps the chunk stands for; with n-step that is not its number of rows.
    version: opt step of the model that chose the newest actions in it.
    sequence: counts the chunks of this incarnation from 0, which shows loss and doubling.
    """

    actor: int
    incarnation: int
    sequence: int
    env_steps: int
    version: int
    items: Items

    @property
    def rows(self) -> int:
        """Number of rows."""
        return len(self.items["span"])


@dataclass(frozen=True)
class EpisodeStat:
    """One finished episode: undiscounted sum of raw rewards, and env steps."""

    episode_return: float
    length: int


def count_episodes(items: Items) -> int:
    """How many episodes end in these rows, without an object for each: this is done at every env step."""
    return int(np.count_nonzero(items["episode_length"]))


def finished_episodes(items: Items) -> list[EpisodeStat]:
    """The episodes that end in these rows, in row order."""
    ended = np.flatnonzero(items["episode_length"])
    return [EpisodeStat(float(items["episode_return"][i]), int(items["episode_length"][i])) for i in ended]
