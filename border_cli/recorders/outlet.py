"""Writing for a person who may be gone: a closed terminal or pipe ends what is shown, never the run."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from typing import IO

_logger = logging.getLogger(__name__)


class Outlet:
    """Guards everything that is written to one stream. `open` turns false, for good, once the stream is gone.

    stream: asked for each time, because a console follows `sys.stdout`.
    """

    def __init__(self, stream: Callable[[], IO[str]]) -> None:
        self._stream = stream
        self.open = True

    def attempt(self, write: Callable[[], object]) -> None:
        """Write, unless the stream is gone. Raises what `write` raises for any other reason than that."""
        if not self.open:
            return
        try:
            write()
        except OSError as e:
            self._close(str(e))
        except ValueError as e:
            if not self._stream().closed:  # then it is no "I/O operation on closed file" but a defect
                raise
            self._close(str(e))
        except SystemExit:  # rich's answer to a broken pipe, where ours is to go on training
            self._close("broken pipe")

    def _close(self, reason: str) -> None:
        self.open = False  # before logging: the message may be on its way back to this very outlet
        _discard(self._stream())
        _logger.warning("nothing more is shown, the run goes on: %s", reason)


def printable(text: str, encoding: str) -> str:
    """Text that this encoding can hold; control characters, which a terminal would obey, become spaces."""
    visible = "".join(c if c.isprintable() or c == "\n" else " " for c in text)
    return visible.encode(encoding, "replace").decode(encoding)


def _discard(stream: IO[str]) -> None:
    """Let what is still buffered go nowhere: else the flush at exit fails and changes the exit code."""
    try:
        descriptor = stream.fileno()
    except (OSError, ValueError):
        return  # closed, or no file behind it: nothing is left to be flushed
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, descriptor)
    os.close(nowhere)
