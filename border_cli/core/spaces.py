"""Observation and action spaces as data.

An agent, a replay and a checkpoint never see a gymnasium space: they see these specs, which are plain values and go to
JSON and back. `border_cli.envs.gym_spaces` makes them from gymnasium spaces.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from border_cli.core.errors import UsageError

Array = NDArray[Any]
ACTION_MASK = "action_mask"
"""Key of what says which actions are allowed, in a Dict observation and in an environment's info."""
Obs = dict[str, Array]
"""A batch of observations: one array per leaf of the space, shape (B, *leaf.shape)."""


@dataclass(frozen=True)
class ObsLeaf:
    """One array of an observation.

    kind: "box", "discrete", "multi_discrete" or "multi_binary".
    path: the keys that lead to it in a Dict or Tuple observation; empty for a plain one.
    shape, dtype: of the stored array, without the batch dimension.
    low, high: the least and the greatest bound of a box, None where it has none.
    categories: sizes of the one-hot blocks, one per component of a discrete kind, whose stored values are counted from 0;
        or one per channel of an integer image that holds categories, where a value beyond them is coded as zeros.
    start: what was subtracted from each component of a discrete kind.
    stack: number of observations of the environment, newest last, that are stacked along the first dimension of shape.
    """

    name: str
    path: tuple[str | int, ...]
    kind: str
    shape: tuple[int, ...]
    dtype: str
    low: float | None = None
    high: float | None = None
    categories: tuple[int, ...] = ()
    start: tuple[int, ...] = ()
    stack: int = 1

    @property
    def row_shape(self) -> tuple[int, ...]:
        """Shape of what one env step adds: of a stack, the newest observation."""
        return self.shape if self.stack == 1 else self.shape[1:]

    @property
    def channel_axis(self) -> int:
        """Axis of an image's channels: the shorter of the first and the last; if they are equal, the last."""
        return -3 if self.shape[-3] < self.shape[-1] else -1

    @property
    def features(self) -> int:
        """Number of values the network sees after one-hot coding and flattening."""
        if self.categories and self.kind == "box":
            return math.prod(self.shape) // len(self.categories) * sum(self.categories)
        return sum(self.categories) if self.categories else math.prod(self.shape)


@dataclass(frozen=True)
class ObsSpec:
    """All leaves of an observation space, in a fixed order."""

    leaves: tuple[ObsLeaf, ...]

    def zeros(self, n: int) -> Obs:
        return {leaf.name: np.zeros((n, *leaf.shape), leaf.dtype) for leaf in self.leaves}


@dataclass(frozen=True)
class ActionSpec:
    """An action space.

    kind "discrete": actions are stored as int64 counted from 0, n of them; the environment gets `start` added.
    kind "multi_discrete": D discrete actions at once, of MultiDiscrete and MultiBinary spaces; stored as int64 of `shape`,
        counted from 0. The environment gets `low` added. The largest component has n values.
    kind "box": actions are stored as float32 of `shape`, between `low` and `high` (flattened, one per component); the
        environment gets them rounded where its dtype is of integers.
    dtype: of the environment's actions.
    """

    kind: str
    n: int = 0
    start: int = 0
    shape: tuple[int, ...] = ()
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()
    dtype: str = "int64"

    @property
    def stored_dtype(self) -> str:
        """Dtype of the replay column."""
        return "float32" if self.kind == "box" else "int64"

    @cached_property
    def branches(self) -> tuple[int, ...]:
        """How many values each of D discrete actions has, which are chosen at once."""
        if self.kind == "discrete":
            return (self.n,)
        return tuple(int(high - low) + 1 for low, high in zip(self.low, self.high, strict=True))

    @cached_property
    def bounds(self) -> tuple[Array, Array]:
        """`low` and `high` as float64 arrays of `shape`."""
        low, high = (np.array(b, np.float64).reshape(self.shape) for b in (self.low, self.high))
        return low, high


def encode(leaf: ObsLeaf, values: Array) -> Array:
    """Values (..., *shape) of a leaf as they are stored: counted from 0, with the stored dtype."""
    counted = values - np.reshape(leaf.start, leaf.shape) if leaf.start else values
    return counted.astype(leaf.dtype, copy=False)


def decode_actions(spec: ActionSpec, actions: Array) -> Sequence[Any]:
    """Stored actions (k, ...), each as `env.step` takes it: of the type that the space's `sample` gives."""
    if spec.kind == "discrete":
        return list((actions + spec.start).astype(spec.dtype, copy=False))
    if spec.kind == "multi_discrete":
        return list((actions + spec.bounds[0]).astype(spec.dtype))
    within = actions.clip(*spec.bounds)
    if np.dtype(spec.dtype).kind in "iu":
        within = np.rint(within)
    return list(within.astype(spec.dtype))


