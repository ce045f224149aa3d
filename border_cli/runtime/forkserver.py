"""The connection to the fork server (`border_cli.runtime.forkserver_process`), which starts every child.

`start_early` belongs before the learner's own imports: both processes then import torch at the same time.
"""

from __future__ import annotations

import atexit
import contextlib
import multiprocessing
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing import reduction, spawn, util
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import psutil

from border_cli.runtime.stopping import blocked
from border_cli.runtime.transport import SharedBlock, passed, pickling, resource_errors
from border_cli.runtime.worker import Setup

LIGHT_PRELOAD = ("gymnasium", "border_cli.run.factories", "border_cli.actors.actor")
"""Imported for the child that makes the environment for a look at its spaces."""
PRELOAD = (*LIGHT_PRELOAD, "torch", "border_cli.agents.dqn.agent", "border_cli.agents.sac.agent")
"""Imported for children with a policy; importing runs no torch operation, so that forking afterwards is safe."""
CHILD_ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_PROC_BIND": "false",  # it would bind every child to the first CPU
    "CUDA_VISIBLE_DEVICES": "",
}
_SOCKET_BYTES = 1 << 18
_REQUEST_S = 5.0


@dataclass
class _Link:
    """The way to the fork server. process: None if another process has started it."""

    socket: socket.socket
    process: subprocess.Popen[bytes] | None


_link: _Link | None = None
_preload: tuple[str, ...] = ()
"""What the fork server imports, or another one in its place."""


def start_early(preload: Sequence[str] = PRELOAD) -> None:
    """Start the fork server if it does not run yet, and return at once. It imports these modules too, before the next
    child at the latest.
    """
    global _preload
    _preload = tuple(dict.fromkeys((*_preload, *preload)))
    if _link is None:
        _start_server()


def forkserver_pid() -> int | None:
    """Process id of the fork server, None while there is none of this process."""
    return None if _link is None or _link.process is None else _link.process.pid


def end_forkserver() -> None:
    """End the fork server, and the children that are left. The next child starts another one."""
    global _link
    link, _link = _link, None
    if link is None:
        return
    link.socket.close()
    if link.process is not None:
        link.process.kill()
        link.process.wait()


def start(setup: Setup, function: Callable[..., Any], args: tuple[Any, ...], pipe: int) -> Connection:
    """Ask for a child. Its messages come through the connection that is returned. Raises ResourceError."""
    ours, theirs = connected(setup.name)
    with contextlib.closing(theirs):
        with pickling:
            passed.clear()
            content = bytes(reduction.ForkingPickler.dumps((function, args)))
            descriptors = list(passed)
        data = reduction.ForkingPickler.dumps((_preload, setup, content))
        with contextlib.closing(SharedBlock(len(data), f"the arguments of {setup.name}")) as block:
            os.pwrite(block.fileno(), data, 0)
            with resource_errors(f"starting {setup.name}"):
                _request([theirs.fileno(), block.fileno(), pipe, *descriptors])
    return ours


def connected(owner: str) -> tuple[Connection, Connection]:
    """Two connected ends, with room for some messages. Raises ResourceError if there is no descriptor left."""
    with resource_errors(f"the pipe of {owner}"):
        ends = socket.socketpair()
    for end in ends:
        for buffer in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            end.setsockopt(socket.SOL_SOCKET, buffer, _SOCKET_BYTES)
    first, second = (Connection(end.detach()) for end in ends)
    return first, second


def become_client(descriptor: int) -> None:
    """Use this socket for the requests of this process."""
    global _link
    _link = _Link(socket.socket(fileno=descriptor), None)
    _link.socket.settimeout(_REQUEST_S)


def preparation(name: str) -> dict[str, Any]:
    """What a child needs to know about this process: its paths, and its main module, unless that came by a pipe."""
    default: Any = multiprocessing.get_start_method(allow_none=True)
    data: dict[str, Any] = spawn.get_preparation_data(name)
    if default is None:  # the caller may still choose one
        multiprocessing.set_start_method(None, force=True)
    if not Path(data.get("init_main_from_path", "")).is_file():
        data.pop("init_main_from_path", None)
    # joblib's workers set a start method of their own, which a child would not know
    if default not in multiprocessing.get_all_start_methods():
        del data["start_method"]
    data["authkey"] = bytes(data["authkey"])
    return data


def _request(descriptors: Sequence[int]) -> None:
    """Send a request, if need be to a new server. Raises OSError."""
    for last in (False, True):
        link = _link or _start_server()
        try:
            socket.send_fds(link.socket, [b"s"], list(descriptors))
            return
        except (BrokenPipeError, ConnectionResetError):
            if last or link.process is None:
                raise
            end_forkserver()


def _start_server() -> _Link:
    global _link
    ours, theirs = socket.socketpair()
    code = (
        f"import sys; sys.path[:] = {sys.path!r}\n"
        f"from border_cli.runtime.forkserver_process import serve; serve({theirs.fileno()}, {_preload!r})"
    )
    flags: Any = util._args_from_interpreter_flags()  # type: ignore[attr-defined]
    with theirs, blocked():
        process = subprocess.Popen(
            [sys.executable, *flags, "-c", code],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            pass_fds=(theirs.fileno(),),
            env=os.environ | CHILD_ENVIRONMENT,
        )
    ours.settimeout(_REQUEST_S)
    _link = _Link(ours, process)
    return _link


def _forget_server() -> None:
    """In a process that user code has forked: the server is that of its parent, whose death it must notice."""
    global _link
    if _link is not None:
        _link.socket.close()
        _link = None


os.register_at_fork(after_in_child=_forget_server)
atexit.register(end_forkserver)


def pid_gone(pid: int) -> bool:
    """Whether no process runs under this id; one that only waits to be reaped counts as gone."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    return True
