"""A plugin: between two opt steps the disk of the run directory is full, by a file that takes all the room there is."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any

from border_cli.agents.learner import Learner
from border_cli.recorders import tolerant

FULL_AT, FREE_AT = 1000, 2000
_FILLING = Path("disk/filling")
_opt = Learner.opt
tolerant.FIRST_RETRY_S = tolerant.LAST_RETRY_S = 1e-3  # type: ignore[misc]


def _fill() -> None:
    descriptor = os.open(_FILLING, os.O_WRONLY | os.O_CREAT)
    for size in (1 << 20, 1 << 12, 1):
        with contextlib.suppress(OSError):
            while True:
                os.write(descriptor, bytes(size))
    os.close(descriptor)


def _opt_on_a_full_disk(self: Learner, *args: Any, **words: Any) -> Any:
    if self.opt_steps == FULL_AT:
        _fill()
    if self.opt_steps == FREE_AT:
        _FILLING.unlink()
    return _opt(self, *args, **words)


Learner.opt = _opt_on_a_full_disk  # type: ignore[method-assign]
