"""Converts gymnasium spaces to specs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from gymnasium import spaces

from border_cli.core.errors import UsageError, nearest
from border_cli.core.spaces import ACTION_MASK, ActionSpec, EnvSpec, ObsLeaf, ObsSpec
from border_cli.envs.make import component_sizes

OBSERVATIONS = "Box of any dtype, Discrete, MultiDiscrete, MultiBinary, and Dict and Tuple of these"
ACTIONS = "Discrete, MultiDiscrete, MultiBinary, and Box with finite bounds"
CAMERA_SIDE = 36
"""An image whose shorter side has at least this many pixels comes from a camera and is no grid of categories."""
_MAX_BOUND = 1e9
"""Largest bound of an action; larger ones mean "no bound", such as the greatest number of a dtype."""
_Path = tuple[str | int, ...]


def env_spec(
    observation_space: spaces.Space[Any],
    action_space: spaces.Space[Any],
    stack: int = 1,
    categories: Mapping[str, Sequence[int]] | None = None,
    root: tuple[str, ...] = (),
    keys: Sequence[str] = (),
) -> EnvSpec:
    """Spec of an environment. Raises UsageError for spaces that no agent takes.

    Args:
        stack: number of observations that are stacked along the first dimension of each box.
        categories: of integer images by `part_name`, one number per channel; see `ObsLeaf`.
        root: path of the environment's own observation, where a wrapper has put it into a Dict.
        keys: names of the parts to use, or beginnings of their names; none: all that an agent takes.
    """
    parts = dict(_parts(observation_space))
    leaves = {path: leaf for path, part in parts.items() if (leaf := _leaf(part, path)) is not None}
    left_out = [path for path in parts if path not in leaves]
    if keys:
        chosen, left_out = _chosen(parts, leaves, root, keys), []
        leaves = {path: leaf for path, leaf in leaves.items() if path in chosen or path == (ACTION_MASK,)}
    if not set(leaves) - {(ACTION_MASK,)}:
        about = ", ".join(f"{part_name(path, root)} is a {_kind(parts[path])}" for path in left_out)
        raise UsageError(
            f"the observation space has nothing that an agent takes: {about or 'it is empty'}",
            allowed=OBSERVATIONS,
        )
    stacked = [replace(leaf, stack=stack) if leaf.kind == "box" else leaf for leaf in leaves.values()]
    obs = ObsSpec(_with_categories(stacked, categories or {}, root))
    about_left_out = tuple(f"{part_name(path, root)} ({_kind(parts[path])})" for path in left_out)
    spec = EnvSpec(obs, _action_spec(action_space), about_left_out)
    stray = next((leaf for leaf in obs.leaves if leaf.path == (ACTION_MASK,)), None)
    if spec.action.kind == "discrete" and stray is not None and spec.mask is None:
        n = spec.action.n
        raise UsageError(
            f"the observation's {ACTION_MASK} has shape {stray.shape} and dtype {stray.dtype}",
            allowed=f"0 or 1 for each of {n} actions, such as MultiBinary({n}) or Box(0, 1, ({n},))",
        )
    return spec


def _action_spec(space: spaces.Space[Any]) -> ActionSpec:
    if isinstance(space, spaces.Discrete):
        dtype = np.dtype(space.dtype).name
        return ActionSpec("discrete", n=int(space.n), start=int(space.start), dtype=dtype)
    if isinstance(space, spaces.Box) and space.low.size and np.dtype(space.dtype).kind in "fiu":
        low, high = (tuple(float(v) for v in np.ravel(b)) for b in (space.low, space.high))
        if np.abs([low, high]).max() <= _MAX_BOUND:
            return ActionSpec("box", shape=space.shape, low=low, high=high, dtype=np.dtype(space.dtype).name)
        raise UsageError(
            f"the action space {space} has no finite bounds (±{_MAX_BOUND:g} at most)",
            nearest="'env.wrappers=[{name:BoundActions,kwargs:{low:-1,high:1}}]'",
            allowed="other numbers, or a list with one for each component",
        )
    sizes, dtype = component_sizes(space), np.dtype(space.dtype).name
    if math.prod(sizes):
        start = np.ravel(getattr(space, "start", np.zeros(len(sizes))))
        low, high = (tuple(float(v) for v in bound) for bound in (start, start + sizes - 1))
        return ActionSpec("multi_discrete", max(sizes), 0, tuple(space.shape), low, high, dtype)
    raise UsageError(
        f"the action space {space} is not one that any agent takes",
        allowed=f"{ACTIONS}; a wrapper of yours can give one of these: env.wrappers=[module:name]",
    )


def part_name(path: Sequence[str | int], root: Sequence[str | int] = ()) -> str:
    """What a user calls a part of an observation: its keys with dots between them, or "obs" for all of it."""
    inner = path[len(root) :] if tuple(path[: len(root)]) == tuple(root) else path
    return ".".join(map(str, inner)) or "obs"


def may_hold_categories(leaf: ObsLeaf) -> bool:
    """Whether a leaf is an integer image so small that its values may be categories."""
    if leaf.kind != "box" or leaf.dtype != "uint8" or len(leaf.row_shape) != 3 or (leaf.high or 0) <= 1:
        return False
    sides = np.delete(leaf.row_shape, leaf.channel_axis)
    return int(min(sides)) < CAMERA_SIDE


def _with_categories(
    leaves: Sequence[ObsLeaf], categories: Mapping[str, Sequence[int]], root: tuple[str, ...]
) -> tuple[ObsLeaf, ...]:
    images = {part_name(leaf.path, root): leaf for leaf in leaves if may_hold_categories(leaf)}
    for name, sizes in categories.items():
        if name not in images or images[name].shape[images[name].channel_axis] != len(sizes):
            raise UsageError(
                f"env.categories: the observation has no small integer image {name!r} of {len(sizes)} channels",
                nearest=nearest(name, images),
                allowed=[*images] or "env.categories={} for these observations",
            )
    coded = {images[name].name: tuple(sizes) for name, sizes in categories.items()}
    return tuple(replace(leaf, categories=coded.get(leaf.name, leaf.categories)) for leaf in leaves)


def _chosen(
    parts: Mapping[_Path, Any], taken: Mapping[_Path, ObsLeaf], root: tuple[str, ...], keys: Sequence[str]
) -> set[_Path]:
    """Paths of the parts that `env.obs_keys` names. Raises UsageError."""
    chosen = set[_Path]()
    allowed = [part_name(path, root) for path in taken if path != (ACTION_MASK,)]
    for key in keys:
        named = {path for path in parts if f"{part_name(path, root)}.".startswith(f"{key}.")}
        if not named:
            raise UsageError(
                f"env.obs_keys: there is no {key!r}", nearest=nearest(key, allowed), allowed=allowed
            )
        if refused := [path for path in parts if path in named - set(taken)]:
            problem = f"{part_name(refused[0], root)!r} is a {_kind(parts[refused[0]])}, which no agent takes"
            raise UsageError(f"env.obs_keys: {problem}", allowed=allowed)
        chosen |= named
    return chosen


def _parts(space: spaces.Space[Any], path: _Path = ()) -> list[tuple[_Path, spaces.Space[Any]]]:
    """The spaces in a Dict or Tuple, and in those within it, with the keys that lead to them.

    A Tuple without any part that an agent takes, such as a stack of texts, is one part.
    """
    within: list[tuple[_Path, spaces.Space[Any]]] = []
    if isinstance(space, spaces.Dict | spaces.Tuple):
        keys = space.spaces if isinstance(space, spaces.Dict) else range(len(space.spaces))
        within = [part for key in keys for part in _parts(space.spaces[key], (*path, key))]
    if isinstance(space, spaces.Dict) or any(_leaf(part, at) for at, part in within):
        return within
    return [(path, space)]


def _kind(space: spaces.Space[Any]) -> str:
    """What a user calls a space; with the module of a class that is not gymnasium's, such as one of the old gym."""
    kind = type(space)
    name = kind.__name__ if isinstance(space, spaces.Space) else f"{kind.__module__}.{kind.__name__}"
    return f"{name} of shape {space.shape}" if 0 in (space.shape or ()) else name


