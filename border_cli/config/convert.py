"""Plain data to the typed configuration and back: the only judge of keys, types and ranges.

Hydra composes YAML and knows no types. What it composed, and what stands in a run's config.yaml, comes
through `to_config`. The right kind in another dress is taken (1e5 for an integer), all else is refused.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import types
import typing
from collections.abc import Iterator, Mapping
from typing import Any

from border_cli.config.options import OptionInfo
from border_cli.config.registry import AGENTS, BUFFERS, Entry
from border_cli.config.schema import TrainConfig
from border_cli.config.suggest import nearest, nearest_key, nearest_line
from border_cli.core.errors import UsageError

RESUME = "resume"
"""A word of the command beside the keys: which run to go on with."""
_LARGEST = 2**63 - 1


class ConfigError(UsageError):
    """A value that the schema refuses; `key` is its dotted name."""

    def __init__(self, key: str, message: str) -> None:
        super().__init__(message)
        self.key = key


def to_config(data: Mapping[str, Any]) -> TrainConfig:
    """Plain data to the typed configuration; what is missing takes the schema's default.

    Raises ConfigError for an unknown key, a wrong type, a value out of range, an unknown agent or buffer.
    """
    config: TrainConfig = _Reader(data).section(TrainConfig, data, "")
    return config


def to_plain(config: TrainConfig) -> dict[str, Any]:
    """The inverse of `to_config`: dicts, lists and scalars, fit for YAML and JSON."""
    return dataclasses.asdict(config)


def dotted(plain: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested maps as one, in their order, with dotted keys; an empty map is a value."""
    flat: dict[str, Any] = {}
    for name, value in plain.items():
        if isinstance(value, Mapping) and value:
            flat |= dotted(value, f"{prefix}{name}.")
        else:
            flat[f"{prefix}{name}"] = value
    return flat


def known_keys(data: Mapping[str, Any]) -> dict[str, OptionInfo]:
    """Every dotted key with its declaration, in schema order; `data` tells which agent and buffer."""
    return dict(_walk(TrainConfig, "", {name: _chosen(name, data.get(name)) for name in _TABLES}))


def all_keys() -> dict[str, OptionInfo]:
    """Every dotted key of any agent and buffer."""
    keys: dict[str, OptionInfo] = {}
    for agent, buffer in itertools.product(AGENTS, BUFFERS):
        keys |= known_keys({"agent": {"type": agent}, "buffer": {"type": buffer}})
    return keys


_TABLES: dict[str, dict[str, Entry]] = {"agent": AGENTS, "buffer": BUFFERS}
"""Sections whose dataclass follows from their `type`."""


def _chosen(name: str, section: Any) -> type:
    """Class of an agent or buffer section as far as it can be told, else what all of them have."""
    table = _TABLES[name]
    kind = section.get("type") if isinstance(section, Mapping) else None
    if isinstance(kind, str) and kind in table:
        return table[kind].config
    base: type = _hints(TrainConfig)[name]
    return base


def _walk(cls: type, path: str, chosen: Mapping[str, type]) -> Iterator[tuple[str, OptionInfo]]:
    for field in dataclasses.fields(cls):
        key = _join(path, field.name)
        info = field.metadata.get("option")
        if info is None:
            yield from _walk(chosen.get(key, _hints(cls)[field.name]), key, chosen)
        else:
            yield key, info


class _Reader:
    """Reads one set of plain data. Holds all of it, because the nearest key may be in another section."""

    def __init__(self, data: Mapping[str, Any]) -> None:
        self._data = data

    def section(self, cls: type, data: Any, path: str) -> Any:
        """An instance of a dataclass from a mapping."""
        if not isinstance(data, Mapping):
            raise ConfigError(
                path, f"{path or 'the configuration'}: {_shown(data)}\nallowed: keys with values"
            )
        fields = {field.name: field for field in dataclasses.fields(cls)}
        for name in data:
            if name not in fields:
                raise self._unknown(_join(path, str(name)), list(fields))
        given = {name: data[name] for name in fields if name in data}
        if cls is TrainConfig:
            given = {name: {} for name in _TABLES} | given  # their class is not that of the schema's default
        return cls(**{name: self._field(cls, fields[name], value, path) for name, value in given.items()})

    def _field(self, cls: type, field: dataclasses.Field[Any], value: Any, path: str) -> Any:
        key, hint = _join(path, field.name), _hints(cls)[field.name]
        info = field.metadata.get("option")
        if info is not None:
            return _value(key, hint, info, value)
        return self.section(_registered(key, value) if key in _TABLES else hint, value, key)

    def _unknown(self, key: str, siblings: list[str]) -> ConfigError:
        parent, _, name = key.rpartition(".")
        having = [kind for kind, entry in _TABLES.get(parent, {}).items() if name in _hints(entry.config)]
        if having:
            chosen = self._data[parent].get("type") or _hints(TrainConfig)[parent].type
            return ConfigError(
                key,
                f"{key}: {parent}={chosen} has no such key\n"
                f"allowed: {key} with {' or '.join(f'{parent}={kind}' for kind in having)}",
            )
        beside = [_join(parent, name) for name in siblings] + ([] if parent else [RESUME])
        match = nearest_key(key, [*beside, *known_keys(self._data)])
        allowed = f"keys of {parent}" if parent else "top-level keys"
        return ConfigError(
            key, f"{key}: there is no such key\n{allowed}: {', '.join(siblings)}{nearest_line(match)}"
        )


