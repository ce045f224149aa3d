"""A supervised child process, such as an actor: it is started, watched and ended, and restarted within a budget.

Nothing here waits: `SupervisedProcess.supervise` is called repeatedly and does what is due.
"""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from time import monotonic_ns
from typing import Any

from border_cli.core.errors import ActorLostError, IncompatibleStateError, ResourceError, first_line
from border_cli.runtime.child import Child
from border_cli.runtime.stopping import Deadline
from border_cli.runtime.worker import Failed, Ready

MAX_DELAY_S = 30.0
_MIN_CHECKS = 4


class HeartbeatMonitor:
    """Measures how long a counter has stood still.

    The time between two checks counts as at most a quarter of the timeout. So a learner that was stopped, perhaps
    together with the process that it watches, does not mistake its own pause for a missing heartbeat.
    """

    def __init__(self) -> None:
        self._count = -1
        self._still_ns = 0
        self._checked_ns = monotonic_ns()

    def timed_out(self, count: int, timeout_s: float) -> bool:
        """Check once: whether the counter has had this value for timeout_s [s]."""
        now, timeout_ns = monotonic_ns(), int(timeout_s * 1e9)
        if count != self._count:
            self._still_ns = 0
        else:
            self._still_ns += min(now - self._checked_ns, timeout_ns // _MIN_CHECKS)
        self._count, self._checked_ns = count, now
        return self._still_ns >= timeout_ns


class RestartBudget:
    """Allows at most `restarts` restarts within any `window_s` seconds, which may be infinite."""

    def __init__(self, restarts: int, window_s: float) -> None:
        self._restarts = restarts
        self._window_ns = window_s * 1e9
        self.spent: list[int] = []

    def spend(self) -> int | None:
        """Take one restart. Returns its number within the window that ends now, None if none is left."""
        now = monotonic_ns()
        self.spent = [at for at in self.spent if at > now - self._window_ns]
        if len(self.spent) >= self._restarts:
            return None
        self.spent.append(now)
        return len(self.spent)


def restart_delay_s(number: int, first_s: float) -> float:
    """Delay before a restart [s]: first_s, doubled for each earlier restart within the window, at most 30 s."""
    return min(MAX_DELAY_S, first_s * 2.0 ** min(number - 1, 60))


class Condition(enum.Enum):
    """The state of a supervised process."""

    NOT_STARTED = enum.auto()
    STARTING = enum.auto()
    READY = enum.auto()
    EXITING = enum.auto()  # it failed or was killed, and the process still exists
    BACKING_OFF = enum.auto()
    GIVEN_UP = enum.auto()


@dataclass(frozen=True)
class Limits:
    """When a process counts as hanging, and how often it is started again.

    start_timeout_s: time without a heartbeat before it is ready · heartbeat_timeout_s: the same once it is ready ·
    stop_timeout_s: time to exit after it failed or was asked to stop · restarts: allowed within restart_window_s ·
    restart_delay_s: before the first restart, doubled for each further one.
    """

    start_timeout_s: float
    heartbeat_timeout_s: float
    stop_timeout_s: float
    restarts: int
    restart_window_s: float
    restart_delay_s: float


@dataclass(frozen=True)
class Loss:
    """A process has ended without being asked to.

    restart: the number within the window of the restart that follows after delay_s [s], None if it is given up ·
    repeated: given up because the same exception came at the same step of the same episode as before.
    """

    cause: ActorLostError
    restart: int | None = None
    delay_s: float = 0.0
    repeated: bool = False


class SupervisedProcess(ABC):
    """Keeps one child process running. Subclasses say what runs, how to read its heartbeat, and what its messages mean.

    `losses` counts the ends of its processes.
    """

    start_hint = ""
    """A line with what the user can do if it is not ready in time."""

    def __init__(self, name: str, limits: Limits) -> None:
        self.name = name
        self.condition = Condition.NOT_STARTED
        self.losses = 0
        self.was_ready = False  # by any process so far
        self._limits = limits
        self._budget = RestartBudget(limits.restarts, limits.restart_window_s)
        self._monitor = HeartbeatMonitor()
        self._child: Child | None = None
        self._failed: Failed | None = None
        # exception and step of the episode in which the last process failed
        self._failed_at: tuple[Any, ...] = ()
        self._killed = False
        self._context: dict[str, Any] = {}  # what an exception that the process reports also says
        self._cause: ActorLostError | None = None
        self._due = Deadline(0.0)

    @abstractmethod
    def spawn(self) -> Child:
        """Start the process. Raises ResourceError."""

    @property
    @abstractmethod
    def heartbeat(self) -> int:
        """A counter that grows while the process works."""

    @property
    @abstractmethod
    def doing(self) -> str:
        """What the process is doing, for messages."""

    @property
    def is_watched(self) -> bool:
        """Whether its heartbeat is checked now."""
        return True

    def handle(self, message: object) -> None:  # noqa: B027 - not every process sends others
        """Handle a message other than `Failed`."""

    def release(self) -> None:  # noqa: B027 - not every process leaves something behind
        """Called once before each process is released, after its last message."""

    @property
    def pid(self) -> int | None:
        return None if self._child is None else self._child.pid

    @property
    def descriptors(self) -> Sequence[int]:
        """When one of these becomes readable, `receive` has something to do."""
        return () if self._child is None else self._child.descriptors

    def exited(self) -> bool:
        """Whether there is no process."""
        return self._child is None or self._child.exited()

    def start(self) -> None:
        """Start the process. Raises ResourceError if memory or descriptors are too few."""
        self._failed, self._cause, self._killed = None, None, False
        self._child = self.spawn()
        self._monitor = HeartbeatMonitor()
        self.condition = Condition.STARTING

    def send(self, message: object) -> None:
        if self._child is not None:
            self._child.send(message)

    def receive(self) -> None:
        """Handle the messages that have arrived, and notice if the process has exited."""
        if self._child is None:
            return
        exited = self._child.exited()
        for message in self._child.receive():
            if isinstance(message, Failed):
                self._failed = message
            else:
                if isinstance(message, Ready):
                    self.condition, self.was_ready = Condition.READY, True
                    self._monitor = HeartbeatMonitor()
                self.handle(message)
        if self._cause is None and (exited or self._failed is not None):
            self._cause = self._exit_cause(self._child)
            # it may still be closing its environments
            self.condition, self._due = Condition.EXITING, Deadline(self._limits.stop_timeout_s)

    def supervise(self) -> Loss | None:
        """Do what is due. Returns a loss after the process has ended and all its messages were received.

        Raises IncompatibleStateError if the process was given a saved state that does not fit.
        """
        match self.condition:
            case Condition.STARTING | Condition.READY:
                self._check_heartbeat()
            case Condition.EXITING:
                if self.exited():
                    return self._lose()
                if self._due.passed:
                    self.kill()
            case Condition.BACKING_OFF if self._due.passed:
                try:
                    self.start()
                except ResourceError as error:
                    self._cause = self._not_started(error)
                    return self._lose()
        return None

    def _not_started(self, error: ResourceError) -> ActorLostError:
        return ActorLostError(f"{self.name} could not be started again: {first_line(error)}")

    def kill(self) -> None:
        """Kill the process at once. `end` waits until it has ended."""
        if self._child is not None and not self._child.exited():
            self._killed = True
            self._child.kill()

    def end(self, grace_s: float = 0.0) -> None:
        """Release the process, which is killed unless it exits within grace_s [s]."""
        if self._child is None:
            return
        try:
            self.receive()
            self.release()
        finally:
            self._child.end(grace_s)
            self._child = None

    def _exit_cause(self, process: Child) -> ActorLostError:
        if process.start_error is not None and not self.losses:
            raise process.start_error
        if process.start_error is not None:
            return self._not_started(process.start_error)
        if self._failed is not None:
            context = {**self._context, **self._failed.context}
            return ActorLostError(self._failed.error, self._failed.traceback, context)
        how = f"{process.exit_reason} (it was {self.doing}){process.last_output}"
        return ActorLostError(f"{self.name} {how}")

    def _check_heartbeat(self) -> None:
        if not self.is_watched:
            self._monitor = HeartbeatMonitor()
            return
        starting = self.condition is Condition.STARTING
        timeout_s = self._limits.start_timeout_s if starting else self._limits.heartbeat_timeout_s
        if not self._monitor.timed_out(self.heartbeat, timeout_s):
            return
        lacking = "was not ready after" if starting else "gave no sign of life for"
        why = f"{self.name} {lacking} {timeout_s:g} s (it was {self.doing})"
        self._cause = ActorLostError(why + (f"\n{self.start_hint}" if starting and self.start_hint else ""))
        self.kill()
        self.condition, self._due = Condition.EXITING, Deadline(0.0)

    def _lose(self) -> Loss:
        """Release what is left of the process, and decide whether it is started again."""
        cause, failed = self._cause, self._failed
        assert cause is not None
        self.end()
        self.losses += 1
        if failed is not None and failed.incompatible:
            raise IncompatibleStateError(failed.error)
        before, self._failed_at = self._failed_at, ()
        if failed is not None and failed.context.get("phase") == "step":
            raised = failed.traceback.rpartition('  File "')[2].partition("\n")[0]
            self._failed_at = raised, *(failed.context[name] for name in ("env", "episode", "step"))
        repeated = bool(before) and before == self._failed_at
        number = None if repeated else self._budget.spend()
        if number is None:
            self.condition = Condition.GIVEN_UP
            return Loss(cause, repeated=repeated)
        delay_s = restart_delay_s(number, self._limits.restart_delay_s)
        self.condition, self._due = Condition.BACKING_OFF, Deadline(delay_s)
        return Loss(cause, number, delay_s)
