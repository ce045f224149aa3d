"""What the commands share: exit codes, errors on stderr in at most three lines, and pages on stdout."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable, Sequence
from functools import wraps
from pathlib import Path

from border_cli.core.errors import ActorLostError, BorderError, ExitCode, Interrupted, ResourceError, notes
from border_cli.display.output import output, printable, write_line

MAX_LINES = 3


def read_page(name: str) -> str:
    """A page of help, from the folder pages/."""
    return (Path(__file__).parent / "pages" / f"{name}.txt").read_text(encoding="utf-8")


def show(text: str) -> None:
    """Write a page to stdout. A reader that left early, such as `head`, is no error."""
    text = printable(text, sys.stdout.encoding or "utf-8")
    try:
        sys.stdout.write(text if text.endswith("\n") else f"{text}\n")
        sys.stdout.flush()
    except OSError as e:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # else the flush at exit fails, too
        if not isinstance(e, BrokenPipeError):
            raise ResourceError(f"stdout: {e.strerror}") from e


def command(run: Callable[[Sequence[str]], int | None]) -> Callable[..., int]:
    """A command from a function of its arguments, by default those of the process. It prints errors.

    It returns the exit code; None of the function is 0.
    """

    @wraps(run)
    def main(argv: Sequence[str] | None = None) -> int:
        if argv is None:
            argv = sys.argv[1:]
            _open_missing_streams()
        try:
            return int(run(argv) or ExitCode.DONE)
        except (Exception, Interrupted, KeyboardInterrupt, SystemExit) as e:  # noqa: BLE001 - the last place to catch
            return report(e, argv)

    return main


def report(error: BaseException, argv: Sequence[str]) -> int:
    """Print on stderr what went wrong and return the exit code. An interruption is no error: nothing is printed.

    An error of ours is its message, at most three lines, with its notes last. A defect keeps its traceback for a bug
    report, and an error of an environment keeps the environment's. SystemExit from inside a run is a defect with any
    code. argv: the command's; with debug=true every error has its traceback.
    """
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
        message = (
            f"MemoryError: {error}\nless memory is needed with a smaller buffer.capacity, network or n_actors"
        )
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


def _open_missing_streams() -> None:
    """Connect standard streams that the parent process has closed to /dev/null.

    Without that, the next file that is opened gets the descriptor of one, and receives what is printed.
    """
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(descriptor, True)
    os.close(descriptor)
    if sys.stdout is None:
        sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    if sys.stderr is None:
        sys.stderr = open(2, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
