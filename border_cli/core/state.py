"""State: what has to be kept of an object so that an equal one can go on in its place.

Every part of a run that lasts says what its state is in this one form, and a checkpoint writes this one form.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from border_cli.core.errors import UnfitStateError
from border_cli.core.spaces import Array

MAX_COUNT = 2**62
"""No run ever counts so far, and sums of a few such counts still fit in 64 bits."""
_SHOWN = 60


@dataclass(frozen=True)
class Block:
    """A piece of a state that is large and grows: rows of a replay.

    name: the same for the same piece in every later state · sealed: it is whole, and the same in every later state in
    which it is sealed, so that whoever wrote it once need not write it again; one that has lost rows is not sealed ·
    arrays: makes its content, on demand.
    """

    name: str
    sealed: bool
    arrays: Callable[[], dict[str, Array]]


@dataclass
class State:
    """Arrays by name, plain JSON values, and blocks in their order. Nothing in it depends on clock, host or process.

    The arrays may be views of what goes on changing: write them out first.
    """

    arrays: dict[str, Array] = field(default_factory=dict)
    values: dict[str, Any] = field(default_factory=dict)
    blocks: tuple[Block, ...] = ()

    def copy(self) -> State:
        """One whose arrays are its own. Values are shared, as nobody changes them in place."""
        return State({name: array.copy() for name, array in self.arrays.items()}, self.values, self.blocks)


@dataclass
class RunState:
    """All that a run has to go on from, but its configuration.

    agent: what it learns · replay: None where it is not kept · actors: seats, streams, environments · waiting: models
    that wait for their evaluation · loop: limiter, intervals, scores, positions of the recorders · generators: by the
    name of what draws from them.
    """

    agent: State
    replay: State | None
    actors: State
    waiting: State
    loop: dict[str, Any]
    generators: dict[str, Any]


def joined(states: Mapping[str, State]) -> State:
    """Several states as one, each under its name. Without blocks: a part that has some is a part of its own."""
    arrays = {f"{name}/{key}": a for name, state in states.items() for key, a in state.arrays.items()}
    return State(arrays, {name: state.values for name, state in states.items()})


def section(state: State, name: str) -> State:
    """The inverse of `joined` for one name. Raises UnfitStateError where there is no such part."""
    if not isinstance(state.values.get(name), dict):
        raise UnfitStateError(f"the state has no part {name!r}")
    prefix = f"{name}/"
    arrays = {key.removeprefix(prefix): a for key, a in state.arrays.items() if key.startswith(prefix)}
    return State(arrays, state.values[name])


def check_arrays(given: Mapping[str, Array], expected: Mapping[str, Array], owner: str) -> None:
    """Raise UnfitStateError unless both have the same names, shapes and dtypes."""
    for name in sorted(given.keys() | expected.keys()):
        shown_given, shown_expected = (_shape_of(arrays.get(name)) for arrays in (given, expected))
        if shown_given != shown_expected:
            raise UnfitStateError(f"{owner} has {name} as {shown_expected}, the saved state {shown_given}")


def _shape_of(array: Array | None) -> str:
    return "none" if array is None else f"{array.dtype.name} {list(array.shape)}"


def require(values: Any, names: Iterable[str], owner: str) -> None:
    """Raise UnfitStateError unless this is an object with these values."""
    if not isinstance(values, Mapping):
        raise UnfitStateError(f"the saved state of {owner} is none")
    missing = [name for name in names if name not in values]
    if missing:
        raise UnfitStateError(f"the saved state of {owner} has no {', '.join(missing)}")


def count(value: Any, what: str, most: int = MAX_COUNT) -> int:
    """A saved count. Raises UnfitStateError for what is none, or more than `most`."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise UnfitStateError(f"{what} is {_shown(value)}, not a count")
    if value > most:
        raise UnfitStateError(f"{what} is {value}, more than {most}")
    return value


def number(value: Any, what: str) -> float:
    """A saved number; one that was not finite was written as null, and is NaN. Raises UnfitStateError for what is none."""
    if value is None:
        return math.nan
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise UnfitStateError(f"{what} is {_shown(value)}, not a number")
    return float(value)


def flag(value: Any, what: str) -> bool:
    """A saved yes or no. Raises UnfitStateError for what is neither."""
    if not isinstance(value, bool):
        raise UnfitStateError(f"{what} is {_shown(value)}, neither true nor false")
    return value


def listed(value: Any, what: str, n: int | None = None) -> list[Any]:
    """A saved list, of n values if that is given. Raises UnfitStateError for what is none."""
    if not isinstance(value, list) or (n is not None and len(value) != n):
        raise UnfitStateError(f"{what} is {_shown(value)}, not a list{'' if n is None else f' of {n}'}")
    return value


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
