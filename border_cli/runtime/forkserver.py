"""Starting children: from a forkserver that has the heavy imports behind it, or by spawn where there is none.

`start_early` belongs before the learner's own import of torch: the two imports then run side by side.
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
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from border_cli.core.protocols import StopCheck
from border_cli.runtime import child
from border_cli.runtime.clock import Deadline
from border_cli.runtime.memory import resource_error

PRELOAD = ("border_cli.runtime.forkserver_preload", "torch", "gymnasium", "border_cli.actors.process")
"""Imported once in the forkserver; importing runs no torch operation, so that forking afterwards is safe."""

_CHILD_ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "CUDA_VISIBLE_DEVICES": "",
}
_COMMANDS = ("border-train", "border-eval")
"""The scripts that an installer makes of our entry points."""
_POLL_S = 0.1


class ChildError(Exception):
    """A function that ran in a child raised, or the child died.

    error_type: name of the exception's class, empty if it died. details: the traceback.
    """

    def __init__(self, error_type: str, message: str, details: str = "") -> None:
        super().__init__(message)
        self.error_type = error_type
        self.details = details


class ChildStopped(Exception):
    """The run was asked to stop while a child was waited for."""


def start_early(preload: Sequence[str] = PRELOAD) -> None:
    """Start the forkserver if it does not run yet and return at once. Nothing happens where there is none."""
    if _has_forkserver() and forkserver_pid() is None:
        forkserver.set_forkserver_preload(list(preload))
        _ensure_forkserver()


def start_process(target: Callable[..., None], args: tuple[Any, ...], name: str) -> BaseProcess:
    """Start `target(*args)` in a child that is tied to this process (see `border_cli.runtime.child`).

    Raises ResourceError when there is no descriptor or process left.
    """
    _mend_start_method()
    try:
        process = _started(target, args, name)
    except OSError as error:
        raise resource_error(error, f"starting {name}") from error
    except EOFError as error:
        # The forkserver could not fork, and ended over it; the next start brings another one.
        raise resource_error(OSError(errno.EAGAIN, os.strerror(errno.EAGAIN)), f"starting {name}") from error
    _SURVIVORS.add(process)
    return process


def _started(target: Callable[..., None], args: tuple[Any, ...], name: str) -> BaseProcess:
    if _has_forkserver():
        start_early()
        _ensure_forkserver()
    parent_pid = forkserver_pid() if _has_forkserver() else os.getpid()
    process: BaseProcess = _context().Process(target=_entry, args=(parent_pid, target, args), name=name)  # type: ignore[attr-defined]
    with _child_environment(), _signals_blocked(), _command_left_out():
        process.start()
    return process


def run_in_child(
    function: Callable[..., Any],
    args: tuple[Any, ...],
    timeout_s: float,
    should_stop: StopCheck = lambda: False,
) -> Any:
    """`function(*args)` in a child of its own; its result, which must be plain data.

    function: importable by its path. The child is gone when this returns.
    Raises ChildError if it raised or the child died, TimeoutError if it took longer than timeout_s, and
    ChildStopped if should_stop became true.
    """
    ours, theirs = multiprocessing.Pipe(duplex=True)
    try:
        process = start_process(_call_function, (theirs,), getattr(function, "__name__", "child"))
        theirs.close()
        try:
            ours.send((function, args))
            _await_answer(ours, timeout_s, should_stop)
            return _answer(ours, process)
        finally:
            end_process(process)
    finally:
        ours.close()
        theirs.close()


def end_process(process: BaseProcess, grace_s: float = 0.0) -> None:
    """Kill a child unless it leaves within grace_s, and release what is held of it. Never hangs."""
    process.join(grace_s)
    if process.pid is not None and not pid_gone(process.pid):
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL)
    process.join(_KILL_TIMEOUT_S)
    if process.exitcode is not None:
        process.close()


def end_group(pid: int) -> None:
    """Kill what a process that has ended leaves behind of the group it led; nothing happens if it led none.

    Call it as soon as the process is gone: its id is not given to another one while its group has members.
    """
    with contextlib.suppress(
        ProcessLookupError, PermissionError
    ):  # macOS denies it where only zombies are left
        os.killpg(pid, signal.SIGKILL)


_KILL_TIMEOUT_S = 5.0


def pid_gone(pid: int) -> bool:
    """Whether no process runs under this id; one that only waits to be reaped counts as gone."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    stat = Path(f"/proc/{pid}/stat")
    try:
        state = stat.read_text().rpartition(")")[2].split()[0]
    except OSError:
        # no /proc on this system: the signal above reached a process. With /proc it has just gone.
        return Path("/proc/self/stat").exists()
    return state in ("Z", "X")


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


def _context() -> BaseContext:
    return multiprocessing.get_context("forkserver" if _has_forkserver() else "spawn")


def _mend_start_method() -> None:
    """Replace a default start method that a child would not know: joblib's workers set their own, `loky`."""
    chosen = multiprocessing.get_start_method(allow_none=True)
    if chosen is not None and chosen not in multiprocessing.get_all_start_methods():
        multiprocessing.set_start_method("forkserver" if _has_forkserver() else "spawn", force=True)


def _ensure_forkserver() -> None:
    # The tracker first: starting it unblocks signals, which have to stay blocked until they are ignored. It deals with
    # SIGINT and SIGTERM itself; SIGUSR1, which would end it, stays blocked there.
    with _signals_blocked():
        resource_tracker.ensure_running()
    with _child_environment(), _signals_blocked():
        forkserver.ensure_running()


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
def _signals_blocked() -> Iterator[None]:
    """A process started inside takes none of the signals that are the learner's until it has settled what they mean."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, child.LEFT_TO_LEARNER)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextlib.contextmanager
def _command_left_out() -> Iterator[None]:
    """Keep a process started inside from running the script of one of our commands once more, as its main module.

    Such a script defines nothing that a child could need, and its imports take a third of a second. Scripts of other
    people are run as ever: what they define or register may be needed.
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


def _await_answer(pipe: Connection, timeout_s: float, should_stop: StopCheck) -> None:
    deadline = Deadline(timeout_s)
    while not wait([pipe], min(_POLL_S, deadline.remaining_s)):
        if should_stop():
            raise ChildStopped
        if deadline.passed:
            raise TimeoutError(f"no answer within {timeout_s:g} s")


def _answer(pipe: Connection, process: BaseProcess) -> Any:
    try:
        kind, *content = pipe.recv()
    except (EOFError, ConnectionResetError):
        process.join(_KILL_TIMEOUT_S)
        raise ChildError("", f"the process {describe_exit(process.exitcode)}") from None
    if kind == "error":
        raise ChildError(*content)
    return content[0]


_SURVIVORS: weakref.WeakSet[BaseProcess] = weakref.WeakSet()


def _kill_survivors() -> None:
    """End what nobody ended before the interpreter waits for its children, which it does without a limit."""
    for process in list(_SURVIVORS):
        with contextlib.suppress(ValueError):  # closed: it was ended properly
            if process.is_alive():
                process.kill()


atexit.register(_kill_survivors)
