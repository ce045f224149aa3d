"""A plugin: the learner runs out of memory in opt step STARVED_AT, for real: its address space is limited then.

Imported in a run alone, never in a test: it changes the agent of the process that imports it.
"""

from __future__ import annotations

import resource
from pathlib import Path
from typing import Any

import numpy as np

from border_cli.agents.learner import Learner
from tests.faults.marks import STARVED_AT

_ROOM = 64 * 2**20
_opt = Learner.opt


def _starving_opt(self: Learner, *args: Any, **words: Any) -> Any:
    if self.opt_steps + 1 == STARVED_AT:
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + _ROOM, resource.RLIM_INFINITY))
        np.ones(2 * _ROOM, np.uint8)
    return _opt(self, *args, **words)


Learner.opt = _starving_opt  # type: ignore[method-assign]
