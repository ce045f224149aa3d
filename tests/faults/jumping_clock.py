"""A wall clock that jumps back by an hour, forward by a day and so on, and an environment that installs it in actors."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Iterator
from typing import Any

import gymnasium

from tests.counting import CountingEnv


def jumping_clock() -> Iterator[float]:
    """Yield its readings [s]."""
    now = 1_700_000_000.0
    while True:
        yield now
        now -= 3600
        yield now
        now += 86400


def make() -> gymnasium.Env[Any, Any]:
    """Make a CountingEnv. In a child process the wall clock jumps from now on."""
    if multiprocessing.current_process().name != "MainProcess":
        clock = jumping_clock()
        time.time = lambda: next(clock)
        time.time_ns = lambda: int(1e9 * next(clock))
    return CountingEnv()
