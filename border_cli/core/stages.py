"""Things that all have to be done, whatever becomes of the others."""

from __future__ import annotations

from collections.abc import Callable, Sequence


def run_all(stages: Sequence[Callable[[], object]]) -> None:
    """Call each in its turn, also after one that raised. Raises the last error then, with those before it as context."""
    if stages:
        try:
            stages[0]()
        finally:
            run_all(stages[1:])
