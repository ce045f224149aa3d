"""CartPole that records the time of its first step."""

from __future__ import annotations

import multiprocessing
import os
import time
from pathlib import Path
from typing import Any

import gymnasium


class ClockedCartPole(gymnasium.Wrapper[Any, Any, Any, Any]):
    """folder: the first step in each actor's process writes a file with `time.monotonic()` [s] into it.

    All processes of a machine share this clock.
    """

    def __init__(self, folder: str) -> None:
        super().__init__(gymnasium.make("CartPole-v1"))
        self._folder = Path(folder)
        self._stepped = not multiprocessing.current_process().name.startswith("actor")

    def step(self, action: Any) -> Any:
        """Step CartPole."""
        if not self._stepped:
            self._stepped = True
            (self._folder / f"{os.getpid()}.txt").write_text(repr(time.monotonic()), encoding="utf-8")
        return self.env.step(action)
