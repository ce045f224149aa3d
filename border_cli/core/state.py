"""State: what has to be kept of an object so that an equal one can go on in its place.

Every part of a run that lasts says what its state is in this one form, and a checkpoint writes this one form.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from border_cli.core.spaces import Array


@dataclass(frozen=True)
class Block:
    """A piece of a state that is large and grows: rows of a replay.

    name: the same for the same piece in every later state · sealed: it will never change, so that whoever wrote it once
    need not write it again · arrays: makes its content, on demand.
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
    """The inverse of `joined` for one name. Raises ValueError where there is no such part."""
    if not isinstance(state.values.get(name), dict):
        raise ValueError(f"the state has no part {name!r}")
    prefix = f"{name}/"
    arrays = {key.removeprefix(prefix): a for key, a in state.arrays.items() if key.startswith(prefix)}
    return State(arrays, state.values[name])


def check_arrays(given: Mapping[str, Array], expected: Mapping[str, Array], owner: str) -> None:
    """Raise ValueError unless both have the same names, shapes and dtypes."""
    shown_given, shown_expected = (
        {name: (array.shape, array.dtype.name) for name, array in arrays.items()}
        for arrays in (given, expected)
    )
    if shown_given != shown_expected:
        raise ValueError(f"{owner} has {shown_expected}, the saved state {shown_given}")


def require(values: Mapping[str, Any], names: Iterable[str], owner: str) -> None:
    """Raise ValueError unless these values are there."""
    missing = [name for name in names if name not in values]
    if missing:
        raise ValueError(f"the saved state of {owner} has no {', '.join(missing)}")
