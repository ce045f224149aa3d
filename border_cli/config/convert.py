"""Plain data to the typed configuration and back, YAML files, and the nearest key for a misspelt one.

Hydra composes YAML and knows no types. Everything that it composed, and every config.yaml of a run, is read by
`to_config`, which checks keys, types and ranges. A value of the right kind in another notation is converted (1e5 for an
integer); anything else is refused.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import operator
import re
import typing
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from border_cli.config.registry import IMPORTABLE, TABLES, find, nearest_path
from border_cli.config.schema import OptionInfo, TrainConfig, WrapperConfig
from border_cli.core.errors import UsageError, first_line, nearest

# -- keys ----------------------------------------------------------------


def nearest_key(key: str, known: Iterable[str]) -> str | None:
    """The known dotted key that was probably meant by `key`.

    It is, in this order: one of the same section; the only one of the same section with this word in its name; one of
    another section with this name.
    """
    keys = [name for name in known if not name.startswith("preset.")]
    parent, _, leaf = key.rpartition(".")
    anywhere = {name.rpartition(".")[2]: name for name in reversed(keys)}  # the first declared of equal names
    beside = {name.rpartition(".")[2]: name for name in keys if name.rpartition(".")[0] == parent}
    if match := nearest(leaf, beside):
        return beside[match]
    longer = [full for name, full in beside.items() if leaf in name.split("_")]
    if len(longer) == 1:
        return longer[0]
    return anywhere.get(nearest(leaf, anywhere, cutoff=0.85) or "")


# -- YAML ----------------------------------------------------------------


def dump(data: Any) -> str:
    """Plain data as YAML text, keys in the order given."""
    return str(yaml.safe_dump(data, sort_keys=False, allow_unicode=True, width=110))


def load(path: Path) -> Any:
    """Plain data of a YAML file. Raises UsageError with file and line when it is not YAML, OSError as it is."""
    try:
        return yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, ValueError, RecursionError) as e:  # ValueError: a date that does not exist
        raise UsageError(f"{path}: not valid YAML\n{describe(e)}") from e


def describe(error: Exception) -> str:
    """One line that says what is wrong with a YAML text, and where."""
    mark = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None) or first_line(error)
    return f"line {mark.line + 1}: {problem}" if mark else str(problem)


# -- the typed configuration ---------------------------------------------

_LARGEST = 2**63 - 1
T = typing.TypeVar("T")
_COMPARISONS = {">": operator.gt, ">=": operator.ge, "<": operator.lt, "<=": operator.le}


def to_config(data: Mapping[str, Any]) -> TrainConfig:
    """Plain data to the typed configuration; what is missing takes the schema's default.

    Raises UsageError for an unknown key, a wrong type, a value out of range, an unknown `type` of a section.
    """
    classes = {group: _section_class(group, data.get(group, {})) for group in TABLES}
    # the class of a section that is missing is not the one of the schema's default
    return read_section(TrainConfig, {group: {} for group in TABLES} | dict(data), "", classes)


def to_plain(config: TrainConfig) -> dict[str, Any]:
    """The inverse of `to_config`: dicts, lists and scalars, fit for YAML and JSON."""
    return dataclasses.asdict(config)


def with_auto(plain: Mapping[str, Any]) -> dict[str, Any]:
    """A plain configuration in which what is left open is `auto`, as it is typed."""
    copy: dict[str, Any] = json.loads(json.dumps(plain))
    for key, info in known_keys(plain).items():
        *path, name = key.split(".")
        section = functools.reduce(operator.getitem, path, copy)
        if info.auto and section[name] is None:
            section[name] = "auto"
    return copy


def default_values(data: Mapping[str, Any]) -> dict[str, Any]:
    """The schema's defaults as plain data; the `type` of each section in `data`, if any, decides its keys."""
    kinds = {"agent": {"type": next(iter(TABLES["agent"]))}}
    for group in TABLES:
        section = data.get(group)
        if isinstance(section, Mapping) and section.get("type") in TABLES[group]:
            kinds[group] = {"type": section["type"]}
    return to_plain(to_config(kinds))


def as_typed(value: Any) -> str:
    """A value as it is typed on the command line."""
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    if isinstance(value, list):
        return f"[{','.join(map(as_typed, value))}]"
    if isinstance(value, dict):
        return "{" + ",".join(f"{name}:{as_typed(item)}" for name, item in value.items()) + "}"
    return str(value)


