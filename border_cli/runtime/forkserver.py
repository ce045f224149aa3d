"""Start children: from a forkserver that has done the heavy imports, or by spawn where there is none.

`start_early` belongs before the learner's own imports: both processes then import torch at the same time.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import multiprocessing
import os
import signal
import sys
import traceback
import weakref
from collections.abc import Callable, Iterator, Sequence
from multiprocessing import forkserver, resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import psutil

from border_cli.core.protocols import StopCheck
from border_cli.runtime import child
from border_cli.runtime.clock import Deadline
from border_cli.transport import resource_error

LIGHT_PRELOAD = (
    "border_cli.runtime.preload",
    "gymnasium",
    "border_cli.build",
    "border_cli.actors.process",
)
"""Imported once in the forkserver of a run whose only child makes the environment for a look at its spaces."""
PRELOAD = (*LIGHT_PRELOAD, "torch", "border_cli.agents.dqn.agent", "border_cli.agents.sac.agent")
"""Imported once for children with a policy; importing runs no torch operation, so that forking afterwards is safe."""

_CHILD_ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "CUDA_VISIBLE_DEVICES": "",
}
_COMMANDS = ("border-train", "border-eval", "border-bench")
"""The scripts that an installer makes of our entry points."""
_POLL_S = 0.1
_KILL_TIMEOUT_S = 5.0
_started: weakref.WeakSet[BaseProcess] = weakref.WeakSet()


class ChildError(Exception):
    """A function in a child raised `error_type`, with a traceback in `details`; both are empty if the child died."""

    def __init__(self, error_type: str, message: str, details: str = "") -> None:
        super().__init__(message)
        self.error_type = error_type
        self.details = details


class ChildStopped(Exception):
    """The run was asked to stop while a child was waited for."""


_preloaded: Sequence[str] = ()


def start_early(preload: Sequence[str] = PRELOAD) -> None:
    """Start the forkserver if it does not run yet and return at once. Nothing happens where there is none."""
    global _preloaded
    if _has_forkserver() and forkserver_pid() is None:
        _preloaded = tuple(preload)
        forkserver.set_forkserver_preload(list(preload))
        _ensure_forkserver()


def end_light_forkserver() -> None:
    """End the forkserver of an earlier run in this process, if it lacks what children with a policy need."""
    if _preloaded == LIGHT_PRELOAD:
        end_forkserver()


def end_forkserver() -> None:
    """Kill the forkserver, if there is one. The next child starts another one."""
    if (pid := forkserver_pid()) is not None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        server: Any = forkserver._forkserver  # this method is private
        server._stop()


def start_process(target: Callable[..., None], args: tuple[Any, ...], name: str) -> BaseProcess:
    """Start `target(*args)` in a child that is tied to this process (`child.enter`). Raises ResourceError."""
    method = "forkserver" if _has_forkserver() else "spawn"
    # joblib's workers set a default start method of their own, `loky`, which a child would not know.
    default = multiprocessing.get_start_method(allow_none=True)
    if default is not None and default not in multiprocessing.get_all_start_methods():
        multiprocessing.set_start_method(method, force=True)
    try:
        if method == "forkserver":
            start_early()
            _ensure_forkserver()
        parent_pid = forkserver_pid() if method == "forkserver" else os.getpid()
        context: Any = multiprocessing.get_context(method)
        process: BaseProcess = context.Process(target=_entry, args=(parent_pid, target, args), name=name)
        with _child_environment(), signals_blocked(), without_own_script():
            process.start()
    except OSError as error:
        raise resource_error(error, f"starting {name}") from error
    except EOFError as error:
        # The forkserver could not fork, and exited because of that; the next start brings another one.
        raise resource_error(OSError(errno.EAGAIN, os.strerror(errno.EAGAIN)), f"starting {name}") from error
    _started.add(process)
    return process


def run_in_child(
    function: Callable[..., Any],
    args: tuple[Any, ...],
    timeout_s: float,
    should_stop: StopCheck = lambda: False,
) -> Any:
    """Run `function(*args)` in a child process, which has ended when this returns.

    Raises ChildError if it raised or the child died, TimeoutError after timeout_s, and ChildStopped if should_stop became
    true.
    """
    with contextlib.closing(ChildCall(function, args)) as call:
        deadline = Deadline(timeout_s)
        while not call.poll(min(_POLL_S, deadline.remaining_s)):
            if should_stop():
                raise ChildStopped
            if deadline.passed:
                raise TimeoutError(f"no answer within {timeout_s:g} s")
        return call.result()


class ChildCall:
    """`function(*args)` in a child process while the caller continues. Close it.

    The function must be importable by its path, and its result plain data.
    """

    def __init__(self, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
        name = getattr(function, "__name__", "child")
        self._pipe, theirs = child.new_pipe(name)
        try:
            with contextlib.closing(theirs):
                self._process = start_process(_call_function, (theirs,), name)
        except BaseException:
            self._pipe.close()
            raise
        self._pid = self._process.pid
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # `result` says that the child died
            self._pipe.send((function, args))

    def poll(self, timeout_s: float = 0.0) -> bool:
        """Whether there is a result, or the child died; waits for at most timeout_s."""
        return bool(wait([self._pipe], timeout_s))

    def result(self) -> Any:
        """Wait for what the function returns. Raises ChildError if it raised or the child died."""
        try:
            kind, *content = self._pipe.recv()
        except (EOFError, ConnectionResetError):
            self._process.join(_KILL_TIMEOUT_S)
            raise ChildError("", f"the process {describe_exit(self._process.exitcode)}") from None
        if kind == "error":
            raise ChildError(*content)
        return content[0]

    def close(self) -> None:
        """End the child, with every process it has started if it leads a group."""
        self._pipe.close()
        end_process(self._process)
        if self._pid is not None:
            end_group(self._pid)


def end_process(process: BaseProcess, grace_s: float = 0.0) -> None:
    """Kill a child unless it exits within grace_s [s], and release its resources. Never hangs."""
    process.join(grace_s)
    if process.pid is not None and not pid_gone(process.pid):
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL)
    process.join(_KILL_TIMEOUT_S)
    if process.exitcode is not None:
        process.close()


def end_group(pid: int) -> None:
    """Kill the rest of the process group that a process led which has ended. Does nothing if it led none.

    Call it as soon as the process is gone: its id is not given to another one while its group has members.
    """
    with contextlib.suppress(ProcessLookupError, PermissionError):  # macOS: only zombies are left
        os.killpg(pid, signal.SIGKILL)


def pid_gone(pid: int) -> bool:
    """Whether no process runs under this id; one that only waits to be reaped counts as gone."""
    try:
        return psutil.Process(pid).status() in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    except psutil.NoSuchProcess:
        return True


def describe_exit(exitcode: int | None) -> str:
    """How a process ended, in words."""
    if exitcode is None:
        return "has not ended"
    if exitcode >= 0:
        return f"exited with code {exitcode}"
    try:
        return f"was killed by {signal.Signals(-exitcode).name}"
    except ValueError:  # most real-time signals have no name
        return f"was killed by signal {-exitcode}"


def forkserver_pid() -> int | None:
    """Process id of the forkserver, None while there is none."""
    server: Any = forkserver._forkserver  # its fields are private
    pid: int | None = server._forkserver_pid
    return pid


def _has_forkserver() -> bool:
    return "forkserver" in multiprocessing.get_all_start_methods()


def _ensure_forkserver() -> None:
    # The tracker first: starting it unblocks signals, which must stay blocked until the forkserver ignores them. The
    # tracker handles SIGINT and SIGTERM itself; SIGUSR1, which would end it, stays blocked there.
    with signals_blocked():
        start_tracker()
    with _child_environment(), signals_blocked():
        forkserver.ensure_running()


def start_tracker() -> None:
    """Start the resource tracker of multiprocessing, if it does not run yet.

    It would warn, after the command has returned, of the semaphores of a process that was killed, such as a compiler.
    """
    option = "ignore:resource_tracker:UserWarning"
    sys.warnoptions.append(option)
    try:
        resource_tracker.ensure_running()
    finally:
        sys.warnoptions.remove(option)


@contextlib.contextmanager
def _child_environment() -> Iterator[None]:
    """One thread per library and no GPU, in the environment that a process started inside gets."""
    before = {name: os.environ.get(name) for name in _CHILD_ENVIRONMENT}
    os.environ.update(_CHILD_ENVIRONMENT)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@contextlib.contextmanager
def signals_blocked() -> Iterator[None]:
    """A process started inside blocks the learner's signals until it has set its own handlers."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, child.LEFT_TO_LEARNER)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextlib.contextmanager
