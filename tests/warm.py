"""Starts commands from a warm process, which has imported torch, Hydra and border_cli once and forks for each of them.

A forked command behaves as a started one: it leads a session, has the default handlers of signals, its own environment,
folder and streams, and calls the entry point of the command. Its fork server is forked as well, and so is that of the
tests' own process. TEST_FULL=1 starts every command anew.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import os
import pickle
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from border_cli import compose
from border_cli.runtime import forkserver, forkserver_process
from border_cli.runtime.stopping import blocked
from tests.faults.amounts import FULL

ROOT = Path(__file__).parents[1]
ENTRIES = {
    f"border-{name}": f"border_cli.cli.entry:{function}"
    for name, function in {
        "train": "train", "eval": "evaluate", "report": "report", "export": "export", "bench": "bench",
    }.items()
}  # fmt: skip
_IMPORTED = (
    "hydra._internal.hydra",
    "border_cli.cli.train",
    "border_cli.cli.eval",
    "border_cli.run.preflight",
    "border_cli.run.run",
    *forkserver.PRELOAD,
)
_MOST_BYTES = 1 << 18
_NULL = subprocess.DEVNULL
_FORK_SERVER = "a fork server"


@dataclass(frozen=True)
class _Request:
    """entry: "module:function", or _FORK_SERVER for a client at the third descriptor · closed: streams to close."""

    entry: str
    argv: list[str]
    folder: str
    environment: dict[str, str]
    closed: tuple[int, ...] = ()


class CommandProcess:
    """A command that runs in a session of its own.

    Args:
        command: "border-train", "border-eval" …, or "module:function", which reads sys.argv.
        args: of the command.
        folder: where it runs; the current one by default.
        stdout, stderr: files or descriptors; by default /dev/null, as stdin.
        closed: numbers of streams that are closed.
        variables: of the environment, besides those of this process.
        before: a command line that runs the command, such as `nice`. It is then started anew.
        warm: whether it is forked.
    """

    def __init__(
        self,
        command: str,
        *args: str,
        folder: Path | None = None,
        stdout: Any = _NULL,
        stderr: Any = _NULL,
        variables: Mapping[str, str] | None = None,
        closed: tuple[int, ...] = (),
        before: Sequence[str] = (),
        warm: bool = not FULL,
    ) -> None:
        entry = ENTRIES.get(command, command)
        environment = os.environ | {"PYTHONPATH": str(ROOT)} | dict(variables or {})
        self.returncode: int | None = None
        self._process: subprocess.Popen[bytes] | None = None
        if before or not warm:
            module, name = entry.split(":")
            program = ["-c", f"import sys; from {module} import {name}; sys.exit({name}())"]
            script = [sys.executable, *program]
            if command in ENTRIES:
                script = [str(Path(sys.executable).with_name(command))]
            self._process = subprocess.Popen(
                [*before, *script, *args],
                cwd=folder,
                env=environment,
                stdin=_NULL,
                stdout=stdout,
                stderr=stderr,
                start_new_session=True,
                preexec_fn=lambda: _as_from_a_terminal(closed),  # noqa: PLW1509 - there are no other threads here
            )
            self.pid = self._process.pid
            return
        request = _Request(entry, [command, *args], str((folder or Path()).absolute()), environment, closed)
        with contextlib.ExitStack() as stack:
            streams = [_descriptor(stream, stack) for stream in (_NULL, stdout, stderr)]
            self.pid, self._status = _forked(request, streams)

    def poll(self) -> int | None:
        """Its exit code, negative for a signal; None while it runs."""
        return self._exit_code(0.0)

    def wait(self, timeout_s: float = 200.0) -> int:
        """Wait for its end. Raises subprocess.TimeoutExpired."""
        code = self._exit_code(timeout_s)
        if code is None:
            raise subprocess.TimeoutExpired("the command", timeout_s)
        return code

    def __enter__(self) -> CommandProcess:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self.wait()

    def _exit_code(self, timeout_s: float) -> int | None:
        if self._process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.returncode = self._process.wait(timeout_s) if timeout_s else self._process.poll()
        elif self.returncode is None and select.select([self._status], [], [], timeout_s)[0]:
            code = os.read(self._status, 8)
            assert code, "the warm process has ended"
            self.returncode = int.from_bytes(code, "little", signed=True)
            os.close(self._status)
        return self.returncode


def finished(
    command: str, *args: str, folder: Path | None = None, **named: Any
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, with what it has written to stdout and stderr. See `CommandProcess`."""
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        with CommandProcess(command, *args, folder=folder, stdout=out, stderr=err, **named) as process:
            code = process.wait()
        for file in (out, err):
            file.seek(0)
        return subprocess.CompletedProcess([command, *args], code, out.read(), err.read())


