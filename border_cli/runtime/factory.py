"""What a child process is to make, as plain data that travels there."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Factory:
    """A function by its import path `module:name`, and the arguments it gets after those of its role.

    Nothing is imported before `load`, which happens in the process that needs it.
    """

    path: str
    args: tuple[Any, ...] = ()

    def load(self) -> Callable[..., Any]:
        """Import the function. Raises ImportError or AttributeError."""
        module, _, name = self.path.partition(":")
        function: Callable[..., Any] = getattr(importlib.import_module(module), name)
        return function
