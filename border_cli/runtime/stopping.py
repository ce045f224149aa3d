"""How a run is asked to stop, how long something waits, and how started parts are ended.

Signals set flags that everything polls: SIGINT, SIGTERM and SIGHUP stop a run, SIGUSR1 makes it save a checkpoint.
Deadlines use the monotonic clock, which is the same for every process of the machine.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from time import monotonic_ns, sleep
from types import FrameType
from typing import Any

from border_cli.core.errors import ExitCode, Interrupted

_CODES = {
    signal.SIGINT: ExitCode.SIGINT,
    signal.SIGTERM: ExitCode.SIGTERM,
    signal.SIGHUP: ExitCode.SIGTERM,  # the terminal has closed
}

LEFT_TO_CLIENT = (*_CODES, signal.SIGUSR1)
"""Signals that may reach a whole process group, but that only the learner or the sweep acts on."""
_SAME_KEY_PRESS_S = 0.5
_handlers: dict[int, Callable[..., object]] = {}


def handle(number: signal.Signals, handler: Callable[..., object]) -> Any:
    """Install a handler, which processes that user code forks do not keep. Returns the one before."""
    _handlers[number] = handler
    return signal.signal(number, handler)


def _same_key_press(*_: object) -> None:
    """The handler of SIGINT shortly after a first one."""


_unblocked = threading.local()


def _before_fork() -> None:
    """Hold signals back, so that the new process gets them when its handlers are in place."""
    _unblocked.mask = signal.pthread_sigmask(signal.SIG_BLOCK, LEFT_TO_CLIENT)


def _after_fork() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, _unblocked.mask)


def _after_fork_in_child() -> None:
    """Restore default handlers in a forked process, such as a worker of a `Pool`: signals have to end it."""
    for number, handler in _handlers.items():
        if signal.getsignal(number) == handler:
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    _after_fork()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork_in_child)


@contextmanager
def blocked() -> Iterator[None]:
    """A process that is started in this context blocks these signals until it has set its own handlers."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, LEFT_TO_CLIENT)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def handlers_restored() -> Iterator[None]:
    """Restore the handlers of these signals that are replaced inside."""
    before = {number: signal.getsignal(number) for number in LEFT_TO_CLIENT}
    try:
        yield
    finally:
        for number, handler in before.items():
            if signal.getsignal(number) != handler:
                signal.signal(number, handler)


class StopFlag:
    """A context manager in which the first SIGINT, SIGTERM or SIGHUP sets a flag, and SIGUSR1 requests a checkpoint.

    The first signal also restores the default action of SIGINT, half a second later: another Ctrl-C ends the process at
    once. Within that time a SIGINT is the same key press, which a wrapper around this command has forwarded. On exit, all
    handlers are restored. A SIGHUP that is ignored, as under nohup, stays ignored. Only the main thread may handle signals;
    elsewhere only `request` sets the flag.
    """

    def __init__(self) -> None:
        self.code: ExitCode | None = None
        self._save_requested = self._signalled = False
        self._previous: dict[signal.Signals, Any] = {}

    def __call__(self) -> bool:
        """Whether the run has been asked to stop."""
        return self.code is not None

    def check(self) -> None:
        """Raise Interrupted once the run has been asked to stop."""
        if self.code is not None:
            raise Interrupted(self.code)

    def request(self, code: ExitCode) -> None:
        """Set the flag; the first code stays."""
        if self.code is None:
            self.code = code

    def take_save_request(self) -> bool:
        """Whether a checkpoint was asked for since the last call."""
        requested, self._save_requested = self._save_requested, False
        return requested

    def __enter__(self) -> StopFlag:
        if threading.current_thread() is threading.main_thread():
            ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
            numbers = [number for number in LEFT_TO_CLIENT if number is not signal.SIGHUP or not ignored]
            self._previous = {number: handle(number, self._on_signal) for number in numbers}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            # None: installed by something that is not Python, which cannot be put back from here
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        self._previous = {}

    def _on_signal(self, number: int, _: FrameType | None) -> None:
        if number == signal.SIGUSR1:
            self._save_requested = True
            return
        self.request(_CODES[signal.Signals(number)])
        if self._signalled:
            return
        self._signalled = True
        handle(signal.SIGINT, _same_key_press)
        sleep(_SAME_KEY_PRESS_S)
        # Process 1 of a container has no default action.
        again = signal.SIG_DFL if os.getpid() != 1 else lambda *_: os._exit(ExitCode.SIGINT)
        signal.signal(signal.SIGINT, again)


class Backoff:
    """Sleeps that grow from 0.1 ms to `last_s`: quick in short waits, cheap in long ones."""

    def __init__(self, last_s: float = 5e-3) -> None:
        self._next_s, self._last_s = 1e-4, last_s

    def sleep(self) -> None:
        sleep(self._next_s)
        self._next_s = min(2 * self._next_s, self._last_s)


class Deadline:
    """A moment in the future."""

    def __init__(self, seconds: float) -> None:
        self._at_ns = monotonic_ns() + int(seconds * 1e9)

    @property
    def remaining_s(self) -> float:
        """Seconds left, 0 once it has passed."""
        return max(0.0, (self._at_ns - monotonic_ns()) / 1e9)

    @property
    def passed(self) -> bool:
        return self.remaining_s == 0.0


def run_all(stages: Sequence[Callable[[], object]]) -> None:
    """Call each stage, also after one that raised. Raises the last error, with the earlier ones as its context."""
    if len(stages) == 1:
        stages[0]()
    elif stages:
        half = len(stages) // 2  # halves, because there may be a thousand stages
        try:
            run_all(stages[:half])
        finally:
            run_all(stages[half:])
