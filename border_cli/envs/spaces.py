"""Gymnasium spaces to specs, observations to arrays and back.

Spaces are recognised by the name of their class, so that coding an observation needs no gymnasium.
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
    """Spec of an environment. Raises UsageError with the list of what is allowed.

    stack: so many observations are one in this space, along the first dimension of each box.
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
    return EnvSpec(ObsSpec(tuple(leaves)), _action(action_space))


def part_of(leaf: ObsLeaf, observation: Any) -> Any:
    """The part of an observation that a leaf is about."""
    for key in leaf.path:
        observation = observation[key]
    return observation


def leaf_value(leaf: ObsLeaf, observation: Any) -> Array:
    """One leaf of one observation, as stored. Raises ValueError when its shape is not the space's."""
    value = np.asarray(part_of(leaf, observation))
    if leaf.start:
        value = value - np.asarray(leaf.start).reshape(leaf.shape)
    if value.shape != leaf.shape:
        raise ValueError(f"observation {leaf.name!r} has shape {value.shape}, its space says {leaf.shape}")
    return value.astype(leaf.dtype, copy=False)


def decode_action(spec: ActionSpec, action: Array) -> Any:
    """One stored action → what `env.step` takes."""
    if spec.kind == "discrete":
        return int(action) + spec.start
    low, high = (np.asarray(b).reshape(spec.shape) for b in (spec.low, spec.high))
    return np.clip(action, low, high).astype(spec.dtype)


def _leaves(space: Any, path: tuple[str | int, ...]) -> list[ObsLeaf]:
    kind = type(space).__name__
    if kind == "Dict":
        return [leaf for key, sub in space.spaces.items() for leaf in _leaves(sub, (*path, key))]
    if kind == "Tuple":
        return [leaf for key, sub in enumerate(space.spaces) for leaf in _leaves(sub, (*path, key))]
    name = ".".join(["obs", *map(str, path)])
    makers = {
        "Box": _box,
        "Discrete": _discrete,
        "MultiDiscrete": _multi_discrete,
        "MultiBinary": _multi_binary,
    }
    if kind not in makers:
        where = f" at {'.'.join(map(str, path))!r}" if path else ""
        raise UsageError(
            f"the observation space{where} is a {kind}, which no agent takes\nallowed: {OBSERVATIONS}"
        )
    return [makers[kind](name, path, space)]


def _box(name: str, path: tuple[str | int, ...], space: Any) -> ObsLeaf:
    dtype = np.dtype(space.dtype)
    low, high = float(np.min(space.low)), float(np.max(space.high))
    if dtype.kind == "f":
        dtype = np.dtype("float32")
    elif dtype.kind in "iub" and low >= 0 and high <= 255:
        dtype = np.dtype("uint8")  # kept small until the network, which scales by the bounds
    least, greatest = (bound if np.isfinite(bound) else None for bound in (low, high))
    return ObsLeaf(name, path, "box", tuple(space.shape), dtype.name, least, greatest)


def _discrete(name: str, path: tuple[str | int, ...], space: Any) -> ObsLeaf:
    return ObsLeaf(name, path, "discrete", (), "int64", categories=(int(space.n),), start=(int(space.start),))


def _multi_discrete(name: str, path: tuple[str | int, ...], space: Any) -> ObsLeaf:
    categories = tuple(int(n) for n in np.ravel(space.nvec))
    start = tuple(int(s) for s in np.ravel(getattr(space, "start", np.zeros_like(space.nvec))))
    return ObsLeaf(
        name, path, "multi_discrete", tuple(space.shape), "int64", categories=categories, start=start
    )


def _multi_binary(name: str, path: tuple[str | int, ...], space: Any) -> ObsLeaf:
    return ObsLeaf(name, path, "multi_binary", tuple(space.shape), "uint8", low=0.0, high=1.0)


def _action(space: Any) -> ActionSpec:
    kind = type(space).__name__
    if kind == "Discrete":
        return ActionSpec("discrete", n=int(space.n), start=int(space.start))
    if kind == "Box" and np.dtype(space.dtype).kind == "f" and np.all(np.isfinite([space.low, space.high])):
        low, high = (tuple(float(v) for v in np.ravel(b)) for b in (space.low, space.high))
        return ActionSpec(
            "box", shape=tuple(space.shape), low=low, high=high, dtype=np.dtype(space.dtype).name
        )
    raise UsageError(f"the action space {space} is not one that any agent takes\nallowed: {ACTIONS}")
