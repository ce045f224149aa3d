"""CartPole that writes down when it was stepped first."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import gymnasium


class ClockedCartPole(gymnasium.Wrapper[Any, Any, Any, Any]):
    """folder: one file per process appears in it at the first step, holding `time.monotonic()` [s].

    That clock is the same in every process of a machine.
    """

    def __init__(self, folder: str) -> None:
        super().__init__(gymnasium.make("CartPole-v1"))
        self._folder = Path(folder)
        self._stepped = False

    def step(self, action: Any) -> Any:
        """As CartPole's."""
        if not self._stepped:
            self._stepped = True
            (self._folder / f"{os.getpid()}.txt").write_text(repr(time.monotonic()), encoding="utf-8")
        return self.env.step(action)
