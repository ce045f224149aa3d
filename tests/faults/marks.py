"""How a process of a run tells the test where it is: files in the run's working directory."""

from __future__ import annotations

import os
import threading
from pathlib import Path

from border_cli.runtime.clock import Backoff

MARK = "sprung"
"""Written before anything else happens: the process id, and a newline."""
GO = "go-on-saving"
"""Made by the test: whoever waits for it goes on."""
STARVED_AT = 30
"""Opt step in which `starved` takes the learner's memory away."""
HELD_SAVE = "HELD_SAVE"
"""Environment variable: which of the run's checkpoints `held_save` holds up, counted from 1."""


def spring(then: str) -> None:
    """Leave the mark; then "raise", "hang" for ever, "wait" for GO, or "pass". Only the first to come does any of that."""
    try:
        with Path(MARK).open("x", encoding="ascii") as mark:
            mark.write(f"{os.getpid()}\n")
    except FileExistsError:
        return
    if then == "hang":
        never = threading.Event()
        while not never.wait(
            0.1
        ):  # not one wait without end: a signal just before it would never be looked at
            pass
    if then == "wait":
        wait_for_go()
    if then == "raise":
        raise RuntimeError("the trap was sprung")


def wait_for_go() -> None:
    """Return once the test says so."""
    backoff = Backoff()
    while not Path(GO).exists():
        backoff.sleep()
