"""What a child process does before any user code runs, and how it sends messages to its client.

Messages go over the child's pipe in pieces, each small enough for a socket to take as a whole. A client that sees the start
of a piece never waits for the rest of it, even if the child was stopped or killed meanwhile.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import logging
import multiprocessing
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from logging.handlers import QueueHandler
from multiprocessing import reduction, spawn
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from border_cli.core.errors import ActorLostError, IncompatibleStateError
from border_cli.runtime import stopping
from border_cli.runtime.transport import passed

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_OOM_MORE, _OOM_MAX = 300, 1000
_TRIM_THRESHOLD = -1  # M_TRIM_THRESHOLD of glibc's malloc.h
_MMAP_THRESHOLD = -3  # M_MMAP_THRESHOLD
_MMAP_AT_LEAST = 32 << 20
"""Larger blocks, such as a replay's, come from the kernel and go back to it. The highest value that glibc takes."""
_KEPT = 256 << 20
"""Freed memory at the end of the heap that is kept."""
MESSAGE_BYTES = 12_000
"""Size of a piece of a message."""
_MAX_LOGS = 100
_ERROR_CHARACTERS = 1_000


@dataclass(frozen=True)
class Setup:
    """How a child is started.

    output: file that takes what the child prints; None: only its end is kept, for messages · level: of what it logs ·
    nice: by how much its priority is lower than the client's · trains: it is a job, which starts children itself and
    handles the signals that stop a run · preparation: what `multiprocessing.spawn.prepare` needs.
    """

    name: str
    output: str | None
    environment: Mapping[str, str]
    level: int
    nice: int
    trains: bool
    preparation: dict[str, Any]


# -- messages ----------------------------------------------------------------


@dataclass(frozen=True)
class Ready:
    """The child is ready to work. exact: see `ActorStat`."""

    exact: bool = True


@dataclass(frozen=True)
class Returned:
    """What the child's function has returned, or its answer before that."""

    value: Any


@dataclass(frozen=True)
class Failed:
    """The child exits because of an exception.

    error: one line, with the name of the child · error_type, message: of the exception · context: where it happened, as
    JSON values · incompatible: the child was given a saved state that does not fit.
    """

    error: str
    error_type: str
    message: str
    traceback: str
    context: Mapping[str, Any] = field(default_factory=dict)
    incompatible: bool = False


def failed(error: BaseException, name: str) -> Failed:
    """The message about an exception that ended the child of this name. Long texts are cut."""
    line = f"{name} failed: {type(error).__name__}: {error}".rstrip(": ")
    details, context = "".join(traceback.format_exception(error)), {}
    if isinstance(error, ActorLostError):  # an environment raised
        line, details, context = str(error), error.details, dict(error.context)
    incompatible = isinstance(error, IncompatibleStateError)
    line, message = clipped(line, _ERROR_CHARACTERS), clipped(str(error), _ERROR_CHARACTERS)
    return Failed(line, type(error).__name__, message, clipped(details), context, incompatible)


def clipped(text: str, most: int = MESSAGE_BYTES) -> str:
    """The text, or its end, which names the cause, if it has more than `most` characters."""
    return text if len(text) <= most else f"[…] {text[-most:]}"


@dataclass(frozen=True)
class Ended:
    """Message of the fork server: the child has ended, and all processes that it had started.

    code: of its exit · tail: the end of what it printed · errno: why the system did not start it.
    """

    code: int
    tail: str = ""
    errno: int = 0


class Reporter:
    """The child's end of its pipe, shared by all threads of its process, but not by processes that user code forks."""

    def __init__(self, pipe: Connection) -> None:
        self.pipe = pipe
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._has_answered = False

    def send(self, message: object) -> None:
        """Send one message; waits while the pipe is full. Does nothing if the client has died."""
        if os.getpid() != self._pid:
            return
        data = bytes(reduction.ForkingPickler.dumps(message))
        with contextlib.suppress(BrokenPipeError, ConnectionResetError), self._lock:
            for start in range(0, len(data), MESSAGE_BYTES):
                piece = data[start : start + MESSAGE_BYTES]
                self.pipe.send_bytes((b"." if start + MESSAGE_BYTES >= len(data) else b"-") + piece)

    def answer(self, value: Any) -> None:
        """Send the result of the function, once. The client does not wait for the end of the process."""
        if not self._has_answered:
            self._has_answered = True
            self.send(Returned(value))


