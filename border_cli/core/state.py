"""State: what a component of a run saves so that an equal component can continue in another process; and saved JSON.

Every component gives its state in this form, and a checkpoint stores this form.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from border_cli.core.errors import IncompatibleStateError
from border_cli.core.spaces import Array

_SHOWN = 60


@dataclass(frozen=True)
class Block:
    """A large piece of a state that grows: rows of a replay. It keeps its name in every later state.

    sealed: it is full, and equal in every later state in which it is sealed, so that it is written only once. A block
    that has lost rows is not sealed.
    """

    name: str
    sealed: bool
    arrays: Callable[[], dict[str, Array]]


@dataclass
class State:
    """Arrays by name, plain JSON values, and blocks in order. Nothing in it depends on the clock, the host or a process.

    The arrays may be views of data that changes: write them before training continues.
    """

    arrays: dict[str, Array] = field(default_factory=dict)
    values: dict[str, Any] = field(default_factory=dict)
    blocks: tuple[Block, ...] = ()


@dataclass
class RunState:
    """Everything that a resumed run needs besides its configuration.

    agent: all of the agent · replay: None if it is not saved · actors: counts, streams, environments · evaluation:
    scores, the best model, models that wait for their evaluation · loop: limiter, pending stages, positions of the
    recorders · generators: the random generators, by their user.
    """

    agent: State
    replay: State | None
    actors: State
    evaluation: State
    loop: dict[str, Any]
    generators: dict[str, Any]


def joined(states: Mapping[str, State]) -> State:
    """Join several states, none of which has blocks, into one. Each keeps its name as a prefix."""
    arrays = {f"{name}/{key}": a for name, state in states.items() for key, a in state.arrays.items()}
    return State(arrays, {name: state.values for name, state in states.items()})


def section(state: State, name: str) -> State:
    """The inverse of `joined` for one name. Raises IncompatibleStateError where there is no such part."""
    if not isinstance(state.values.get(name), dict):
        raise IncompatibleStateError(f"the state has no part {name!r}")
    return State(section_arrays(state, name), state.values[name])


def section_arrays(state: State, name: str) -> dict[str, Array]:
    """The arrays of one part of a joined state."""
    prefix = f"{name}/"
    return {key.removeprefix(prefix): a for key, a in state.arrays.items() if key.startswith(prefix)}


def check_like(saved: State, fresh: State, owner: str, growing: Collection[str] = ()) -> None:
    """Check that a saved state has the keys, kinds and shapes of the state of a fresh part.

    Args:
        fresh: the state of a new part with the same configuration. A None or an empty list in it matches
            anything; a list of another length must hold elements like its first.
        growing: names of arrays whose first dimension may differ.

    Raises IncompatibleStateError with the first difference.
    """
    for name in sorted(saved.arrays.keys() | fresh.arrays.keys()):
        first = 1 if name in growing else 0
        saved_as, expected = (
            "none" if array is None else f"{array.dtype.name} {list(array.shape[first:])}"
            for array in (saved.arrays.get(name), fresh.arrays.get(name))
        )
        if saved_as != expected:
            raise IncompatibleStateError(f"{owner} has {name} as {expected}, the saved state {saved_as}")
    _check_value(saved.values, fresh.values, owner)


def _check_value(saved: Any, fresh: Any, where: str) -> None:
    if fresh is None:
        return
    kind = type(fresh)
    if isinstance(fresh, float):  # a number that is not finite is saved as null
        fits = isinstance(saved, int | float | None) and not isinstance(saved, bool)
    else:
        fits = type(saved) is kind
    if not fits:
        text = repr(saved)
        shown = text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
        raise IncompatibleStateError(f"{where} is {shown} in the saved state, not of type {kind.__name__}")
    if isinstance(fresh, dict):
        if different := sorted(map(str, saved.keys() ^ fresh.keys())):
            raise IncompatibleStateError(f"the saved state of {where} differs in {', '.join(different)}")
        for key, value in fresh.items():
            _check_value(saved[key], value, f"{where}: {key}")
    if isinstance(fresh, list) and fresh:
        examples = fresh if len(saved) == len(fresh) else [fresh[0]] * len(saved)
        for value, example in zip(saved, examples, strict=True):
            _check_value(value, example, where)


MAX_JSON_BYTES = 8 * 2**20
"""A larger file is not read. No JSON file of a run reaches this size."""


def to_json(data: Any) -> bytes:
    """Plain data as indented UTF-8 text with sorted keys, numbers that are not finite as null."""
    text = json.dumps(finite_or_null(data), sort_keys=True, indent=2, allow_nan=False, ensure_ascii=False)
    return f"{text}\n".encode("utf-8", "backslashreplace")  # JSON's escapes for paths that are not UTF-8


def from_json(text: bytes) -> Any:
    """The inverse of `to_json`. Raises ValueError for no JSON, a key that comes twice, and more than MAX_JSON_BYTES."""
    if len(text) > MAX_JSON_BYTES:
        raise ValueError(f"it is larger than {MAX_JSON_BYTES} bytes")

    def object_of(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len(data := dict(pairs)) < len(pairs):  # a flipped bit can make two keys equal
            raise ValueError("it has a key twice")
        return data

    try:
        return json.loads(text.decode("utf-8"), object_pairs_hook=object_of)
    except RecursionError as e:
        raise ValueError("nested too deeply") from e


def finite_or_null(data: Any) -> Any:
    """A copy of plain data in which every number that is not finite is None. Tuples become lists."""
    if isinstance(data, float):
        return data if math.isfinite(data) else None
    if isinstance(data, Mapping):
        return {key: finite_or_null(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [finite_or_null(value) for value in data]
    return data


def number(value: float | None) -> float:
    """A saved number, NaN for null."""
    return math.nan if value is None else float(value)
