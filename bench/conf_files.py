"""`make conf`: writes the files of conf/ that list every key of a section, with the schema's defaults and comments.

The comment at the head of a file, and its defaults list, stay as they are.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from border_cli.config.presets import conf_dir
from border_cli.config.registry import TABLES
from border_cli.config.schema import BufferConfig, OptionInfo, TrainConfig

BASES = {
    "agent": ("dqn", "sac"),
    "env": ("gym",),
    "buffer": ("uniform", "prioritized"),
    "actor_manager": ("process", "ray"),
    "trainer": ("async",),
    "evaluator": ("auto",),
    "recorder": ("default",),
    "checkpoint": ("default",),
    "preset": ("none",),
}


def files() -> Iterator[tuple[Path, str]]:
    """Return the expected text of each file."""
    for group, options in BASES.items():
        for option in options:
            path = conf_dir() / group / f"{option}.yaml"
            yield path, f"{_head(path)}{section(_class_of(group, option), option == 'prioritized')}"


def section(cls: type, own_only: bool = False) -> str:
    """List every key of a dataclass with its default and comment. own_only: omits the keys of BufferConfig."""
    others = {field.name for field in dataclasses.fields(BufferConfig)} - {"type"} if own_only else set()
    fields = [field for field in dataclasses.fields(cls) if field.name not in others]
    return "".join(
        f"{field.name}: {_shown(getattr(cls(), field.name))}  # {comment(field.metadata['option'])}\n"
        for field in fields
    )


def comment(info: OptionInfo) -> str:
    """Return unit, meaning and choices in one line."""
    unit = f"[{info.unit}] " if info.unit else ""
    choices = f" ({' | '.join(info.choices)})" if info.choices else ""
    return f"{unit}{info.help}{choices}"


def _class_of(group: str, option: str) -> Any:
    if group in TABLES:
        return TABLES[group][option].config
    return type(getattr(TrainConfig(), group))


def _head(path: Path) -> str:
    """Return the leading comments and the defaults list of a file."""
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    n = next(i for i, line in enumerate(lines) if line[0].isalpha() and not line.startswith("defaults:"))
    return "".join(lines[:n])


def _shown(value: Any) -> str:
    if isinstance(value, float):
        return repr(value).replace("e-0", "e-")
    return value if isinstance(value, str) and value else json.dumps(value)


if __name__ == "__main__":
    for path, text in files():
        path.write_text(text, encoding="utf-8")
