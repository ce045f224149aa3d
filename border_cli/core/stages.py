"""Things that all have to be done, whatever becomes of the others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack


def run_all(stages: Sequence[Callable[[], object]]) -> None:
    """Call each in its turn, also after one that raised. Raises the last error then, with those before it as context."""
    with ExitStack() as stack:  # which goes through them from the last to the first
        for stage in reversed(stages):
            stack.callback(stage)
