"""The commands as a shell starts them. Ctrl-C and SIGTERM end them with the documented exit code from the first line on."""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import os
import signal
import sys
from collections.abc import Callable


def train() -> int:
    """`border-train`. Returns the exit code."""
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # until there is a run to save
    atexit.register(gc.freeze)  # a garbage collection of all that torch has imported takes half a second
    # Without arguments and with flags it shows something, or starts a sweep.
    trains = sys.argv[1:] and not any(arg.startswith("-") for arg in sys.argv[1:])
    return _run("border_cli.cli.train", _start_early if trains else lambda: None)


def evaluate() -> int:
    """`border-eval`. Returns the exit code."""
    return _run("border_cli.cli.eval")


def report() -> int:
    """`border-report`. Returns the exit code."""
    return _run("border_cli.cli.report")


def export() -> int:
    """`border-export`. Returns the exit code."""
    return _run("border_cli.cli.export")


def bench() -> int:
    """`border-bench`. Returns the exit code."""
    return _run("border_cli.cli.bench")


def _run(module: str, begin: Callable[[], None] = lambda: None) -> int:
    name = "main"
    if [arg[:6] for arg in sys.argv[1:]] == ["-sc", "query="] and module.endswith(("train", "bench")):
        module, name = "border_cli.cli.help", "answer"  # which imports little
    # A run has handlers of its own; these are for the time before and after. Process 1 of a container has no default
    # action. A parent process may have had SIGINT ignored: that stays.
    for number, usual in ((signal.SIGINT, signal.default_int_handler), (signal.SIGTERM, signal.SIG_DFL)):
        if signal.getsignal(number) is usual:
            signal.signal(number, _exit)
    begin()
    return int(getattr(importlib.import_module(module), name)())


def _start_early() -> None:
    """Start the fork server, which imports torch while this process composes the configuration and imports it too."""
    gc.disable()  # until all is imported, which takes an eighth less time so
    from border_cli.runtime.forkserver import start_early

    with contextlib.suppress(OSError):  # the checks before the run say what the machine lacks
        start_early()


def _exit(number: int, _: object) -> None:
    # End the fork server, which would first complete its imports. Its module may be imported in part only.
    end = getattr(sys.modules.get("border_cli.runtime.forkserver"), "end_forkserver", lambda: None)
    end()
    os._exit(128 + number)  # as core.errors.ExitCode has it, which is not imported yet
