"""A plugin that sends SIGUSR1 to the learner right after the opt steps that ASKED_AT says.

Imported in a run alone, never in a test: it changes the limiter of the process that imports it.
"""

from __future__ import annotations

import os
import signal

from border_cli.replay.limiter import RatioLimiter
from tests.faults.asked import ASKED_AT

_asked_at = [int(word) for word in os.environ[ASKED_AT].split(",")]
_opted = RatioLimiter.opted


def _opted_and_asked(self: RatioLimiter) -> None:
    _opted(self)
    if self.opt_steps in _asked_at:
        os.kill(os.getpid(), signal.SIGUSR1)


RatioLimiter.opted = _opted_and_asked  # type: ignore[method-assign]
