"""The fork server: the process that starts every child, and is the parent of all of them.

It has done the heavy imports, so a child starts in some hundredths of a second. As the parent of all children it knows
when a child has ended, and its signals cannot reach another process that was given the same number. On Linux it also
becomes the parent of every process below it whose own parent has ended, in any session. Such a process was left behind
by a child that has ended, and is ended too.

A client, which is a learner or the job of a sweep, has a socket for requests, and one connection for each child: its end
comes back there, and closing it kills the child, as the death of the client does. The server copies what children print
into a file, so they never wait for a terminal, and a file never grows without limit.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import importlib
import os
import selectors
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing import reduction
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NoReturn

import psutil

from border_cli.runtime import forkserver, worker
from border_cli.runtime.stopping import LEFT_TO_CLIENT, blocked
from border_cli.runtime.worker import Ended, Setup

MOST_OUTPUT = 1 << 20
"""Bytes of a file that takes what children print."""
_LEFTOVER_S = 1.0
"""What a child leaves behind gets SIGTERM, and SIGKILL after this time [s]."""
_REPORT_S = 3.0
"""The end of a child is reported after this time at the latest, even if processes that it left behind still run [s]."""
_TAIL = 4000
_CHUNK = 1 << 16


def serve(descriptor: int, preload: Sequence[str] = ()) -> NoReturn:
    """Import these modules; serve the client at the other end of this socket, and its jobs, until none is left."""
    os.setpgid(0, 0)
    for number in LEFT_TO_CLIENT:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, LEFT_TO_CLIENT)
    gc.disable()  # imports are an eighth faster, and what they have made is never garbage
    worker.adopt_orphans()
    _import(preload)
    try:
        _Server(socket.socket(fileno=descriptor)).run()
    finally:
        os._exit(0)  # taking apart what was imported would take a second


@dataclass(eq=False)
class _Running:
    """A child. printed: what it prints."""

    name: str
    client: socket.socket
    status: Connection
    printed: int
    file: str | None
    tail: bytes = b""
    code: int = 0
    report_due: float = 0.0


class _Server:
    def __init__(self, client: socket.socket) -> None:
        self._pid = os.getpid()
        self._selector = selectors.DefaultSelector()
        self._clients = set[socket.socket]()
        self._running: dict[int, _Running] = {}
        self._ended: list[_Running] = []  # to be reported
        self._left: dict[int, float] = {}  # what children have left behind, and when it is killed
        self._last_writer: dict[Path, str] = {}
        self._wakeup = os.pipe()
        for end in self._wakeup:
            os.set_blocking(end, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._wakeup[1], warn_on_full_buffer=False)
        self._watch(self._wakeup[0], lambda: os.read(self._wakeup[0], _CHUNK))
        self._add_client(client)

    def run(self) -> None:
        """Serve until there is no client, no child, and no process that a child has left behind."""
        while self._clients or self._running or self._ended:
            for key, _ in self._selector.select(0.05 if self._ended else None):
                if key.fd in self._selector.get_map():
                    key.data()
            self._reap()
            self._end_what_is_left()

    def _watch(self, descriptor: int, call: Callable[[], object]) -> None:
        self._selector.register(descriptor, selectors.EVENT_READ, call)

    def _add_client(self, client: socket.socket) -> None:
        client.setblocking(False)
        self._clients.add(client)
        self._watch(client.fileno(), lambda: self._serve(client))

    def _serve(self, client: socket.socket) -> None:
        try:
            request, descriptors, *_ = socket.recv_fds(client, 1, 250)
        except BlockingIOError:
            return
        except ConnectionResetError:
            request, descriptors = b"", []
        for descriptor in descriptors:
            os.set_inheritable(descriptor, False)
        if request:
            self._start(client, descriptors)
            return
        self._selector.unregister(client.fileno())
        self._clients.discard(client)
        client.close()
        for pid, running in self._running.items():
            if running.client is client:
                os.kill(pid, signal.SIGKILL)

    def _start(self, client: socket.socket, descriptors: list[int]) -> None:
        status = Connection(descriptors[0])
        arguments = os.pread(descriptors[1], os.fstat(descriptors[1]).st_size, 0)
        preload, setup, content = reduction.ForkingPickler.loads(arguments)
        _import(preload)
        if setup.trains:  # it is a client too
            ours, requests = socket.socketpair()
            self._add_client(ours)
            descriptors.insert(3, requests.detach())
        printed, theirs = os.pipe()
        os.set_blocking(printed, False)
        try:
            with blocked():  # until the child handles its signals
                pid = os.fork()
                if pid == 0:
                    self._become(setup, content, [*descriptors[:2], printed], descriptors[2:], theirs)
        except OSError as error:
            _tell(status, Ended(1, errno=error.errno or errno.EAGAIN))
            status.close()
            os.close(printed)
        else:
            running = _Running(setup.name, client, status, printed, setup.output)
            self._running[pid] = running
            self._watch(printed, lambda: self._copy(running))
            self._watch(status.fileno(), lambda: self._obey(pid, running))
            _tell(status, pid)
        for descriptor in (*descriptors[1:], theirs):
            os.close(descriptor)

    def _become(
        self, setup: Setup, content: bytes, unused: Sequence[int], descriptors: Sequence[int], printed: int
    ) -> NoReturn:
        """In the new process: let go of what is the server's (`unused`, of this child), and run the child."""
        code = 1
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            watched = [key.fd for key in self._selector.get_map().values()]
            for descriptor in (*unused, *watched, self._wakeup[1]):
                os.close(descriptor)
            self._selector.close()
            for stream in (1, 2):
                os.dup2(printed, stream)
            os.close(printed)
            sys.stdout, sys.stderr = (
                open(fd, "w", 1, "utf-8", "backslashreplace", closefd=False)  # noqa: SIM115
                for fd in (1, 2)
            )
            pipe, *others = descriptors
            if setup.trains:
                forkserver.become_client(others.pop(0))
            code = worker.run(setup, content, pipe, others, self._pid)
            for file in (sys.stdout, sys.stderr):
                with contextlib.suppress(OSError, ValueError):
                    file.flush()
        finally:
            os._exit(code)

    def _obey(self, pid: int, running: _Running) -> None:
        """Send a child the signal that its client asks for; kill it if the client has closed its connection."""
        try:
            number = running.status.recv_bytes()[0] if running.status.poll() else 0
        except (EOFError, OSError):
            self._selector.unregister(running.status.fileno())
            number = signal.SIGKILL
        if pid in self._running:
            os.kill(pid, number)

    def _copy(self, running: _Running) -> bool:
        """Copy a piece of what a child has printed. False if there is nothing."""
        try:
            data = os.read(running.printed, _CHUNK)
        except BlockingIOError:
            return False
        if not data:
            self._close_printed(running)
            return False
        running.tail = (running.tail + data)[-_TAIL:]
        if running.file is not None:
            with contextlib.suppress(OSError):  # the disk does not take it
                self._append(Path(running.file), running.name, data)
        return True

    def _append(self, file: Path, name: str, data: bytes) -> None:
        """Append what a child has printed to a file. A full one is renamed first, and replaces the one before it."""
        if file.exists() and file.stat().st_size >= MOST_OUTPUT:
            file.replace(file.with_name(f"{file.name}.old"))
            self._last_writer.pop(file, None)
        if self._last_writer.get(file) != name:
            self._last_writer[file] = name
            data = f"==> {name} <==\n".encode() + data
        with file.open("ab", buffering=0) as opened:
            opened.write(data)

    def _close_printed(self, running: _Running) -> None:
        if running.printed >= 0:
            self._selector.unregister(running.printed)
            os.close(running.printed)
            running.printed = -1

    def _reap(self) -> None:
        """Take the exit codes of the processes that have ended."""
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                pid, status = ended
                self._left.pop(pid, None)
                if (running := self._running.pop(pid, None)) is None:
                    continue
                running.code = os.waitstatus_to_exitcode(status)
                running.report_due = time.monotonic() + _REPORT_S
                self._ended.append(running)
                # Where orphans are not adopted, this is all that can be done.
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(pid, signal.SIGTERM)

    def _end_what_is_left(self) -> None:
        """End what children have left behind, and report the end of a child when none of its processes is left."""
        if not self._ended:
            return
        now = time.monotonic()
        for pid in [process.pid for process in psutil.Process().children()]:
            if pid in self._running:
                continue
            due = self._left.setdefault(pid, now + _LEFTOVER_S)
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL if now >= due else signal.SIGTERM)
        for running in list(self._ended):
            if self._left and now < running.report_due:
                continue
            self._ended.remove(running)
            while running.printed >= 0 and self._copy(running):
                pass
            self._close_printed(running)
            _tell(running.status, Ended(running.code, running.tail.decode("utf-8", "replace")))
            with contextlib.suppress(KeyError, ValueError):  # the client has closed its end
                self._selector.unregister(running.status.fileno())
            running.status.close()


def _tell(status: Connection, message: object) -> None:
    with contextlib.suppress(OSError):  # the client does not listen any more
        status.send(message)


def _import(modules: Sequence[str]) -> None:
    """Import these modules. What is missing is reported by the child that needs it."""
    for name in modules if sys.platform != "darwin" else ():  # whose frameworks do not survive a fork
        if name not in sys.modules:
            with contextlib.suppress(ImportError):
                importlib.import_module(name)
    gc.freeze()  # looking for garbage among it would copy its pages in every child