def warm_pid() -> int | None:
    """Process id of the warm process, None unless this process has started it."""
    return None if _process is None else _process.pid


def n_descriptors() -> int:
    """How many descriptors this process holds for the warm process."""
    return (_connection is not None) + (_process is not None)


def fork_server() -> forkserver._Link:
    """Fork the fork server of this process: in place of `forkserver._start_server`."""
    ours, theirs = socket.socketpair()
    with theirs, Path(os.devnull).open("r+b") as null:
        request = _Request(_FORK_SERVER, [], "/", os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)})
        pid, status = _forked(request, [null.fileno(), null.fileno(), theirs.fileno()])
        os.close(status)
    ours.setblocking(False)
    forkserver._link = forkserver._Link(ours, _ForkedServer(pid))  # type: ignore[arg-type]
    return forkserver._link


@dataclass
class _ForkedServer:
    """What `forkserver.end_forkserver` needs of a process, which need not be a child of this one."""

    pid: int

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)

    def wait(self) -> None:
        try:
            os.waitpid(self.pid, 0)
        except ChildProcessError:
            with contextlib.suppress(ProcessLookupError), os.fdopen(os.pidfd_open(self.pid)) as process:
                select.select([process], [], [])


def _as_from_a_terminal(closed: Sequence[int] = ()) -> None:
    """Restore the default handler of SIGINT, which background jobs of a shell, such as these tests, ignore."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    for stream in closed:
        os.close(stream)


def _descriptor(stream: Any, stack: contextlib.ExitStack) -> int:
    if stream == _NULL:
        stream = os.open(os.devnull, os.O_RDWR)
        stack.callback(os.close, stream)
    return stream if isinstance(stream, int) else int(stream.fileno())


_ADDRESS = "BORDER_TESTS_WARM"
"""Variable with the address of the warm process. The workers of pytest-xdist share that of their controller."""
_connection: socket.socket | None = None
_process: subprocess.Popen[bytes] | None = None


def start() -> None:
    """Start the warm process, which ends with this one."""
    global _process
    os.environ[_ADDRESS] = address = f"border-tests-{os.getpid()}"
    ours, theirs = os.pipe()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
        listening.bind(f"\0{address}")
        listening.listen()
        process = subprocess.Popen(
            [sys.executable, "-c", f"from tests.warm import serve; serve({listening.fileno()}, {ours})"],
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            stdin=_NULL,
            pass_fds=(listening.fileno(), ours),
            preexec_fn=_as_from_a_terminal,  # noqa: PLW1509
        )
    os.close(ours)

    def end() -> None:
        os.close(theirs)
        process.wait()

    atexit.register(end)
    _process = process


def _connected() -> socket.socket:
    global _connection
    if _connection is None:
        if _ADDRESS not in os.environ:
            start()
        _connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        _connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _MOST_BYTES)
        atexit.register(_connection.close)
        _connection.connect(f"\0{os.environ[_ADDRESS]}")
    return _connection


def _forked(request: _Request, streams: Sequence[int]) -> tuple[int, int]:
    """The id of a new process, and the descriptor from which its exit code can be read."""
    status, theirs = os.pipe()
    try:
        socket.send_fds(_connected(), [pickle.dumps(request)], [*streams, theirs])
    finally:
        os.close(theirs)
    return int.from_bytes(os.read(status, 8), "little"), status


# -- the warm process ------------------------------------------------------------------


def serve(listening: int, client_lives: int) -> NoReturn:
    """Fork a command for each request, until the other end of `client_lives` is closed. In the fork: run it."""
    listener = socket.socket(fileno=listening)
    gc.disable()
    for module in _IMPORTED:
        importlib.import_module(module)
    compose("agent=dqn", "env=cartpole")  # Hydra looks for its plugins, and builds its parser
    gc.freeze()
    gc.enable()
    running: dict[int, int] = {}  # process id → where its exit code goes
    clients: list[socket.socket] = []
    ours, theirs = os.pipe()
    for end in (ours, theirs):
        os.set_blocking(end, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(theirs)
    while True:
        ready, _, _ = select.select([listener, client_lives, ours, *clients], [], [])
        if client_lives in ready:
            sys.exit()
        if ours in ready:
            os.read(ours, 4096)
            _report_ends(running)
        if listener in ready:
            clients.append(listener.accept()[0])
        for client in [client for client in clients if client in ready]:
            data, descriptors, *_ = socket.recv_fds(client, _MOST_BYTES, 4)
            if data:
                _serve(pickle.loads(data), descriptors, running)
            else:
                clients.remove(client)
                client.close()


def _serve(request: _Request, descriptors: list[int], running: dict[int, int]) -> None:
    *streams, answer = descriptors
    pid = os.fork()
    if pid == 0:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        _become_command(request, streams)
    running[pid] = answer
    os.write(answer, pid.to_bytes(8, "little"))
    for stream in streams:
        os.close(stream)


def _report_ends(running: dict[int, int]) -> None:
    for pid in list(running):
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            answer, code = running.pop(pid), os.waitstatus_to_exitcode(status)
            with contextlib.suppress(BrokenPipeError):
                os.write(answer, code.to_bytes(8, "little", signed=True))
            os.close(answer)


def _become_command(request: _Request, streams: Sequence[int]) -> NoReturn:
    if request.entry != _FORK_SERVER:
        os.setsid()
    _keep_only(streams)
    os.chdir(request.folder)
    os.environ.clear()
    os.environ.update(request.environment)
    folders = request.environment["PYTHONPATH"].split(os.pathsep)
    sys.path[:] = dict.fromkeys([*folders, *filter(None, sys.path)])
    if request.entry == _FORK_SERVER:
        _become_server(2)
    for number in request.closed:
        os.close(number)
    sys.argv = request.argv
    forkserver._start_server = _fork_server
    module, name = request.entry.split(":")
    code: Any = 1
    try:
        code = getattr(importlib.import_module(module), name)()
    except SystemExit as end:
        code = end.code
    except BaseException:
        traceback.print_exc()
    threading._shutdown()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):
            stream.flush()
    os._exit(code or 0)  # taking apart what was imported would copy its pages


def _fork_server() -> forkserver._Link:
    """In place of `forkserver._start_server`."""
    ours, theirs = socket.socketpair()
    with blocked(), theirs:
        pid = os.fork()
        if pid == 0:
            _become_server(theirs.detach())
    ours.setblocking(False)
    forkserver._link = forkserver._Link(ours, _ForkedServer(pid))  # type: ignore[arg-type]
    return forkserver._link


def _become_server(client: int) -> NoReturn:
    null = os.open(os.devnull, os.O_RDWR)
    _keep_only([null, null, 2 if client != 2 else null, client])
    os.environ.update(forkserver.CHILD_ENVIRONMENT)
    forkserver_process.serve(3)


def _keep_only(descriptors: Sequence[int]) -> None:
    """Give these descriptors the numbers from 0 on, and close all others."""
    copies = [os.dup2(descriptor, 1000 + i) for i, descriptor in enumerate(descriptors)]
    for i, copy in enumerate(copies):
        os.dup2(copy, i)
    os.closerange(len(copies), 1 << 16)
