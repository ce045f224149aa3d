"""What a command says outside a run: errors on stderr in three lines at most, and pages on stdout."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable

from border_cli.core.errors import ActorLostError, BorderError, ExitCode, Interrupted, notes
from border_cli.recorders.outlet import printable

MAX_LINES = 3
_LAST_STANDARD = 2


def open_missing_streams() -> None:
    """Where a standard stream was closed by whoever started this process, let it lead nowhere.

    Else the next file that is opened gets its descriptor, and whatever is printed goes into that.
    """
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= _LAST_STANDARD:
        os.set_inheritable(descriptor, True)
    os.close(descriptor)
    if sys.stdout is None:
        sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115 - a descriptor, for good
    if sys.stderr is None:
        sys.stderr = open(2, "w", encoding="utf-8", closefd=False)  # noqa: SIM115


def show(text: str) -> None:
    """Write a page to stdout. A reader that left early, such as `head`, is no error."""
    text = printable(text, sys.stdout.encoding or "utf-8")
    try:
        sys.stdout.write(text if text.endswith("\n") else f"{text}\n")
        sys.stdout.flush()
    except BrokenPipeError:
        # What is left in the buffer would be tried again at exit, and fail aloud.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def exit_code(command: Callable[[], int], debug: bool) -> int:
    """Run a command and return what the shell is to see of its end; an error is said. debug: with its traceback."""
    try:
        return command()
    except Interrupted as e:
        return int(e.code)
    except KeyboardInterrupt:
        return int(ExitCode.SIGINT)
    except Exception as e:  # noqa: BLE001 - the last place where an error can become an exit code
        return int(ExitCode.SIGINT) if _broke_off(e) else report(e, debug)


def report(error: Exception, debug: bool = False, job: str = "") -> int:
    """Say on stderr what went wrong and return the exit code.

    An error of ours is its message, at most three lines. A defect keeps its traceback, because a report about it is
    worth nothing without, and an environment's error keeps the environment's. What was noted on an error is said last;
    of a long message, lines go for it. debug: the traceback in any case · job: which of a sweep it was.
    """
    ours = isinstance(error, BorderError)
    if debug or not ours:
        traceback.print_exception(error, file=sys.stderr)
    elif isinstance(error, ActorLostError) and error.details:
        sys.stderr.write(f"{error.details.rstrip()}\n")
    message = str(error) if ours else f"{_named(error)}\n{_judged(error)}"
    lines = [line for line in message.splitlines() if line.strip()] or [type(error).__name__]
    noted = notes(error)[: MAX_LINES - 1]
    shown = [f"{job}error: {lines[0]}", *lines[1 : MAX_LINES - len(noted)], *noted]
    sys.stderr.write("\n".join(shown) + "\n")
    sys.stderr.flush()
    return int(error.code) if isinstance(error, BorderError) else int(ExitCode.DEFECT)


def _broke_off(error: BaseException) -> bool:
    """Whether SIGINT is behind it: a library that was cleaning up after one stumbled over what was half done.

    Whoever makes an error of a KeyboardInterrupt (`raise … from`) means that error.
    """
    seen = set[int]()  # an error may be its own cause
    while id(error) not in seen:
        seen.add(id(error))
        behind = error.__cause__ or error.__context__
        if behind is None:
            return False
        if isinstance(behind, KeyboardInterrupt):
            return error.__cause__ is None
        error = behind
    return False


def _named(error: Exception) -> str:
    """Class and message. numpy's own class for a lack of memory says what everybody calls a MemoryError."""
    name = "MemoryError" if isinstance(error, MemoryError) else type(error).__name__
    return f"{name}: {error}"


def _judged(error: Exception) -> str:
    if isinstance(error, MemoryError):
        return "the process got no more memory: a smaller buffer.capacity, network or n_actors needs less"
    return "this is a defect, of border-cli or of your code"
