"""YAML as plain data: the only module that speaks to the YAML library, and only to its safe half."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from border_cli.core.errors import UsageError

MAX_BYTES = 2**18
"""More than any configuration has; a larger file is not read. The library takes up to 330 bytes of memory for each."""
_NUMBERS = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")
_MAX_DIGITS = 100


def dump(data: Any) -> str:
    """Plain data as YAML text, keys in the order given."""
    text: str = yaml.safe_dump(data, sort_keys=False, allow_unicode=True, width=110)
    return text


def load(path: Path) -> Any:
    """Plain data of a file, each value written out where it stands.

    Raises UsageError with file and line when it is not plain YAML, OSError as it is.
    """
    if path.stat().st_size > MAX_BYTES:
        raise UsageError(f"{path} is larger than {MAX_BYTES} bytes\nallowed: a configuration")
    try:
        return _PlainLoader(path.read_text(encoding="utf-8")).get_single_data()
    except (yaml.YAMLError, ValueError, RecursionError) as e:  # ValueError: a number or date that is none
        raise UsageError(f"{path}: not valid YAML\n{describe(e)}") from e


def describe(error: Exception) -> str:
    """One line that says what is wrong with a YAML text, and where."""
    mark = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None) or (str(error).splitlines() or [type(error).__name__])[0]
    return f"line {mark.line + 1}: {problem}" if mark else str(problem)


class _PlainLoader(yaml.SafeLoader):  # type: ignore[misc] # PyYAML is not checked
    """Takes what is written out alone: aliases multiply, tags choose what a text becomes, numbers may have no end."""

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        event = self.peek_event()
        if isinstance(event, yaml.AliasEvent):
            raise _refusal("aliases (*name) are not taken here", event)
        if getattr(event, "tag", None) is not None:
            raise _refusal("tags (!name) are not taken here", event)
        node: yaml.Node | None = super().compose_node(parent, index)
        if isinstance(node, yaml.ScalarNode) and node.tag in _NUMBERS and len(node.value) > _MAX_DIGITS:
            raise _refusal("the number is too long", node)
        return node


def _refusal(problem: str, where: Any) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(problem=problem, problem_mark=where.start_mark)


YAML_ERRORS: tuple[type[Exception], ...] = (yaml.YAMLError,)
