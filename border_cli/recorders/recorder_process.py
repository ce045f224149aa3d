"""A recorder in its own process: if it raises, blocks or loses its network, only its records are lost."""

from __future__ import annotations

import logging
import select
import sys
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

from border_cli.core.errors import first_line
from border_cli.core.metrics import Record
from border_cli.core.protocols import Recorder, StopCheck
from border_cli.runtime.child import Child
from border_cli.runtime.worker import Failed, Reporter

MAX_QUEUE = 10_000
"""Records that wait for a recorder that blocks; the oldest are dropped."""
STOPPED_S = 15.0
"""The longest wait at the end of a run that was asked to stop [s], because it may soon be killed."""
_POLL_S = 0.1
_WRITTEN = "written"
"""Message of the process: it has written one more record."""
_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Call:
    """Message to the process: call this method of the recorder. close is the last one."""

    method: str
    args: tuple[Any, ...] = ()


class RemoteRecorder(Recorder):
    """Passes records on to a recorder in its own process, and never waits for it before the end.

    Args:
        name: for messages.
        maker: makes the recorder, in the process. Imported there.
        finish_s: how long `close` waits for the records that are left [s].
        should_stop: whether the run was asked to stop; then `close` waits for STOPPED_S at most.

    Attributes:
        dropped: known after `close`.
    """

    def __init__(
        self, name: str, maker: Callable[[], Any], finish_s: float, should_stop: StopCheck = lambda: False
    ) -> None:
        self.name = name
        self._finish_s = finish_s
        self._should_stop = should_stop
        self._queue: deque[Call] = deque(maxlen=MAX_QUEUE)
        self._failed = self._closing = False
        self._process = Child(f"recorder {name}", _main, (maker,))

    def write(self, record: Record) -> None:
        """Pass the record on, or keep it until the process takes it."""
        self._take(Call("write", (record,)))

    def video(self, path: Path, opt_steps: int, env_steps: int) -> None:
        self._take(Call("video", (path, opt_steps, env_steps)))

    def _take(self, call: Call) -> None:
        self.dropped += 1  # until the process says that it is written
        if not self._failed and not self._closing:
            self._queue.append(call)
            self._pass_on()

    def close(self) -> None:
        """Give the process some time for what is left, and end it. Closing again does nothing."""
        if self._closing:
            return
        self._closing, process = True, self._process
        if isinstance(sys.exc_info()[1], Exception):  # a recorder is closed while an error ends its run
            self._queue.append(Call("mark_failed"))
        self._queue.append(Call("close"))
        began = time.monotonic()
        try:
            while not self._failed and not process.exited() and time.monotonic() - began < self._most_s:
                self._pass_on()
                wait(process.descriptors, min(self._most_s, _POLL_S))
            self._receive()
            if not self._failed and not process.exited():
                more = "" if self._should_stop() else "; a higher recorder.finish_s waits longer"
                _logger.warning("%s has not ended after %g s and is killed%s", self.name, self._most_s, more)
        finally:
            process.end()
        if self.dropped:
            _logger.warning("%s lacks %d records", self.name, self.dropped)

    @property
    def _most_s(self) -> float:
        return min(self._finish_s, STOPPED_S) if self._should_stop() else self._finish_s

    def _pass_on(self) -> None:
        """Send what the process takes without waiting: the buffer of its pipe is then nearly empty."""
        self._receive()
        pipe = select.poll()  # select.select knows the first 1,024 descriptors alone
        pipe.register(self._process.descriptors[0], select.POLLOUT)
        while self._queue and not self._failed and pipe.poll(0):
            self._process.send(self._queue.popleft())

    def _receive(self) -> None:
        """Take messages. A process that has failed, or exited, gets no more records."""
        process, has_exited = self._process, self._process.exited()
        for message in process.receive():
            if message == _WRITTEN:
                self.dropped -= 1
            elif isinstance(message, Failed):
                self._fail(message.error)
        if has_exited and process.outcome is None and not self._failed:
            self._fail(f"recorder {self.name} {process.exit_reason}")

    def _fail(self, why: str) -> None:
        self._failed = True
        self._queue.clear()
        _logger.warning("%s%s", why, "" if self._closing else "; its records are lost, training continues")


def _main(reporter: Reporter, maker: Callable[[], Any]) -> None:
    recorder, has_warned = maker(), False
    while (call := reporter.pipe.recv()).method != "close":
        try:
            # A recorder of the user may have the methods write and close alone.
            if call.method == "write" or hasattr(recorder, call.method):
                getattr(recorder, call.method)(*call.args)
        except Exception as e:  # noqa: BLE001 - anything may go wrong in another program; the record is lost
            if not has_warned:
                what = f"{type(e).__name__}: {first_line(e)}"
                _logger.warning("%s; records may be lost, training continues", what)
            has_warned = True
        else:
            if call.args:
                reporter.send(_WRITTEN)
    recorder.close()
