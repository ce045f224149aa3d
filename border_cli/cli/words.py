"""The words of the commands that Hydra has no part in: paths, settings as key=value, and flags."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from border_cli.config.suggest import nearest, nearest_line
from border_cli.core.errors import UsageError

Reader = Callable[[str, str], Any]
"""From key and text to the value. Raises UsageError for a text that is not taken."""


def take_apart(
    argv: Sequence[str], flags: Mapping[str, str], readers: Mapping[str, Reader]
) -> tuple[list[Path], dict[str, Any]]:
    """Paths, and the values of settings and flags by name. Raises UsageError for what is not known, with the nearest.

    flags: name by word; given, a flag is True · readers: by key.
    """
    paths: list[Path] = []
    values: dict[str, Any] = {}
    for word in argv:
        key, equals, text = word.partition("=")
        if word.startswith("-"):
            values[_flag(word, flags)] = True
        elif not equals or (key not in readers and _is_path(word, key)):
            paths.append(Path(word))
        else:
            values[key] = _reader(key, readers)(key, text)
    return paths, values


def whole_number(least: int) -> Reader:
    """A reader of numbers from `least` on."""

    def read(key: str, text: str) -> int:
        if not (text.isascii() and text.isdigit()) or int(text) < least:
            raise UsageError(f"{key}={text}: not taken\nallowed: a whole number >= {least}")
        return int(text)

    return read


def true_or_false(key: str, text: str) -> bool:
    """A reader."""
    if text.lower() not in ("true", "false"):
        raise UsageError(f"{key}={text}: not taken\nallowed: true or false")
    return text.lower() == "true"


def names(key: str, text: str) -> tuple[str, ...]:
    """A reader of lists."""
    found = tuple(
        name.strip() for name in text.removeprefix("[").removesuffix("]").split(",") if name.strip()
    )
    if text.startswith("[") != text.endswith("]") or not found:
        raise UsageError(f"{key}={text}: not a list of names\nallowed: '{key}=[one,two]'")
    return found


def some_text(key: str, text: str) -> str:
    """A reader of whatever is not empty."""
    if not text:
        raise UsageError(f"{key}=: has no value")
    return text


def _flag(word: str, flags: Mapping[str, str]) -> str:
    if word in flags:
        return flags[word]
    match = nearest_line(nearest(word, flags))
    raise UsageError(f"there is no flag {word}\nallowed: {', '.join(flags)}{match}")


def _is_path(word: str, key: str) -> bool:
    """A path may hold a = as well: that of a sweep's job does."""
    return "/" in key or Path(word).exists()


def _reader(key: str, readers: Mapping[str, Reader]) -> Reader:
    if key in readers:
        return readers[key]
    match = nearest(key, readers)
    raise UsageError(
        f"{key}: there is no such key\nallowed: {', '.join(readers)}{nearest_line(match and f'{match}=')}"
    )
