"""The commands as a shell starts them: interrupted while their imports last, they end with the code that is promised."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_INTERRUPTED = 130  # core.errors.ExitCode.SIGINT, whose import is one of those


def train() -> int:
    """`border-train`. Returns the exit code."""
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # until there is a run that can be saved
    with _ended_by_sigint():
        from border_cli.cli.train import main
    return main()


def evaluate() -> int:
    """`border-eval`. Returns the exit code."""
    with _ended_by_sigint():
        from border_cli.cli.eval import main
    return main()


def report() -> int:
    """`border-report`. Returns the exit code."""
    with _ended_by_sigint():
        from border_cli.cli.report import main
    return main()


@contextmanager
def _ended_by_sigint() -> Iterator[None]:
    """Nothing has begun, so that nothing is to be told or kept. One who has SIGINT ignored is left alone."""
    before = signal.getsignal(signal.SIGINT)
    if before is not signal.default_int_handler:
        yield
        return
    signal.signal(signal.SIGINT, _end)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _end(number: int, frame: FrameType | None) -> None:
    del number, frame
    os._exit(_INTERRUPTED)
