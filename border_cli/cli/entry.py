"""The commands as a shell starts them. Ctrl-C and SIGTERM end them with the documented exit code from the first line on."""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import os
import signal
import sys
from functools import partial


def _run(module: str, early: bool = False) -> int:
    """Call the command of a module. early: start the fork server first. Returns the exit code."""
    name = "main"
    if sys.argv[1:2] == ["-sc"] and module in ("train", "bench"):
        module, name = "help", "complete"  # which imports little
    # A run has handlers of its own; these are for the time before and after. Process 1 of a container has no default
    # action. A parent process may have had SIGINT ignored: that stays.
    for number, usual in ((signal.SIGINT, signal.default_int_handler), (signal.SIGTERM, signal.SIG_DFL)):
        if signal.getsignal(number) is usual:
            signal.signal(number, _exit)
    if early:
        gc.disable()  # during the imports: start-up is 12% faster
        from border_cli.runtime.forkserver import start_early

        with contextlib.suppress(OSError):  # the checks before the run say what the machine lacks
            start_early()  # it imports torch while this process composes the configuration
    return int(getattr(importlib.import_module(f"border_cli.cli.{module}"), name)())


def _exit(number: int, _: object) -> None:
    # End the fork server, which would first complete its imports. Its module may be imported in part only.
    end = getattr(sys.modules.get("border_cli.runtime.forkserver"), "end_forkserver", lambda: None)
    end()
    os._exit(128 + number)  # as core.errors.ExitCode has it, which is not imported yet


def train() -> int:
    """`border-train`. Returns the exit code."""
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # until there is a run to save
    atexit.register(gc.freeze)  # a garbage collection of all that torch has imported takes half a second
    # Without arguments and with flags it shows something, or starts a sweep.
    return _run("train", early=bool(sys.argv[1:]) and not any(arg.startswith("-") for arg in sys.argv[1:]))


evaluate = partial(_run, "eval")
report = partial(_run, "report")
export = partial(_run, "export")
bench = partial(_run, "bench")
