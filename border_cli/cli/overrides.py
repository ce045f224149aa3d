"""The words `key=value` of the command line: read, judged where that needs no configuration, put for Hydra.

Hydra refuses a new key without `+` and an existing one with it, and checks neither names nor types. Here each
value goes to Hydra as `++key=value`: it takes what is typed, and `border_cli.config.convert` is the judge.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Sequence

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException, OverrideParseException

from border_cli.config.convert import all_keys
from border_cli.config.schema import GROUPS
from border_cli.config.suggest import nearest, nearest_key, nearest_line
from border_cli.core.errors import UsageError

Choices = Callable[[str], list[str]]
"""Options of a config group; empty for what is no group."""

MAX_CHECKED_JOBS = 200


def parse_words(words: Sequence[str]) -> list[Override]:
    """Read the words. Raises UsageError for one that is no `key=value`, or whose value cannot be read."""
    return [_parse(word) for word in words]


def typed_values(overrides: Sequence[Override]) -> dict[str, str]:
    """What was typed: plain key (no `+`) → value as typed, groups included, the last one of a key."""
    return {o.key_or_group: _text(o) for o in overrides if not o.is_delete()}


def typed_list(overrides: Sequence[Override], key: str) -> list[str]:
    """A list of strings that was typed for a key; empty when it was not."""
    found: list[str] = []
    for override in overrides:
        if override.key_or_group == key:
            value = override.value()
            if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
                raise UsageError(
                    f"{key}: {_text(override)!r} is not a list of names\nallowed: '{key}=[one,two]'"
                )
            found = [str(item) for item in value]
    return found


def check_single(overrides: Sequence[Override]) -> None:
    """Refuse several values for one key where there is one job."""
    for override in overrides:
        if override.is_sweep_override():
            key, text = override.key_or_group, _text(override)
            raise UsageError(
                f"{key}={text} has several values\nallowed: -m to run them all, or a list: {key}=[{text}]"
            )


def for_hydra(overrides: Sequence[Override], choices: Choices) -> list[str]:
    """The words as Hydra shall see them. Raises UsageError for a choice or deletion that cannot be."""
    return [_for_hydra(override, choices) for override in overrides]


def expand(words: Sequence[str], choices: Choices) -> Iterator[list[str]]:
    """The words of each job of a sweep, in the order of the basic sweeper, up to MAX_CHECKED_JOBS of them."""
    axes: dict[str, list[str]] = {}
    for override in parse_words(words):
        if override.is_sweep_override():
            axes[override.get_key_element()] = [
                f"{override.get_key_element()}={value}" for value in _sweep_values(override, choices)
            ]
        else:
            axes[override.get_key_element()] = [str(override.input_line)]
    for job in itertools.islice(itertools.product(*axes.values()), MAX_CHECKED_JOBS):
        yield list(job)


def quoted(text: str) -> str:
    """A string as a quoted value in Hydra's grammar."""
    # Backslashes mean themselves, except in front of a quote.
    escaped = re.sub(r"(\\*)('|$)", lambda m: m[1] * 2 + (r"\'" if m[2] else ""), text)
    return f"'{escaped}'"


def _parse(word: str) -> Override:
    key, equals, _ = word.partition("=")
    if not word.startswith("~") and not (key and equals):
        match = nearest_key(word, [*GROUPS, *all_keys()])
        raise UsageError(
            f"{word!r} is not a setting\nallowed: key=value{nearest_line(match and match + '=')}"
        )
    try:
        return OverridesParser.create().parse_overrides([word])[0]
    except OverrideParseException as e:
        raise UsageError(
            f"{word!r} cannot be read as key=value\nallowed: n_actors=8, hidden=[64,64], \"key='any text'\""
        ) from e


def _text(override: Override) -> str:
    line = str(override.input_line)
    return line.partition("=")[2]


def _for_hydra(override: Override, choices: Choices) -> str:
    key = override.key_or_group
    if override.is_hydra_override():
        return _hydra_word(override)
    if override.package is not None:
        raise UsageError(f"{key}@{override.package}: groups stay where they are\nallowed: {key}=<option>")
    if override.is_delete():
        return _deletion(override)
    if key in GROUPS:
        _check_choice(override, choices)
        return f"{key}={_text(override)}"
    if choices(key):
        return f"+{key}={_text(override)}"  # a group of the user's own, which no defaults list names
    return f"++{key}={_text(override)}"


def _hydra_word(override: Override) -> str:
    if override.key_or_group == "hydra.mode":
        raise UsageError(
            "hydra.mode: it is not set by hand\nallowed: -m sweeps over values separated by commas"
        )
    return str(override.input_line)


def _deletion(override: Override) -> str:
    key = override.key_or_group
    keys = all_keys()
    if any(info.open_map and key.startswith(f"{name}.") for name, info in keys.items()):
        return str(override.input_line)
    if key in GROUPS or key in keys:
        raise UsageError(f"~{key}: every run has it, it cannot be taken away\nallowed: {key}=<another value>")
    match = nearest_key(key, keys)
    raise UsageError(f"~{key}: there is no such key\nallowed: only keys of env.kwargs{nearest_line(match)}")


def _check_choice(override: Override, choices: Choices) -> None:
    group = override.key_or_group
    options = choices(group)
    if override.is_sweep_override():
        values: list[object] = list(_sweep_values(override, choices))
    else:
        values = [override.value()]
    for value in values:
        if isinstance(value, dict | list):
            raise UsageError(
                f"{group}: {_text(override)} is not one of its options\n"
                f"allowed: {', '.join(options)}; single values as {group}.<key>=<value>"
            )
        name = "null" if value is None else str(value)
        if name not in options:
            match = nearest_line(nearest(name, options))
            raise UsageError(f"{group}: there is no {name!r}\nallowed: {', '.join(options)}{match}")


def _sweep_values(override: Override, choices: Choices) -> list[str]:
    """The values of a sweep as text. Raises UsageError for one that has no list of values."""
    if not override.is_discrete_sweep():
        raise UsageError(
            f"{override.key_or_group}: {_text(override)} has no end of values\n"
            "allowed: values separated by commas, or range(start,stop,step)"
        )
    try:
        if override.value_type is not None and override.value_type.name == "GLOB_CHOICE_SWEEP":
            return list(override.value().filter(choices(override.key_or_group)))
        return list(override.sweep_string_iterator())
    except HydraException as e:
        raise UsageError(f"{override.key_or_group}: {_text(override)} cannot be swept over\n{e}") from e
