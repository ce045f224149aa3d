"""Declaring one configuration value: its default, unit, range and meaning, in one line of a dataclass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any


@dataclass(frozen=True)
class OptionInfo:
    """What the checks and the help know of one value.

    unit: "env steps", "opt steps", "s", "bytes" … or "" · gt, ge, lt, le: bounds, None where there is none ·
    choices: allowed strings, empty for any · open_map: a dict whose keys are the user's.
    """

    help: str
    unit: str = ""
    gt: float | None = None
    ge: float | None = None
    lt: float | None = None
    le: float | None = None
    choices: tuple[str, ...] = ()
    open_map: bool = False


def option(
    default: Any,
    help: str,
    *,
    unit: str = "",
    gt: float | None = None,
    ge: float | None = None,
    lt: float | None = None,
    le: float | None = None,
    choices: Sequence[str] = (),
    open_map: bool = False,
) -> Any:
    """A dataclass field with an OptionInfo. Lists and dicts are copied for each instance."""
    info = OptionInfo(help, unit, gt, ge, lt, le, tuple(choices), open_map)
    if isinstance(default, list | dict):
        return field(default_factory=lambda: type(default)(default), metadata={"option": info})
    return field(default=default, metadata={"option": info})


def like(cls: type, name: str, default: Any) -> Any:
    """The field of that name of a dataclass, with another default."""
    (found,) = (one for one in fields(cls) if one.name == name)
    return field(default=default, metadata=found.metadata)
