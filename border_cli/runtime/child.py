"""A process for user code: the trial of an environment, an actor, an evaluator, a film, a tracker, a compiler, a job."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
from collections.abc import Callable, Iterator, Mapping
from multiprocessing import reduction
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

from border_cli.core.errors import ResourceError
from border_cli.runtime import forkserver
from border_cli.runtime.stopping import Deadline
from border_cli.runtime.transport import resource_error
from border_cli.runtime.worker import Ended, Failed, Reporter, Returned, Setup

OUTPUT_FILE = "output.log"
"""What children print, in the run directory."""
_NICER = 3
_POLL_S = 0.1
_KILL_S = 5.0
_CLOSE_S = 5.0
"""How long a child may take to exit once it has answered [s]."""


class ChildError(Exception):
    """A child raised `error_type`, with a traceback in `details`; both are empty if it died."""

    def __init__(self, error_type: str, message: str, details: str = "") -> None:
        super().__init__(message)
        self.error_type = error_type
        self.details = details


_output: Path | None = None


@contextlib.contextmanager
def output_to(path: Path) -> Iterator[None]:
    """What children print that are started inside is appended to this file."""
    global _output
    before, _output = _output, path.absolute()
    try:
        yield
    finally:
        _output = before


class Child:
    """A process that runs `main(reporter, *args)`. It can never block its client, the process that started it.

    It has its own process group. Processes that it has started end with it, in any session, and it ends with its
    client. Its output goes to output.log. Signals that stop a run are left to the client.

    Args:
        name: of the process, and the prefix of what it logs.
        main: importable by its path. What it needs is imported in the child, so a failing import is an error of the child.
        args: pickled; shared blocks and events are passed on.
        nice: by how much its priority is lower.
        trains: it is a job: it starts children itself, has the priority, threads and devices of its client, and SIGTERM
            ends it until it handles that.
        environment: variables that differ from those of this process.

    outcome: what it has returned, or how it failed, once that has arrived · start_error: why the system did not start it.
    Raises ResourceError if there is no memory or descriptor.
    """

    def __init__(
        self,
        name: str,
        main: Callable[..., Any],
        args: tuple[Any, ...] = (),
        *,
        nice: int = _NICER,
        trains: bool = False,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.outcome: Returned | Failed | None = None
        self.start_error: ResourceError | None = None
        self._name = name
        self._pid: int | None = None
        self._ended: Ended | None = None
        self._pieces: list[bytes] = []
        output = None if _output is None else str(_output)
        fixed = {} if trains else forkserver.CHILD_ENVIRONMENT
        variables = os.environ | fixed | dict(environment or {})
        level, prepared = logging.getLogger().level, forkserver.preparation(name.replace(" ", "-"))
        setup = Setup(name, output, variables, level, nice, trains, prepared)
        self._pipe, theirs = forkserver.connected(name)
        with contextlib.closing(theirs), contextlib.ExitStack() as undo:
            undo.callback(self._pipe.close)
            self._status = forkserver.start(setup, main, args, theirs.fileno())
            undo.pop_all()

    @property
    def pid(self) -> int | None:
        self._look()
        return self._pid

    @property
    def descriptors(self) -> tuple[int, int]:
        """Descriptors that become readable when it has sent a message, has started, or has ended."""
        return self._pipe.fileno(), self._status.fileno()

    def send(self, message: object) -> None:
        """Send a short message. Does nothing if it has died, which `exited` shows."""
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self._pipe.send(message)

    def receive(self) -> Iterator[object]:
        """Messages that have arrived, without waiting; log records are logged."""
        with contextlib.suppress(EOFError, ConnectionResetError, BrokenPipeError):
            while self._pipe.poll():
                piece = self._pipe.recv_bytes()
                self._pieces.append(piece[1:])
                if piece[:1] == b"-":
                    continue
                message = reduction.ForkingPickler.loads(b"".join(self._pieces))
                self._pieces = []
                if isinstance(message, logging.LogRecord):
                    log_here(message)
                    continue
                if isinstance(message, Returned | Failed):
                    self.outcome = message
                yield message

    def exited(self) -> bool:
        """Whether it has ended, with all that it had started. What it has sent can still be received."""
        self._look()
        return self._ended is not None

    @property
    def exit_code(self) -> int | None:
        """None while it runs; negative for a signal that killed it."""
        self._look()
        return None if self._ended is None else self._ended.code

    @property
    def exit_reason(self) -> str:
        """How it ended, such as "was killed by SIGKILL"."""
        if (code := self.exit_code or 0) >= 0:
            return f"exited with code {code}"
        names = {number.value: number.name for number in signal.Signals}  # most real-time signals have none
        return f"was killed by {names.get(-code, f'signal {-code}')}"

    @property
    def last_output(self) -> str:
        """For messages after its end: a line that quotes the last line that it printed; empty if there is none."""
        lines = [] if self._ended is None else self._ended.tail.strip().splitlines()
        return f"\nits last output: {lines[-1].strip()}" if lines else ""

    def signal(self, number: signal.Signals) -> None:
        if not self.exited():
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                self._status.send_bytes(bytes([number]))

    def kill(self) -> None:
        """Kill it at once. `exited` shows when it has ended."""
        if (server := forkserver.forkserver_pid()) is not None:  # it may have been stopped
            os.kill(server, signal.SIGCONT)  # our child, not waited for yet: the number is its own
        self.signal(signal.SIGKILL)

    def end(self, grace_s: float = 0.0) -> None:
        """Release it, once; kill it unless it exits within grace_s [s]."""
        if self._status.closed:
            return
        self._pipe.close()
        if not self._ends_within(grace_s):
            self.kill()
            self._ends_within(_KILL_S)
        self._status.close()

    def poll(self, timeout_s: float = 0.0) -> bool:
        """Whether its function has returned or failed, or the process died; waits for at most timeout_s."""
        deadline = Deadline(timeout_s)
        while True:
            has_exited = self.exited()
            for _ in self.receive():
                pass
            if self.outcome is not None or has_exited:
                return True
            if not wait(self.descriptors, deadline.remaining_s) and deadline.passed:
                return False

    def answer(self, timeout_s: float, waiting: Callable[[], None] = lambda: None) -> Any:
        """Wait for the result, and end the process.

        waiting: called again and again meanwhile; what it raises ends the waiting.
        Raises ChildError if the process raised or died, TimeoutError after timeout_s, ResourceError.
        """
        grace_s = 0.0
        try:
            deadline = Deadline(timeout_s)
            while not self.poll(min(_POLL_S, deadline.remaining_s)):
                waiting()
                if deadline.passed:
                    raise TimeoutError(f"no answer within {timeout_s:g} s")
            grace_s = _CLOSE_S
            return self.result()
        finally:
            self.end(grace_s)

    def result(self) -> Any:
        """What its function has returned, when `poll` is true. Raises ChildError if it raised or died, ResourceError."""
        if self.start_error is not None:
            raise self.start_error
        outcome = self.outcome
        if isinstance(outcome, Returned):
            return outcome.value
        if isinstance(outcome, Failed):
            raise ChildError(outcome.error_type, outcome.message, outcome.traceback)
        raise ChildError("", f"the process {self.exit_reason}{self.last_output}")

    def _look(self) -> None:
        """Take what the fork server has sent."""
        while self._ended is None and not self._status.closed:
            try:
                if not self._status.poll():
                    return
                message = self._status.recv()
            except (EOFError, ConnectionResetError):  # the fork server died, and its children with it
                if self._pid is None or forkserver.pid_gone(self._pid):
                    self._ended = Ended(-signal.SIGKILL)
                else:
                    os.kill(self._pid, signal.SIGKILL)  # where the kernel does not do that
                return
            if isinstance(message, int):
                self._pid = message
                continue
            self._ended = message
            if message.errno:
                refused = OSError(message.errno, os.strerror(message.errno))
                self.start_error = resource_error(refused, f"starting {self._name}")

    def _ends_within(self, seconds: float) -> bool:
        deadline = Deadline(seconds)
        while not self.exited() and not deadline.passed:
            wait([self._status], min(_POLL_S, deadline.remaining_s))
        return self.exited()


def call(_: Reporter, function: Any, args: tuple[Any, ...]) -> Any:
    """The main function of a child that only calls a function."""
    return function(*args)


def log_here(record: logging.LogRecord) -> None:
    """Log a record of a child as if it had been logged in this process."""
    logger = logging.getLogger(record.name)
    if logger.isEnabledFor(record.levelno):
        logger.handle(record)
