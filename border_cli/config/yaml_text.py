"""YAML as plain data: the only module that speaks to the YAML library, and only to its safe half."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from border_cli.core.errors import UsageError

MAX_BYTES = 2**20
"""More than any configuration has; a larger file is not read."""


def dump(data: Any) -> str:
    """Plain data as YAML text, keys in the order given."""
    text: str = yaml.safe_dump(data, sort_keys=False, allow_unicode=True, width=110)
    return text


def load(path: Path) -> Any:
    """Plain data of a file. Raises UsageError with file and line when it is not YAML, OSError as it is."""
    if path.stat().st_size > MAX_BYTES:
        raise UsageError(f"{path} is larger than {MAX_BYTES} bytes\nallowed: a configuration")
    try:
        return yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, ValueError, RecursionError) as e:  # ValueError: a number or date that is none
        raise UsageError(f"{path}: not valid YAML\n{describe(e)}") from e


def describe(error: Exception) -> str:
    """One line that says what is wrong with a YAML text, and where."""
    mark = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None) or (str(error).splitlines() or [type(error).__name__])[0]
    return f"line {mark.line + 1}: {problem}" if mark else str(problem)


YAML_ERRORS: tuple[type[Exception], ...] = (yaml.YAMLError,)