def without_own_script() -> Iterator[None]:
    """Keep a child started inside from running the script of one of our commands again, as its main module.

    Its imports take a third of a second. Other scripts are run as usual: a child may need what they define or register.
    """
    main = sys.modules["__main__"]
    path = getattr(main, "__file__", None)
    if path is None or Path(path).name not in _COMMANDS:
        yield
        return
    main.__file__ = None
    try:
        yield
    finally:
        main.__file__ = path


def _entry(parent_pid: int, target: Callable[..., None], args: tuple[Any, ...]) -> None:
    child.enter(parent_pid)
    target(*args)


def _call_function(pipe: Connection) -> None:
    """Child side of `run_in_child`. What to call comes through the pipe: importing it may already fail."""
    try:
        function, args = pipe.recv()
        child.one_torch_thread()
        answer = ("result", function(*args))
    except BaseException as error:
        pipe.send(("error", type(error).__name__, str(error), traceback.format_exc()))
        raise SystemExit(1) from error
    pipe.send(answer)


def _kill_survivors() -> None:
    """Kill the children that are left, before the interpreter waits for them without a limit."""
    for process in list(_started):
        with contextlib.suppress(ValueError):  # closed: it has ended
            if process.is_alive():
                process.kill()


atexit.register(_kill_survivors)