class PipeLogHandler(QueueHandler):
    """Sends the first log records, formatted, to the client; the others are printed. The "queue" is what sends them."""

    queue: Callable[[object], None]  # type: ignore[assignment]
    _left = _MAX_LOGS

    def enqueue(self, record: logging.LogRecord) -> None:
        """Send one record, or print it."""
        self._left -= 1
        if self._left < 0:
            print(record.msg, file=sys.stderr)  # noqa: T201 - which goes to output.log
            return
        record.msg = clipped(record.msg)
        if self._left == 0:
            record.msg += f"\n{_MAX_LOGS} messages: what this process logs from here on is in output.log"
        self.queue(record)


def log_through(send: Callable[[object], None], who: str, level: int) -> None:
    """Send what this process logs or warns about to the client, with `who` in front."""
    handler = PipeLogHandler(send)  # type: ignore[arg-type]
    handler.setFormatter(logging.Formatter(f"{who}: %(message)s"))
    logging.basicConfig(level=level, handlers=[handler], force=True)
    logging.captureWarnings(True)


# -- the process ---------------------------------------------------------------


def run(setup: Setup, content: bytes, pipe: int, descriptors: Sequence[int], parent_pid: int) -> int:
    """Run the child's function. Every exception reaches the client as `Failed`. Returns the exit code.

    Args:
        content: the function, main(reporter, *args), and its arguments, pickled: what they need is imported here.
        pipe: to the client · descriptors: those in the arguments.
        parent_pid: the fork server.
    """
    passed[:] = descriptors
    reporter = Reporter(Connection(pipe))
    process: Any = multiprocessing.current_process()
    try:
        _enter(setup, parent_pid)
        process._inheriting = True  # a script that trains when it is imported must not do so here
        spawn.prepare(setup.preparation)
        if not setup.trains:
            log_through(reporter.send, setup.name, setup.level)
        del process._inheriting
        main, args = reduction.ForkingPickler.loads(content)
        if not setup.trains:
            one_torch_thread()
        reporter.answer(main(reporter, *args))
    except BaseException as error:  # noqa: BLE001 - also SystemExit and KeyboardInterrupt, which user code may raise
        traceback.print_exc()
        reporter.send(failed(error, setup.name))
        return 1
    return 0


def _enter(setup: Setup, parent_pid: int) -> None:
    """Tie this process to the fork server, and give it the client's settings that user code may see."""
    _set_option(_PR_SET_PDEATHSIG, signal.SIGKILL)
    adopt_orphans()  # what the child starts stays below it until it ends, and then becomes the fork server's
    if os.getppid() != parent_pid:  # it died before the lines above
        os._exit(1)
    os.setpgid(0, 0)  # a Ctrl-C in the terminal reaches the client alone
    for number in stopping.LEFT_TO_CLIENT:
        stopping.handle(number, lambda *_: None)  # programs that an environment starts would inherit SIG_IGN
    if setup.trains:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, stopping.LEFT_TO_CLIENT)
    os.environ.clear()
    os.environ.update(setup.environment)
    if not setup.trains:
        os.nice(setup.nice)
        # Volunteer for the kernel's OOM killer, so that it spares the client: where the system is Linux and allows it.
        path = Path("/proc/self/oom_score_adj")
        with contextlib.suppress(OSError):
            path.write_text(str(min(_OOM_MAX, int(path.read_text()) + _OOM_MORE)))
    keep_freed_memory()
    gc.enable()


def adopt_orphans() -> None:
    """Become the parent of every process below this one whose parent has ended, where the system has that."""
    _set_option(_PR_SET_CHILD_SUBREAPER, 1)


def _set_option(option: int, value: int) -> None:
    """Set an attribute of this process (`man 2 prctl`), where the system is Linux."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def keep_freed_memory() -> bool:
    """Keep freed memory for reuse, in this process and those it forks. False where the C library is not glibc."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", lambda *_: 0)
    return bool(mallopt(_MMAP_THRESHOLD, _MMAP_AT_LEAST) and mallopt(_TRIM_THRESHOLD, _KEPT))


def one_torch_thread() -> None:
    """Keep torch, if something has imported it, to one thread."""
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(1)
