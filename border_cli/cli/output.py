"""What a command says outside a run: errors on stderr in three lines at most, and pages on stdout."""

from __future__ import annotations

import os
import sys
import traceback

from border_cli.core.errors import ActorLostError, BorderError, ExitCode
from border_cli.recorders.outlet import printable

MAX_LINES = 3


def show(text: str) -> None:
    """Write a page to stdout. A reader that left early, such as `head`, is no error."""
    text = printable(text, sys.stdout.encoding or "utf-8")
    try:
        sys.stdout.write(text if text.endswith("\n") else f"{text}\n")
        sys.stdout.flush()
    except BrokenPipeError:
        # What is left in the buffer would be tried again at exit, and fail aloud.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def report(error: Exception, debug: bool = False, job: str = "") -> int:
    """Say on stderr what went wrong and return the exit code.

    An error of ours is its message, at most three lines. A defect keeps its traceback, because a report about it is
    worth nothing without, and an environment's error keeps the environment's. debug: the traceback in any case.
    job: which of a sweep it was.
    """
    ours = isinstance(error, BorderError)
    if debug or not ours:
        traceback.print_exception(error, file=sys.stderr)
    elif isinstance(error, ActorLostError) and error.details:
        sys.stderr.write(f"{error.details.rstrip()}\n")
    message = (
        str(error)
        if ours
        else f"{type(error).__name__}: {error}\nthis is a defect, of border-cli or of your code"
    )
    lines = [line for line in message.splitlines() if line.strip()] or [type(error).__name__]
    sys.stderr.write("\n".join([f"{job}error: {lines[0]}", *lines[1:MAX_LINES]]) + "\n")
    sys.stderr.flush()
    return int(error.code) if isinstance(error, BorderError) else int(ExitCode.DEFECT)
