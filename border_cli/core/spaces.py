"""Observation and action spaces as data.

An agent, a replay and a checkpoint never see a gymnasium space: they see these specs, which are plain values and go to
JSON and back. `border_cli.envs.spaces` makes them from gymnasium spaces.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from border_cli.core.errors import UnfitStateError

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
    categories: sizes of the one-hot blocks (discrete kinds only); stored values are counted from 0.
    start: what was subtracted from each component of a discrete kind.
    stack: so many observations of the environment, the newest last, are one here, along the first dimension of shape.
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
    def features(self) -> int:
        """Number of values the network sees after one-hot coding and flattening."""
        return sum(self.categories) if self.categories else math.prod(self.shape)


@dataclass(frozen=True)
class ObsSpec:
    """All leaves of an observation space, in a fixed order."""

    leaves: tuple[ObsLeaf, ...]

    def zeros(self, n: int) -> Obs:
        """N observations of zeros."""
        return {leaf.name: np.zeros((n, *leaf.shape), leaf.dtype) for leaf in self.leaves}

    def to_json(self) -> list[dict[str, Any]]:
        """Plain data for a checkpoint."""
        return [asdict(leaf) for leaf in self.leaves]

    @staticmethod
    def from_json(data: list[dict[str, Any]]) -> ObsSpec:
        """The inverse of `to_json`."""
        tuples = ("path", "shape", "categories", "start")
        leaves: list[dict[str, Any]] = [
            {k: tuple(v) if k in tuples else v for k, v in leaf.items()} for leaf in data
        ]
        return ObsSpec(tuple(ObsLeaf(**leaf) for leaf in leaves))


@dataclass(frozen=True)
class ActionSpec:
    """An action space.

    kind "discrete": actions are stored as int64 counted from 0, n of them; the environment gets `start` added.
    kind "box": actions are stored as float32 of `shape`, between `low` and `high` (flattened, one per component).
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
        return "int64" if self.kind == "discrete" else "float32"

    def check(self, actions: Array) -> None:
        """Raise UnfitStateError unless these, as stored, are actions of this space. Shape and dtype are known to fit."""
        if self.kind == "discrete":
            if actions.min(initial=0) < 0 or actions.max(initial=0) >= self.n:
                raise UnfitStateError(f"a saved action is none of the {self.n} of this environment")
        elif not np.isfinite(actions).all():
            raise UnfitStateError("a saved action is not finite")

    def to_json(self) -> dict[str, Any]:
        """Plain data for a checkpoint."""
        return asdict(self)

    @staticmethod
    def from_json(data: dict[str, Any]) -> ActionSpec:
        """The inverse of `to_json`."""
        values: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in data.items()}
        return ActionSpec(**values)


@dataclass(frozen=True)
class EnvSpec:
    """What the learner knows of an environment it never builds itself."""

    obs: ObsSpec
    action: ActionSpec

    @property
    def mask(self) -> str | None:
        """Name of the leaf that says which actions are allowed, 1 or 0 for each of n; None where all always are."""
        names = (leaf.name for leaf in self.obs.leaves if self._is_mask(leaf))
        return next(names, None)

    @property
    def inputs(self) -> ObsSpec:
        """What a network sees of an observation: all but the mask."""
        return ObsSpec(tuple(leaf for leaf in self.obs.leaves if not self._is_mask(leaf)))

    def _is_mask(self, leaf: ObsLeaf) -> bool:
        fits = leaf.shape == (self.action.n,) and not leaf.dtype.startswith("float")
        return self.action.kind == "discrete" and leaf.path == (ACTION_MASK,) and fits

    def to_json(self) -> dict[str, Any]:
        """Plain data for a checkpoint."""
        return {"obs": self.obs.to_json(), "action": self.action.to_json()}

    @staticmethod
    def from_json(data: dict[str, Any]) -> EnvSpec:
        """The inverse of `to_json`."""
        return EnvSpec(ObsSpec.from_json(data["obs"]), ActionSpec.from_json(data["action"]))
