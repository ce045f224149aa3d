"""Environments that inject a fault into one process of a real run, and the files that signal it to the test."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gymnasium

from border_cli.runtime.stopping import Backoff
from tests.counting import FAULTS, CountingEnv

MARK = "sprung"
"""File in the working directory of the run, with the id of the process that sprang the trap."""
GO = "go"
"""File that the test makes to let a waiting process continue."""
THREADS = "threads"
"""Folder with a file per process, see `CountThreads`."""


def spring(then: str) -> None:
    """Write MARK, then do `then`: "pass", "raise", "hang", "wait" (for GO) or one of FAULTS. Later calls do nothing."""
    try:
        with Path(MARK).open("x", encoding="ascii") as mark:
            mark.write(f"{os.getpid()}\n")
    except FileExistsError:
        return
    match then:
        case "pass":
            pass
        case "raise":
            raise RuntimeError("the trap was sprung")
        case (
            "hang" | "wait"
        ):  # sleeps in a loop, because one long sleep could miss a signal that came just before it
            backoff = Backoff()
            while then == "hang" or not Path(GO).exists():
                backoff.sleep()
        case _:
            FAULTS[then]()


def make(
    place: str = "nowhere", at: str = "step", then: str = "pass", step: int = 1, lengths: Sequence[int] = (7,)
) -> gymnasium.Env[Any, Any]:
    """Make a CountingEnv that springs the trap in processes whose name starts with `place`.

    Args:
        place: "actor", "actor-1", "MainProcess" (the learner) or "trial" (the child of the preflight).
        at: "make", "reset", "close" or "step".
        then: see `spring`.
        step: number of the env step for at="step", counted from 1 over all episodes.
        lengths: see CountingEnv.
    """
    trapped = multiprocessing.current_process().name.startswith(place)
    if trapped and at == "make":
        spring(then)
    env = CountingEnv(env=0, lengths=lengths)
    return Trapped(env, at, then, step) if trapped else env


class Trapped(gymnasium.Wrapper[Any, Any, Any, Any]):  # type: ignore[misc] # gymnasium is not checked
    def __init__(self, env: gymnasium.Env[Any, Any], at: str, then: str, step: int) -> None:
        super().__init__(env)
        self._at, self._then, self._steps_left = at, then, step

    def reset(self, **options: Any) -> Any:
        if self._at == "reset":
            spring(self._then)
        return super().reset(**options)

    def step(self, action: Any) -> Any:
        self._steps_left -= 1
        if self._at == "step" and self._steps_left == 0:
            spring(self._then)
        return super().step(action)

    def close(self) -> None:
        if self._at == "close":
            spring(self._then)
        super().close()


class CountThreads(CountingEnv):
    """Writes the number of torch's threads and OMP_NUM_THREADS to `threads/<process name>` at each reset."""

    def reset(self, **options: Any) -> Any:
        import torch

        Path(THREADS).mkdir(exist_ok=True)
        threads = f"{torch.get_num_threads()} {os.environ.get('OMP_NUM_THREADS')}"
        (Path(THREADS) / multiprocessing.current_process().name).write_text(threads)
        return super().reset(**options)
