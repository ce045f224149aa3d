"""How a command starts and ends: signals from its first line on, exit codes, errors on stderr, pages on stdout.

Other modules are imported in functions: the signal handlers are set before.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import os
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from functools import partial, wraps
from pathlib import Path

MAX_LINES = 3
"""Of an error."""


def _run(module: str, name: str = "main", early: bool = False) -> int:
    """Call a command. early: start the fork server first. Returns the exit code."""
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
export = partial(_run, "eval", name="export")
bench = partial(_run, "bench")


def read_page(name: str) -> str:
    """A page of help, from the folder pages/."""
    return (Path(__file__).parent / "pages" / f"{name}.txt").read_text(encoding="utf-8")


def show(text: str) -> None:
    """Write a page to stdout. A reader that left early, such as `head`, is no error."""
    from border_cli.core.errors import ResourceError
    from border_cli.display.output import printable

    text = printable(text, sys.stdout.encoding or "utf-8")
    try:
        sys.stdout.write(text if text.endswith("\n") else f"{text}\n")
        sys.stdout.flush()
    except OSError as e:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # else the flush at exit fails, too
        if not isinstance(e, BrokenPipeError):
            raise ResourceError(f"stdout: {e.strerror}") from e


def command(run: Callable[[Sequence[str]], int | None]) -> Callable[..., int]:
    """A command from a function of its arguments, by default the process's. It prints errors and returns the exit code."""

    @wraps(run)
    def main(argv: Sequence[str] | None = None) -> int:
        from border_cli.core.errors import Interrupted

        if argv is None:
            argv = sys.argv[1:]
            # Standard streams that the parent process has closed become /dev/null: else the next file that is opened
            # gets the descriptor of one, and receives what is printed.
            while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
                os.set_inheritable(descriptor, True)
            os.close(descriptor)
            sys.stdout = sys.stdout or open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
            sys.stderr = sys.stderr or open(2, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
        try:
            return run(argv) or 0
        except (Exception, Interrupted, KeyboardInterrupt, SystemExit) as e:  # noqa: BLE001 - the last place to catch
            return report_error(e, argv)

    return main


def report_error(error: BaseException, argv: Sequence[str]) -> int:
    """Print on stderr what went wrong and return the exit code. An interruption is no error: nothing is printed.

    A BorderError is shown as its message of at most three lines, with its notes last. A defect is shown with its
    traceback, for a bug report, and an error of an environment with the environment's traceback. SystemExit from inside
    a run is a defect, whatever its code. argv: the command's; with debug=true every error is shown with its traceback.
    """
    from border_cli.core.errors import ActorLostError, BorderError, ExitCode, Interrupted, notes
    from border_cli.display.output import output, write_line

    if isinstance(error, Interrupted | KeyboardInterrupt):
        return int(getattr(error, "code", ExitCode.SIGINT))
    ours = isinstance(error, BorderError)
    details = []
    if not ours or any(arg.lstrip("+").lower() == "debug=true" for arg in argv):
        details = ["".join(traceback.format_exception(error)).rstrip()]
    elif isinstance(error, ActorLostError) and error.details:
        details = [error.details.rstrip()]
    message = str(error)
    if isinstance(error, MemoryError):  # numpy has a class of its own
        advice = "less memory is needed with a smaller buffer.capacity, network or n_actors"
        message = f"MemoryError: {error}\n{advice}"
    elif not ours:
        name = type(error).__name__
        message = f"{name}: {error}\nthis is a bug in border-cli, or in your code that it calls"
    lines = [line for line in message.splitlines() if line.strip()] or [type(error).__name__]
    noted = notes(error)[: MAX_LINES - 1]
    printed = [f"error: {lines[0]}", *lines[1 : MAX_LINES - len(noted)], *noted]
    with output():  # perhaps no process reads stderr
        sys.stderr.writelines(f"{text}\n" for text in details)
        write_line(sys.stderr, "\n".join(printed))
    return int(error.code) if isinstance(error, BorderError) else int(ExitCode.DEFECT)
