"""A plugin: there is memory for as many rings as RINGS in the environment says, and none for the next one.

The system refuses it, with the error of that name in REFUSED_WITH. Imported in a run alone, never in a test.
"""

from __future__ import annotations

import errno
import os
from typing import Any

from border_cli.transport.ring import Ring

_allowed = int(os.environ["RINGS"])
_error = getattr(errno, os.environ["REFUSED_WITH"])
_allocate, _init = os.posix_fallocate, Ring.__init__
_refusing = False


def _allocate_or_refuse(fd: int, offset: int, size: int) -> None:
    if _refusing:
        raise OSError(_error, os.strerror(_error))
    _allocate(fd, offset, size)


def _counted_init(self: Ring, *args: Any, **words: Any) -> None:
    global _allowed, _refusing
    _allowed -= 1
    _refusing = _allowed < 0
    try:
        _init(self, *args, **words)
    finally:
        _refusing = False


os.posix_fallocate = _allocate_or_refuse
Ring.__init__ = _counted_init  # type: ignore[method-assign]
