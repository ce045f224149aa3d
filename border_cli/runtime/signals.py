"""Stopping on SIGINT and SIGTERM: a flag that everything polls."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any

from border_cli.core.errors import ExitCode

_CODES = {signal.SIGINT: ExitCode.SIGINT, signal.SIGTERM: ExitCode.SIGTERM}


class StopFlag:
    """Set by the first SIGINT or SIGTERM while it is entered; called, it says whether it is set.

    The first signal also gives SIGINT its default action back: a second Ctrl-C ends the process at once.
    On leaving, both handlers are as they were. Outside the main thread, which alone may handle signals, only
    `request` sets it.
    """

    def __init__(self) -> None:
        self.code: ExitCode | None = None
        self._previous: dict[signal.Signals, Any] = {}

    def __call__(self) -> bool:
        """Whether the run has been asked to stop."""
        return self.code is not None

    def request(self, code: ExitCode) -> None:
        """Set the flag; the first code stays."""
        if self.code is None:
            self.code = code

    def __enter__(self) -> StopFlag:
        if threading.current_thread() is threading.main_thread():
            self._previous = {number: signal.signal(number, self._on_signal) for number in _CODES}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._previous.items():
            # None: installed by something that is not Python, which cannot be put back from here
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        self._previous = {}

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        del frame
        self.request(_CODES[signal.Signals(number)])
        signal.signal(signal.SIGINT, signal.SIG_DFL)


@contextmanager
def own_or(stop: StopFlag | None) -> Iterator[StopFlag]:
    """The caller's flag, which is entered already, or one for as long as this lasts."""
    if stop is not None:
        yield stop
    else:
        with StopFlag() as own:
            yield own
