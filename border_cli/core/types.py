"""Plain data of a run: items (rows of the replay), chunks, steps, batches, models, and what actors and evaluations count.

Items are what a step processor makes of env steps, and what goes from an actor to the replay. Rows of one environment
form a stream: a row per env step, and after the last env step of an episode a row with its final observation. So every
observation is stored once, and the next observation of an env step is that of the next row of its stream.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from border_cli.core import format
from border_cli.core.errors import IncompatibleStateError
from border_cli.core.spaces import Array, EnvSpec, Obs
from border_cli.core.state import State, check_like

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
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize


def obs_columns(spec: EnvSpec) -> tuple[Column, ...]:
    """The columns of an observation as rows store it. Of a stack that is the newest frame."""
    return tuple(Column(leaf.name, leaf.row_shape, leaf.dtype) for leaf in spec.obs.leaves)


def item_columns(spec: EnvSpec, extra: tuple[Column, ...] = (), n_info: int = 0) -> tuple[Column, ...]:
    """Columns of an item, in order: one per observation leaf, then those below.

    action: as stored (see ActionSpec) · reward: float32, raw · terminated: bool, no bootstrapping after this env step ·
    final: bool, the row holds only the final observation of an episode: action, reward and terminated are 0 ·
    step: uint16, env steps of its episode before it, at most 65,535 · env: int32, environment within its actor ·
    episode_return, episode_length: float64 and int32, raw, on final rows only (elsewhere 0) ·
    episode_info: only if asked for: (n_info,) float64, values of `info` at the end of an episode, on final rows only ·
    extra: the columns that the agent adds, 0 on final rows.
    """
    action = Column("action", spec.action.shape, spec.action.stored_dtype)
    info = (Column(EPISODE_INFO, (n_info,), "float64"),) if n_info else ()
    return (*obs_columns(spec), action, *_FIXED, *info, *extra)


def stack_depth(spec: EnvSpec) -> int:
    """The most observations that one stack is made of; 1 where there is none."""
    return max(leaf.stack for leaf in spec.obs.leaves)


MAX_STEP = 2**16 - 1
"""Largest number of a row in its episode; after it comes 2^15 again. So a row behind n others has at least the number n."""


def stored_step(length: Array) -> Array:
    """The number of a row after (k,) env steps of its episode; its lowest 16 bits are stored."""
    number: Array = length | (length > MAX_STEP) << 15
    return number


EPISODE_INFO = "episode_info"
AFTER_TRAINING = 2**62
"""Env steps at which every exploration schedule has reached its end."""
_FIXED = (
    Column("reward", (), "float32"),
    Column("terminated", (), "bool"),
    Column("final", (), "bool"),
    Column("step", (), "uint16"),
    Column("env", (), "int32"),
    Column("episode_return", (), "float64"),
    Column("episode_length", (), "int32"),
)


def empty_items(columns: tuple[Column, ...], n: int) -> Items:
    """N rows of zeros."""
    return {c.name: np.zeros((n, *c.shape), c.dtype) for c in columns}


def concat_items(parts: Sequence[Items]) -> Items:
    """The rows of several parts, one after the other. A single part is returned as it is."""
    if len(parts) == 1:
        return parts[0]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


@dataclass
class Chunk:
    """A run of rows from one actor, as it leaves the transport.

    env_steps: env steps the chunk stands for; final observations are rows, too.
    version: opt step of the model that chose the newest actions in it.
    sequence: counts the chunks of this incarnation from 0, so that a missing or repeated chunk is noticed.
    """

    actor: int
    incarnation: int
    sequence: int
    env_steps: int
    version: int
    items: Items

    @property
    def rows(self) -> int:
        return len(self.items["env"])

    def copy(self) -> Chunk:
        """A chunk with arrays of its own."""
        return replace(self, items={name: rows.copy() for name, rows in self.items.items()})


def count_episodes(items: Items) -> int:
    """How many episodes end in these rows."""
    return int(np.count_nonzero(items["episode_length"]))


def count_env_steps(items: Items) -> int:
    """How many of these rows are env steps; the others are final observations."""
    return len(items["final"]) - int(np.count_nonzero(items["final"]))


def finished_episodes(items: Items) -> list[tuple[float, int]]:
    """The episodes that end in these rows, in row order: undiscounted sum of raw rewards, and env steps."""
    ended = np.flatnonzero(items["episode_length"])
    return [(float(items["episode_return"][i]), int(items["episode_length"][i])) for i in ended]


def episode_infos(items: Items) -> Array | None:
    """(episodes, n_info): `episode_info` of the episodes that end in these rows; None without that column."""
    infos = items.get(EPISODE_INFO)
    return None if infos is None else infos[np.flatnonzero(items["episode_length"])]


@dataclass
class Step:
    """One env step of k environments of an actor.

    env_ix: (k,) which environments · obs, next_obs: (k, ...) before and after; next_obs is the true one, the final
    observation where an episode ended, never the first of the next · action: (k, ...) as stored ·
    reward: (k,) float64, raw · terminated, truncated: (k,) bool, gymnasium's meaning ·
    life_lost: (k,) bool, or None if none are: the episode continues, but the learner treats the step as terminated ·
    infos: (k, n_info) float64, values of `info` where an episode ends, NaN elsewhere; None if none are asked for ·
    extras: (k, ...) what the policy adds to each step, if the step processor needs it (see `ActingPolicy.extras`).
    """

    env_ix: Sequence[int]
    obs: Obs
    action: Array
    reward: Array
    terminated: Array
    truncated: Array
    next_obs: Obs
    life_lost: Array | None = None
    infos: Array | None = None
    extras: dict[str, Array] = field(default_factory=dict)

    @property
    def over(self) -> Array:
        """(k,) bool: the environment has to be reset before its next env step."""
        over: Array = self.terminated | self.truncated
        return over


@dataclass
class Batch:
    """What an agent learns from, all of length B.

    obs, next_obs: (B, ...) per leaf · action: (B, ...) · reward: (B,) float32, the sum over the m env steps of the
    transition · discount: (B,) float32, γ^m, or 0 if the last of them is terminated · terminated: (B,) bool, whether it
    is · ix: (B,) int64, for `update_priority` · weight: (B,) float32 importance weights or None ·
    extra: (B, ...) per extra column of the agent, as it was at the first env step of the transition.
    """

    obs: Obs
    action: Array
    reward: Array
    discount: Array
    terminated: Array
    next_obs: Obs
    ix: Array
    weight: Array | None = None
    extra: dict[str, Array] = field(default_factory=dict)


@dataclass(frozen=True)
class SequenceShape:
    """Rows per sequence: those to learn from, and those before them, with which a memory is brought up to date."""

    length: int
    burn_in: int


@dataclass(frozen=True)
class ModelInfo:
    """A snapshot of what acting needs.

    Args:
        version: the opt step at which it was taken.
        arrays: parameters by name.
        vector: (n,) one flat vector of which the arrays are views, one after the other; None if there is none.
    """

    version: int
    arrays: dict[str, Array]
    vector: Array | None = None


@dataclass
class ActorStat:
    """What one actor did in all its incarnations.

    Attributes:
        env_steps, episodes: what has arrived at the learner; in lockstep including rounds that it has not inserted.
        seconds: since its first env step in this launch.
        blocked_seconds: of them, waiting for credit or room.
        exact: false if one of its environments could not be resumed exactly.
        restarts: of its process.
        env_steps_before: of env_steps, those of earlier launches.
    """

    actor: int
    incarnation: int = 0
    env_steps: int = 0
    episodes: int = 0
    seconds: float = 0.0
    blocked_seconds: float = 0.0
    state: str = "starting"
    exact: bool = True
    restarts: int = 0
    env_steps_before: int = 0

    @property
    def alive(self) -> bool:
        """Whether it has not failed, and was not killed or lost."""
        return self.state not in ("failed", "killed", "lost")

    @property
    def samples_per_sec(self) -> float:
        """Env steps per second in this launch."""
        return (self.env_steps - self.env_steps_before) / self.seconds if self.seconds > 0 else 0.0


@dataclass(frozen=True)
class Evaluation:
    """Result of evaluating one model: returns and lengths per episode, in the order of their seeds.

    infos: by key of `env.info_keys`, mean of the numbers that episodes ended with; not part of `to_json`.
    """

    opt_steps: int
    returns: tuple[float, ...]
    lengths: tuple[int, ...]
    infos: dict[str, float] = field(default_factory=dict, compare=False)

    @property
    def mean(self) -> float:
        """Mean return: the score."""
        return float(np.mean(self.returns))

    @property
    def std(self) -> float:
        """Standard deviation of the returns over episodes (population)."""
        first = self.returns[0]  # subtracted, because rounding would give equal returns a deviation above 0
        return float(np.std([value - first for value in self.returns]))

    def __str__(self) -> str:
        return f"{format.number(self.mean)} ± {format.number(self.std)}"

    def to_json(self) -> dict[str, Any]:
        """As JSON values; a return that is not finite is null."""
        returns = [value if math.isfinite(value) else None for value in self.returns]
        return {"opt_steps": self.opt_steps, "returns": returns, "lengths": list(self.lengths)}

    @classmethod
    def from_json(cls, data: Any) -> Evaluation:
        """The inverse, with NaN for null. Raises IncompatibleStateError for anything else."""
        if not isinstance(data, dict):
            raise IncompatibleStateError("it is not an evaluation")
        data = {name: data.get(name) for name in _EVALUATION}
        check_like(State({}, data), State({}, _EVALUATION), "an evaluation")
        returns = tuple(math.nan if value is None else float(value) for value in data["returns"])
        if not returns or len(returns) != len(data["lengths"]):
            raise IncompatibleStateError(f"it has {len(returns)} returns and {len(data['lengths'])} lengths")
        return cls(data["opt_steps"], returns, tuple(data["lengths"]))


_EVALUATION = Evaluation(0, (0.0,), (0,)).to_json()
