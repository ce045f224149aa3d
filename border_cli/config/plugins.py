"""Importing the user's packages that register agents, buffers and environments."""

from __future__ import annotations

import importlib
import importlib.metadata
from collections.abc import Iterable

from border_cli.core.errors import BorderError, UsageError

ENTRY_POINTS = "border_cli.plugins"


def load_installed() -> None:
    """Import what installed packages offer in the entry-point group."""
    for entry in importlib.metadata.entry_points(group=ENTRY_POINTS):
        load([entry.module])


def load(modules: Iterable[str]) -> None:
    """Import modules by name. Raises UsageError for one that is not there, BorderError for one that fails."""
    for module in modules:
        try:
            importlib.import_module(module)
        except ModuleNotFoundError as e:
            if e.name is not None and (module == e.name or module.startswith(f"{e.name}.")):
                raise UsageError(
                    f"plugins: there is no module {module!r}\nit must be installed or on PYTHONPATH"
                ) from e
            raise BorderError(f"plugins: {module} needs a module that is missing: {e.name}") from e
        except BorderError:
            raise
        except Exception as e:
            raise BorderError(f"plugins: {module} failed on import\n{type(e).__name__}: {e}") from e