def dotted(plain: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested maps as one, in their order, with dotted keys; an empty map is a value."""
    flat: dict[str, Any] = {}
    for name, value in plain.items():
        if isinstance(value, Mapping) and value:
            flat |= dotted(value, f"{prefix}{name}.")
        else:
            flat[f"{prefix}{name}"] = value
    return flat


def known_fields(data: Mapping[str, Any], cls: type = TrainConfig) -> dict[str, dataclasses.Field[Any]]:
    """Every dotted key of a dataclass of options with its field, in schema order.

    data: the `type` of each section in it decides the keys of that section.
    """
    classes = {group: _section_class(group, data[group]) for group in TABLES if group in data}
    return dict(_walk(cls, "", classes))


def known_keys(data: Mapping[str, Any], cls: type = TrainConfig) -> dict[str, OptionInfo]:
    """Every dotted key with its `OptionInfo`. Arguments as for `known_fields`."""
    return {key: field.metadata["option"] for key, field in known_fields(data, cls).items()}


def all_keys() -> dict[str, OptionInfo]:
    """Every dotted key of any kind of section."""
    keys = known_keys({})
    for group, table in TABLES.items():
        for name in table:
            keys |= known_keys({group: {"type": name}})
    return keys


def _walk(cls: type, path: str, classes: Mapping[str, type]) -> Iterator[tuple[str, dataclasses.Field[Any]]]:
    for field in dataclasses.fields(cls):
        key = f"{path}{field.name}"
        if "option" in field.metadata:
            yield key, field
        else:
            yield from _walk(classes.get(key, _hints(cls)[field.name]), f"{key}.", classes)


# -- sections ------------------------------------------------------------


def _section_class(group: str, section: Any) -> type:
    """The dataclass of a section that has a `type`."""
    if not isinstance(section, Mapping):
        raise UsageError(f"{group}: {_wrong_type(section)}", allowed="keys with values")
    kind = section.get("type") or _hints(TrainConfig)[group].type  # the schema's default, where it has one
    entry = find(group, kind) if isinstance(kind, str) else None
    if entry is not None:
        return entry.config
    problem = "is missing" if kind == "" else f"there is no {kind!r}"
    match = nearest(kind, TABLES[group]) if isinstance(kind, str) else None
    allowed = [*TABLES[group], *(["module:name"] if group in IMPORTABLE else [])]
    raise UsageError(f"{group}.type: {problem}", nearest=match, allowed=allowed)


def read_section(cls: type[T], data: Any, path: str, classes: Mapping[str, type] | None = None) -> T:
    """An instance of a dataclass of options. path: its key · classes: of sections, by their keys. Raises UsageError."""
    classes, kind = classes or {}, typing.cast(Any, cls)
    if not isinstance(data, Mapping):
        raise UsageError(f"{path or 'the configuration'}: {_wrong_type(data)}", allowed="keys with values")
    fields = {field.name: field for field in dataclasses.fields(kind)}
    values = {}
    for name, value in data.items():
        key = f"{path}.{name}" if path else str(name)
        if name not in fields:
            raise _unknown(key, list(fields), classes)
        hint, info = _hints(kind)[name], fields[name].metadata.get("option")
        if info is None:
            values[name] = read_section(classes.get(key, hint), value, key, classes)
        else:
            values[name] = _value(key, hint, info, value)
    return cls(**values)


def _unknown(key: str, siblings: list[str], classes: Mapping[str, type]) -> UsageError:
    parent, _, name = key.rpartition(".")
    having = [kind for kind, entry in TABLES.get(parent, {}).items() if name in _hints(entry.config)]
    if having:
        problem = f"{parent}={classes[parent]().type} has no such key"
        allowed = f"{key} with {' or '.join(f'{parent}={kind}' for kind in having)}"
        return UsageError(f"{key}: {problem}", allowed=allowed)
    beside = [f"{parent}.{sibling}" for sibling in siblings] if parent else [*siblings, "resume"]
    match = nearest_key(key, [*beside, *dict(_walk(TrainConfig, "", classes))])
    if match is None and (longer := [f"{parent}.{s}" for s in siblings if name in s.split("_")]):
        beside = longer
    groups = [] if parent else [f"--config-dir DIR, with DIR/{name}/<option>.yaml, for a group of your own"]
    return UsageError(f"{key}: there is no such key", nearest=match, allowed=[*beside, *groups])


@functools.cache
def _hints(cls: type) -> dict[str, Any]:
    return typing.get_type_hints(cls)


# -- values --------------------------------------------------------------


def _value(key: str, hint: Any, info: OptionInfo, value: Any) -> Any:
    """One declared value, of the hint's type and within its bounds."""
    optional = type(None) in typing.get_args(hint)  # the schema's only union: `X | None`
    if optional and (value is None or (value == "auto" and info.auto)):
        return None
    kind = typing.get_args(hint)[0] if optional else hint
    try:
        return _convert(kind, info, value)
    except ValueError as e:
        allowed = ", ".join(info.choices) or f"{_kind_name(kind)} {describe_range(info)}".rstrip()
        allowed += ", or an import path module:name" if info.path else ""
        allowed += ", or auto" if info.auto else ", or null" if optional else ""
        unit = "s, or as 90s, 30min, 2h" if info.unit == "s" else info.unit
        allowed += f" ({unit})" if unit else ""
        match = nearest(value, info.choices) if isinstance(value, str) else None
        if info.path and match is None:
            match = nearest_path(str(value))  # module:name for module.name
        if isinstance(value, list) and typing.get_origin(kind) is None:
            match = f"-m {key}={','.join(map(as_typed, value))}, a run for each value"
        about = "" if info.choices else f"; {info.help}"  # a list of names says enough
        raise UsageError(f"{key}: {e}", nearest=match, allowed=allowed + about) from None


def _kind_name(hint: Any) -> str:
    if typing.get_origin(hint) is dict:
        items = typing.get_origin(typing.get_args(hint)[1]) is list
        example = f"{{name: {[1, 2] if items else 1}}}"
        return f"keys with values, such as {example}, which a shell needs in quotes"
    if typing.get_origin(hint) is list:
        return f"a list in brackets, each {_kind_name(typing.get_args(hint)[0])}"
    if hint is WrapperConfig:
        return "a name, or {name: …, kwargs: {…}}"
    return {bool: "true or false", int: "a whole number", float: "a number", str: "text"}[hint]


def _convert(hint: Any, info: OptionInfo, value: Any) -> Any:
    """The value as the type of the hint. Raises ValueError."""
    kind = typing.get_origin(hint) or hint
    if kind is dict:
        of_items = typing.get_args(hint)[1]
        open_map = _open_map(value)
        return open_map if of_items is Any else {k: _convert(of_items, info, v) for k, v in open_map.items()}
    if kind is list:
        if value is None:
            raise ValueError(f"{_wrong_type(value)}, not a list")
        items = value if isinstance(value, list | tuple) else [value]
        return [_convert(typing.get_args(hint)[0], info, item) for item in items]
    if kind is WrapperConfig:
        return _wrapper(value)
    if kind in (int, float):
        return _number(kind, info, value)
    # true and false are texts in a shell and truth values in YAML, whatever is meant
    if isinstance(value, bool) and "true" in info.choices:
        value = str(value).lower()
    if kind is bool and value in ("true", "false"):
        value = value == "true"
    if not isinstance(value, kind):
        raise ValueError(_wrong_type(value))
    if info.choices and value not in info.choices and not (info.path and ":" in value):
        raise ValueError(f"there is no {value!r}")
    return value


def _wrapper(value: Any) -> WrapperConfig:
    """A wrapper by its name, or by a map of name and arguments. Raises ValueError, UsageError for what the map holds."""
    data = {"name": value} if isinstance(value, str) else value
    if not isinstance(data, Mapping) or not data.get("name"):
        raise ValueError(_wrong_type(value))
    return read_section(WrapperConfig, data, "env.wrappers")


def _open_map(value: Any) -> dict[str, Any]:
    """A map whose keys are the user's, as JSON would give it back."""
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
        raise ValueError(f"{_wrong_type(value)}, not keys with values")
    try:
        copy: dict[str, Any] = json.loads(json.dumps(value, allow_nan=False))
    except (TypeError, ValueError, RecursionError) as e:  # such as a date, nan, or a map that contains itself
        raise ValueError(f"{' '.join(str(e).split())}: it cannot be stored with a run") from None
    return copy


_SECONDS = {"ms": 1e-3, "s": 1.0, "min": 60.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_AMOUNTS = {"k": 1e3, "m": 1e6, "g": 1e9, "b": 1e9}


def _number(kind: type[int] | type[float], info: OptionInfo, value: Any) -> int | float:
    """A number within its bounds, typed as 1e6, 1_000_000, 100k or, with the unit s, 1h. Raises ValueError."""
    if isinstance(value, str) and value[:1].isdigit():
        match = re.fullmatch(r"(\d+(?:_\d+)*\.?\d*(?:e[+-]?\d+)?)([a-z]*)", value.strip().lower())
        factors = {"": 1.0} | (_SECONDS if info.unit == "s" else _AMOUNTS)
        if match and match[2] in factors:
            value = float(match[1]) * factors[match[2]]
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(_wrong_type(value))
    if kind is int and isinstance(value, float):
        if not value.is_integer():
            raise ValueError(f"{value} is not a whole number")
        value = int(value)
    if isinstance(value, int) and abs(value) > _LARGEST:  # it may have more digits than can be shown
        raise ValueError("a number as large as this is out of range")
    if not math.isfinite(value):
        raise ValueError(f"{value} is not a finite number")
    if any(not _COMPARISONS[sign](value, bound) for sign, bound in _bounds(info)):
        raise ValueError(f"{value} is out of range")
    return kind(value)


def describe_range(info: OptionInfo) -> str:
    """Bounds in words, such as "> 0 and <= 1"; empty without bounds."""
    return " and ".join(
        f"{sign} {bound if isinstance(bound, int) else f'{bound:g}'}" for sign, bound in _bounds(info)
    )


def _bounds(info: OptionInfo) -> list[tuple[str, float]]:
    bounds = ((">", info.gt), (">=", info.ge), ("<", info.lt), ("<=", info.le))
    return [(sign, bound) for sign, bound in bounds if bound is not None]


def _wrong_type(value: Any) -> str:
    """What was given, short enough for one line."""
    if value is None:
        return "null has no meaning here"
    text = " ".join(repr(value).split())
    return f"{text if len(text) <= 60 else text[:57] + '...'} is of the wrong type"
