"""Converts gymnasium spaces to specs, observations to stored arrays, and stored actions to those of environments.

Spaces are recognised by the name of their class, so that `border_cli.load` needs no gymnasium.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from border_cli.config.convert import nearest, nearest_line
from border_cli.core.errors import UsageError
from border_cli.core.spaces import ACTION_MASK, ActionSpec, Array, EnvSpec, ObsLeaf, ObsSpec

OBSERVATIONS = "Box of any dtype, Discrete, MultiDiscrete, MultiBinary, and Dict and Tuple of these"
ACTIONS = "Discrete, and Box of floats with finite bounds"
CAMERA_SIDE = 36
"""An image whose shorter side has at least so many pixels is one of a camera, not a grid of categories."""


def env_spec(
    observation_space: Any,
    action_space: Any,
    stack: int = 1,
    categories: Mapping[str, Sequence[int]] | None = None,
    root: tuple[str, ...] = (),
) -> EnvSpec:
    """Spec of an environment. Raises UsageError for spaces that no agent takes.

    Args:
        stack: number of observations that are stacked along the first dimension of each box.
        categories: of integer images by `part_name`, one number per channel; see `ObsLeaf`.
        root: path of the environment's own observation, where a wrapper has put it into a Dict.
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
    obs = ObsSpec(_with_categories(leaves, categories or {}, root))
    space, kind = action_space, type(action_space).__name__
    if kind == "Discrete":
        spec = EnvSpec(obs, ActionSpec("discrete", n=int(space.n), start=int(space.start)))
        stray = next((leaf for leaf in obs.leaves if leaf.path == (ACTION_MASK,)), None)
        if stray is not None and spec.mask is None:
            raise UsageError(
                f"the observation's {ACTION_MASK} has shape {stray.shape} and dtype {stray.dtype}\n"
                f"allowed: 0 or 1 for each of {space.n} actions, such as MultiBinary({space.n}) or Box(0, 1, ({space.n},))"
            )
        return spec
    if kind == "Box" and np.dtype(space.dtype).kind == "f" and np.isfinite([space.low, space.high]).all():
        low, high = (tuple(float(v) for v in np.ravel(b)) for b in (space.low, space.high))
        dtype = np.dtype(space.dtype).name
        return EnvSpec(obs, ActionSpec("box", shape=tuple(space.shape), low=low, high=high, dtype=dtype))
    raise UsageError(f"the action space {space} is not one that any agent takes\nallowed: {ACTIONS}")


def part_name(path: Sequence[str | int], root: Sequence[str | int] = ()) -> str:
    """What a user calls a part of an observation: its keys with dots between them, or "obs" for all of it."""
    inner = path[len(root) :] if tuple(path[: len(root)]) == tuple(root) else path
    return ".".join(map(str, inner)) or "obs"


def is_taken(space: Any) -> bool:
    """Whether agents take observations of this space."""
    try:
        return bool(_leaves(space, ()))
    except UsageError:
        return False


def may_hold_categories(leaf: ObsLeaf) -> bool:
    """Whether a leaf is an integer image so small that its values may be categories; larger ones are of a camera."""
    if leaf.kind != "box" or leaf.dtype != "uint8" or len(leaf.row_shape) != 3 or (leaf.high or 0) <= 1:
        return False
    sides = np.delete(leaf.row_shape, leaf.channel_axis)
    return min(leaf.row_shape) > 0 and int(min(sides)) < CAMERA_SIDE


def _with_categories(
    leaves: Sequence[ObsLeaf], categories: Mapping[str, Sequence[int]], root: tuple[str, ...]
) -> tuple[ObsLeaf, ...]:
    images = {part_name(leaf.path, root): leaf for leaf in leaves if may_hold_categories(leaf)}
    for name, sizes in categories.items():
        if name not in images:
            raise UsageError(
                f"env.categories: the observation has no small integer image {name!r}\n"
                f"allowed: {', '.join(images) or 'env.categories={} for these observations'}"
                f"{nearest_line(nearest(name, images))}"
            )
        if not images[name].has_channels(len(sizes)):
            channels = images[name].shape[images[name].channel_axis]
            raise UsageError(
                f"env.categories.{name}={list(sizes)}: the image has {channels} channels\n"
                f"allowed: {channels} numbers of categories"
            )
    coded = {images[name].name: tuple(sizes) for name, sizes in categories.items()}
    return tuple(replace(leaf, categories=coded.get(leaf.name, leaf.categories)) for leaf in leaves)


def encode(leaf: ObsLeaf, values: Array) -> Array:
    """Values (..., *shape) of a leaf as they are stored: counted from 0, with the stored dtype."""
    counted = values - np.reshape(leaf.start, leaf.shape) if leaf.start else values
    return counted.astype(leaf.dtype, copy=False)


def decode_actions(spec: ActionSpec, actions: Array) -> Sequence[Any]:
    """Stored actions (k, ...), each as `env.step` takes it."""
    if spec.kind == "discrete":
        return [action + spec.start for action in actions.tolist()]
    return list(actions.clip(*spec.bounds).astype(spec.dtype))


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