@dataclass(frozen=True)
class EnvSpec:
    """What the learner knows of an environment it never builds itself.

    left_out: parts of the observation that no agent takes, for messages; they are not part of a saved spec.
    """

    obs: ObsSpec
    action: ActionSpec
    left_out: tuple[str, ...] = field(default=(), compare=False)

    @property
    def mask(self) -> str | None:
        """Name of the leaf that says which actions are allowed, 1 or 0 for each of n; None where all always are."""
        names = (leaf.name for leaf in self.obs.leaves if self._is_mask(leaf))
        return next(names, None)

    @property
    def goals(self) -> list[ObsLeaf]:
        """The leaves of the achieved and the desired goal; [] where one is missing or a stack, or where they differ."""
        leaves = {leaf.path[-1]: leaf for leaf in self.obs.leaves if leaf.path and leaf.stack == 1}
        found = [leaves[key] for key in ("achieved_goal", "desired_goal") if key in leaves]
        spaces = {(leaf.kind, leaf.shape, leaf.dtype, leaf.start) for leaf in found}
        return found if len(found) == 2 and len(spaces) == 1 else []

    @property
    def inputs(self) -> ObsSpec:
        """What a network sees of an observation: all but the mask."""
        return ObsSpec(tuple(leaf for leaf in self.obs.leaves if not self._is_mask(leaf)))

    def without(self, keys: Sequence[str]) -> EnvSpec:
        """The spec without these parts of the observation, or those that begin like this. Raises UsageError."""
        if not keys:
            return self
        leaves = self.inputs.leaves
        # As `MaskFromInfo` has put the observation into a Dict
        is_inside = self.mask is not None and all(leaf.path[:1] == ("obs",) for leaf in leaves)
        names = {leaf: ".".join(map(str, leaf.path[is_inside:])) for leaf in leaves}
        parts = {
            key: {leaf for leaf, name in names.items() if f"{name}.".startswith(f"{key}.")} for key in keys
        }
        hidden = {leaf for leaves in parts.values() for leaf in leaves}
        unknown = [key for key, leaves in parts.items() if not leaves]
        if unknown or len(hidden) == len(names):
            problem = f"there is no {unknown[0]!r}" if unknown else "nothing is left for the policy"
            allowed = [name for name in names.values() if name]
            nearest = difflib.get_close_matches(unknown[0], allowed, 1) if unknown else []
            raise UsageError(
                f"agent.privileged_obs: {problem}", nearest=next(iter(nearest), None), allowed=allowed or "[]"
            )
        return replace(self, obs=ObsSpec(tuple(leaf for leaf in self.obs.leaves if leaf not in hidden)))

    def difference(self, here: EnvSpec) -> str:
        """The first difference between this saved spec and the one of an environment, in words."""
        saved, now = (
            {f"observation {leaf.name}": asdict(leaf) for leaf in spec.obs.leaves}
            | {"the action": asdict(spec.action)}
            for spec in (self, here)
        )
        for what in saved | now:
            if what not in saved or what not in now:
                return f"{what} is missing {'here' if what in saved else 'there'}"
            for key, value in saved[what].items():
                if value != now[what][key]:
                    return f"{what} has {key} {value}, here {now[what][key]}"
        return "the observations are in another order"

    def _is_mask(self, leaf: ObsLeaf) -> bool:
        is_flag = not leaf.dtype.startswith("float") or (leaf.low, leaf.high) == (0.0, 1.0)
        fits = leaf.shape == (self.action.n,) and is_flag
        return self.action.kind == "discrete" and leaf.path == (ACTION_MASK,) and fits

    def to_json(self) -> dict[str, Any]:
        """Plain data for a checkpoint."""
        return {"obs": [asdict(leaf) for leaf in self.obs.leaves], "action": asdict(self.action)}

    @staticmethod
    def from_json(data: dict[str, Any]) -> EnvSpec:
        """The inverse of `to_json`. Raises KeyError, TypeError or ValueError for anything else."""

        def tuples(part: dict[str, Any]) -> dict[str, Any]:
            return {key: tuple(value) if isinstance(value, list) else value for key, value in part.items()}

        leaves = tuple(ObsLeaf(**tuples(leaf)) for leaf in data["obs"])
        action = ActionSpec(**tuples(data["action"]))
        return EnvSpec(ObsSpec(leaves), action)
