"""Converts gymnasium spaces to specs, observations to stored arrays, and stored actions to those of environments.

Spaces are recognised by the name of their class, so that `border_cli.load` needs no gymnasium.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from border_cli.core.errors import UsageError
from border_cli.core.spaces import ActionSpec, Array, EnvSpec, ObsLeaf, ObsSpec

OBSERVATIONS = "Box of any dtype, Discrete, MultiDiscrete, MultiBinary, and Dict and Tuple of these"
ACTIONS = "Discrete, and Box with finite bounds"


def env_spec(observation_space: Any, action_space: Any, stack: int = 1) -> EnvSpec:
    """Spec of an environment. Raises UsageError for spaces that no agent takes.

    stack: number of observations that are stacked along the first dimension of each box.
    """
    leaves = [
        replace(leaf, stack=stack) if leaf.kind == "box" else leaf for leaf in _leaves(observation_space, ())
    ]
    names = [leaf.name for leaf in leaves]
    if not names or len(set(names)) < len(names):
        problem = "is empty" if not names else f"has two parts called {max(names, key=names.count)}"
        raise UsageError(
            f"the observation space {problem}\nallowed: {OBSERVATIONS}, with keys that tell them apart"
        )
    obs, space, kind = ObsSpec(tuple(leaves)), action_space, type(action_space).__name__
    if kind == "Discrete":
        return EnvSpec(obs, ActionSpec("discrete", n=int(space.n), start=int(space.start)))
    if kind == "Box" and np.dtype(space.dtype).kind == "f" and np.isfinite([space.low, space.high]).all():
        low, high = (tuple(float(v) for v in np.ravel(b)) for b in (space.low, space.high))
        dtype = np.dtype(space.dtype).name
        return EnvSpec(obs, ActionSpec("box", shape=tuple(space.shape), low=low, high=high, dtype=dtype))
    raise UsageError(f"the action space {space} is not one that any agent takes\nallowed: {ACTIONS}")


def encode(leaf: ObsLeaf, values: Array) -> Array:
    """Values (..., *shape) of a leaf as they are stored: counted from 0, with the stored dtype."""
    counted = values - np.reshape(leaf.start, leaf.shape) if leaf.start else values
    return counted.astype(leaf.dtype, copy=False)


def decode_action(spec: ActionSpec, action: Array) -> Any:
    """One stored action as `env.step` takes it."""
    if spec.kind == "discrete":
        return int(action) + spec.start
    low, high = (np.asarray(b).reshape(spec.shape) for b in (spec.low, spec.high))
    return np.clip(action, low, high).astype(spec.dtype)


def _leaves(space: Any, path: tuple[str | int, ...]) -> list[ObsLeaf]:
    """The leaves of a space that is found under this path of keys."""
    kind = type(space).__name__
    if kind in ("Dict", "Tuple"):
        parts = space.spaces.items() if kind == "Dict" else enumerate(space.spaces)
        return [leaf for key, part in parts for leaf in _leaves(part, (*path, key))]
    name, shape = ".".join(["obs", *map(str, path)]), tuple(space.shape or ())
    if kind == "Box":
        dtype, low, high = np.dtype(space.dtype), float(np.min(space.low)), float(np.max(space.high))
        if dtype.kind == "f":
            dtype = np.dtype("float32")
        elif dtype.kind in "iub" and low >= 0 and high <= 255:
            dtype = np.dtype("uint8")  # kept small until the network, which scales by the bounds
        least, greatest = (bound if np.isfinite(bound) else None for bound in (low, high))
        return [ObsLeaf(name, path, "box", shape, dtype.name, least, greatest)]
    if kind == "MultiBinary":
        return [ObsLeaf(name, path, "multi_binary", shape, "uint8", low=0.0, high=1.0)]
    if kind not in ("Discrete", "MultiDiscrete"):
        where = f" at {'.'.join(map(str, path))!r}" if path else ""
        raise UsageError(
            f"the observation space{where} is a {kind}, which no agent takes\nallowed: {OBSERVATIONS}"
        )
    sizes = np.ravel(space.n if kind == "Discrete" else space.nvec)
    categories, start = (tuple(int(n) for n in np.ravel(a)) for a in (sizes, space.start))
    leaf_kind = "discrete" if kind == "Discrete" else "multi_discrete"
    return [ObsLeaf(name, path, leaf_kind, shape, "int64", categories=categories, start=start)]
