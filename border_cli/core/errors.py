"""Exceptions that end a run, each with the exit code the shell sees.

A message has at most three lines: what is wrong, what is allowed, the nearest match. It is printed without a
traceback unless `debug=true`.
"""

from __future__ import annotations

import difflib
import enum
from collections.abc import Iterable, Mapping, Sequence
from typing import Any


class ExitCode(enum.IntEnum):
    """What the process returns to the shell."""

    DONE = 0
    DEFECT = 1  # a defect of ours, or of user code outside the environment; crash.json says more
    USAGE = 2  # anything the user can fix by typing something else
    RESOURCES = 3  # memory, disk or descriptors: measured and too small
    NON_FINITE = 4  # a loss, weight or score that is not a number
    ACTOR_LOST = 5
    CHECKPOINT_IO = 6
    NO_VALID_CHECKPOINT = 7  # checkpoints exist and none verifies
    SIGINT = 130
    SIGTERM = 143


class BorderError(Exception):
    """Base of every error with an exit code. Raised as it is for defects.

    problem: what is wrong · nearest: what was probably meant, as it is typed · allowed: in words, or a list of names,
    which is shortened if there is a nearest one.
    """

    code: ExitCode = ExitCode.DEFECT

    def __init__(
        self, problem: str, *, nearest: str | None = None, allowed: str | Sequence[str] = ""
    ) -> None:
        if not isinstance(allowed, str):
            n = len(allowed) if nearest is None else 8
            more = f" and {len(allowed) - n} more" if len(allowed) > n else ""
            allowed = ", ".join(allowed[:n]) + more
        lines = [problem, nearest and f"nearest: {nearest}", allowed and f"allowed: {allowed}"]
        super().__init__("\n".join(filter(None, lines)))


class UsageError(BorderError):
    """The user can fix it by typing something else."""

    code = ExitCode.USAGE


class ResourceError(BorderError):
    """Memory, disk space, descriptors or processes are too few."""

    code = ExitCode.RESOURCES


class NonFiniteError(BorderError):
    """A number that training depends on is NaN or infinite."""

    code = ExitCode.NON_FINITE


class ActorLostError(BorderError):
    """An actor process died, or its environment raised.

    details: the actor's own traceback · context: where it happened, as JSON values, empty if unknown · logged: whether the
    traceback was logged already.
    """

    code = ExitCode.ACTOR_LOST

    def __init__(self, message: str, details: str = "", context: Mapping[str, Any] | None = None) -> None:
        super().__init__(message)
        self.details = details
        self.context: Mapping[str, Any] = context or {}
        self.logged = False


class CheckpointIOError(BorderError):
    """A checkpoint could not be written."""

    code = ExitCode.CHECKPOINT_IO


class NoValidCheckpointError(BorderError):
    """Checkpoints exist and none verifies. The run never silently starts over."""

    code = ExitCode.NO_VALID_CHECKPOINT


class IncompatibleStateError(ValueError):
    """A saved state that verifies, but does not fit this run."""


def nearest(word: str, candidates: Iterable[str], cutoff: float | None = None) -> str | None:
    """The candidate that was probably meant by `word`: the one that begins with it, else the most similar one.

    Case does not matter. None where there is neither: a wrong hint is worse than none.
    """
    word, by_lower = word.lower(), {candidate.lower(): candidate for candidate in candidates}
    matches = sorted((name for name in by_lower if name.startswith(word)), key=len)
    if len(word) < 4 or not matches or not all(name.startswith(matches[0]) for name in matches):
        # one wrong letter of three, or two that are swapped
        cutoff = cutoff or (0.65 if len(word) <= 4 else 0.77)
        matches = difflib.get_close_matches(word, list(by_lower), n=1, cutoff=cutoff)
    return by_lower[matches[0]] if matches else None


def add_note(error: BaseException, note: str) -> None:
    """Add a line that is shown after the error's message (a method of exceptions from Python 3.11 on)."""
    error.__dict__["__notes__"] = [*notes(error), note]


def notes(error: BaseException) -> list[str]:
    """The lines added by `add_note`."""
    return list(getattr(error, "__notes__", ()))


def first_line(error: BaseException) -> str:
    """The first line of the message, or the type where there is no message."""
    return (str(error).splitlines() or [type(error).__name__])[0]


class OutOfTime(Exception):
    """An evaluation must end: the run has used up `trainer.max_time`."""


class Interrupted(BaseException):
    """A run that stopped cleanly because of SIGINT or SIGTERM.

    Not an `Exception`, so that it ends a sweep instead of a single job.
    """

    def __init__(self, code: ExitCode) -> None:
        super().__init__(code.name)
        self.code = code