def _leaf(space: spaces.Space[Any], path: _Path) -> ObsLeaf | None:
    """The leaf of a space that is neither a Dict nor a Tuple; None where no agent takes it, or where it is empty."""
    name, shape = ".".join(["obs", *map(str, path)]), tuple(space.shape or ())
    if 0 in shape:
        return None
    if isinstance(space, spaces.Box):
        dtype, low, high = np.dtype(space.dtype), float(np.min(space.low)), float(np.max(space.high))
        if dtype.kind == "f":
            dtype = np.dtype("float32")
        elif dtype.kind in "iub" and low >= 0 and high <= 255:
            dtype = np.dtype("uint8")  # kept small until the network, which scales by the bounds
        least, greatest = (bound if np.isfinite(bound) else None for bound in (low, high))
        return ObsLeaf(name, path, "box", shape, dtype.name, least, greatest)
    if isinstance(space, spaces.MultiBinary):
        return ObsLeaf(name, path, "multi_binary", shape, "uint8", low=0.0, high=1.0)
    if not isinstance(space, spaces.Discrete | spaces.MultiDiscrete):
        return None
    is_single = isinstance(space, spaces.Discrete)
    sizes = np.ravel(space.n if is_single else space.nvec)
    categories, start = (tuple(int(n) for n in np.ravel(a)) for a in (sizes, space.start))
    kind = "discrete" if is_single else "multi_discrete"
    return ObsLeaf(name, path, kind, shape, "int64", categories=categories, start=start)