def _registered(key: str, section: Any) -> type:
    table = _TABLES[key]
    if not isinstance(section, Mapping):
        raise ConfigError(key, f"{key}: {_shown(section)}\nallowed: keys with values")
    kind = section.get("type") or _hints(TrainConfig)[key].type  # the schema's default, where it has one
    if isinstance(kind, str) and kind in table:
        return table[kind].config
    found = "is missing" if kind == "" else f"nobody registered {kind!r}"
    match = nearest(kind, table) if isinstance(kind, str) else None
    raise ConfigError(f"{key}.type", f"{key}.type: {found}\nallowed: {', '.join(table)}{nearest_line(match)}")


def _value(key: str, hint: Any, info: OptionInfo, value: Any) -> Any:
    """One declared value, of the hint's type and within its bounds."""
    hint, optional = _strip_none(hint)
    if value is None and optional:
        return None
    origin = typing.get_origin(hint)
    try:
        if origin is list:
            return _list(typing.get_args(hint)[0], info, value)
        if origin is dict:
            return _open_map(value)
        return _scalar(hint, info, value)
    except ValueError as e:
        allowed = _allowed(hint, info) + (", or null" if optional else "")
        unit = f" ({info.unit})" if info.unit else ""
        match = nearest(value, info.choices) if isinstance(value, str) else None
        raise ConfigError(
            key, f"{key}: {e}\nallowed: {allowed}{unit}; {info.help}{nearest_line(match)}"
        ) from None


def _list(hint: Any, info: OptionInfo, value: Any) -> list[Any]:
    if not isinstance(value, list | tuple):
        raise ValueError(f"{_shown(value)}, not a list")
    return [_scalar(hint, info, item) for item in value]


def _open_map(value: Any) -> dict[str, Any]:
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
        raise ValueError(f"{_shown(value)}, not keys with values")
    if _has_nan(value):
        raise ValueError("nan equals nothing, not even itself, and cannot be kept with a run")
    return dict(value)


def _has_nan(value: Any) -> bool:
    if isinstance(value, Mapping):
        return any(map(_has_nan, value.values()))
    if isinstance(value, list | tuple):
        return any(map(_has_nan, value))
    return isinstance(value, float) and math.isnan(value)


def _scalar(hint: Any, info: OptionInfo, value: Any) -> Any:
    result = _CONVERTERS[hint](value)
    if info.choices and result not in info.choices:
        raise ValueError(f"there is no {result!r}")
    if not isinstance(result, str | bool):
        _check_bounds(info, result, value)
    return result


def _bool(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError(_shown(value))
    return value


def _int(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(_shown(value))
    if isinstance(value, float) and not value.is_integer():
        raise ValueError(f"{value} is not a whole number")
    if abs(value) > _LARGEST:  # and may have more digits than can be shown
        raise ValueError("a number as large as this is out of range")
    return int(value)


def _float(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(_shown(value))
    if isinstance(value, int):
        return float(_int(value))
    if not math.isfinite(value):
        raise ValueError(f"{value} is not a finite number")
    return value


def _str(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(_shown(value))
    return value


_CONVERTERS: dict[Any, Any] = {bool: _bool, int: _int, float: _float, str: _str}
_KINDS = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}


def _check_bounds(info: OptionInfo, result: float, shown: Any) -> None:
    fits = (
        (info.gt is None or result > info.gt)
        and (info.ge is None or result >= info.ge)
        and (info.lt is None or result < info.lt)
        and (info.le is None or result <= info.le)
    )
    if not fits:
        raise ValueError(f"{shown} is out of range")


def describe_range(info: OptionInfo) -> str:
    """Bounds in words, such as "> 0 and <= 1"; empty without bounds."""
    bounds = ((">", info.gt), (">=", info.ge), ("<", info.lt), ("<=", info.le))
    return " and ".join(f"{sign} {_number(bound)}" for sign, bound in bounds if bound is not None)


def _number(bound: float) -> str:
    return str(bound) if isinstance(bound, int) else f"{bound:g}"


def _allowed(hint: Any, info: OptionInfo) -> str:
    if info.choices:
        return ", ".join(info.choices)
    if typing.get_origin(hint) is dict:
        return "keys with values, such as {name: 1}"
    if typing.get_origin(hint) is list:
        item = typing.get_args(hint)[0]
        return f"a list in brackets, each {_KINDS[item]} {describe_range(info)}".rstrip()
    return f"{_KINDS[hint]} {describe_range(info)}".rstrip()


def _shown(value: Any) -> str:
    """What was given, short enough for one line."""
    if value is None:
        return "null has no meaning here"
    text = " ".join(repr(value).split())
    return f"{text if len(text) <= 60 else text[:57] + '...'} is of the wrong type"


def _strip_none(hint: Any) -> tuple[Any, bool]:
    """`X | None` → (X, True), everything else → (hint, False)."""
    if typing.get_origin(hint) not in (types.UnionType, typing.Union):
        return hint, False
    inner = [arg for arg in typing.get_args(hint) if arg is not types.NoneType]
    return inner[0], True


@functools.cache
def _hints(cls: type) -> dict[str, Any]:
    return typing.get_type_hints(cls)


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
