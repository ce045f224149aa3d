"""What a child process does before anything else, so that it never outlives the learner, and its messages to the learner.

Messages go over the child's own pipe. Each is small enough for a socket to take it as a whole: a learner that sees the
start of a message never waits for the rest of it, even if the child was stopped or killed meanwhile.
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
from logging.handlers import QueueHandler
from multiprocessing import connection, forkserver
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from border_cli.transport import resource_error

_PR_SET_PDEATHSIG = 1
LEFT_TO_LEARNER = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)
"""Signals that may reach a whole process group and that the learner alone acts on."""
_OOM_MORE, _OOM_MAX = 300, 1000
_NICER = 3
_TRIM_THRESHOLD = -1  # M_TRIM_THRESHOLD of glibc's malloc.h
_MMAP_THRESHOLD = -3  # M_MMAP_THRESHOLD
_MMAP_AT_LEAST = 32 << 20
"""Blocks from here on, such as a replay's, come from the kernel and go back to it. The most that glibc takes."""
_KEPT = 256 << 20
"""Freed memory at the end of the heap that is kept."""


def enter(parent_pid: int) -> None:
    """Tie this process to the learner, which alone keeps the forkserver alive and acts on signals.

    parent_pid: the process that forked this one (the forkserver, or the learner itself under spawn).
    """
    server: Any = forkserver._forkserver  # its fields are private
    if server._forkserver_alive_fd is not None:
        os.close(server._forkserver_alive_fd)
    server._forkserver_alive_fd = None
    server._forkserver_address = None

    end_with_parent(parent_pid)
    for number in LEFT_TO_LEARNER:  # no SIG_IGN, which programs that an environment starts would inherit
        signal.signal(number, lambda *_: None)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, LEFT_TO_LEARNER)
    keep_freed_memory()
    gc.freeze()  # what the forkserver imported is never garbage, and looking for some would copy its pages
    gc.enable()


def redirect_output(path: Path) -> int:
    """Append what this process prints, and programs that it starts, to a file. Returns its descriptor."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for stream in (1, 2):
        os.dup2(descriptor, stream)
    return descriptor


def end_with_parent(parent_pid: int) -> None:
    """Let this process end with the one that started it, and with `parent_pid`, which forked it."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent_pid:  # it died before the line above
        os._exit(1)
    threading.Thread(target=_exit_with_parent, name="parent-watchdog", daemon=True).start()


def keep_freed_memory() -> bool:
    """Keep freed memory for reuse, in this process and those it forks. False where the C library is not glibc."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", lambda *_: 0)
    return bool(mallopt(_MMAP_THRESHOLD, _MMAP_AT_LEAST) and mallopt(_TRIM_THRESHOLD, _KEPT))


def one_torch_thread() -> None:
    """Keep torch, if something has imported it, to one thread."""
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(1)


def lower_priority() -> None:
    """Make this process one that the learner outlives and outruns, and that can be ended with all it has started."""
    os.nice(_NICER)
    # Volunteer for the kernel's OOM killer, so that it spares the learner: where the system is Linux and allows it.
    path = Path("/proc/self/oom_score_adj")
    with contextlib.suppress(OSError):
        path.write_text(str(min(_OOM_MAX, int(path.read_text()) + _OOM_MORE)))
    os.setpgid(0, 0)  # leads a process group, so that processes it starts can be killed with it


def _exit_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
        if os.getpgrp() == os.getpid():
            os.killpg(0, signal.SIGKILL)
        os._exit(1)


# -- messages ----------------------------------------------------------------

MESSAGE_BYTES = 12_000
"""Longer texts are cut before they are sent."""


class Reporter:
    """The child's end of its pipe, shared by all threads of its process."""

    def __init__(self, pipe: Connection) -> None:
        self.pipe = pipe
        self._lock = threading.Lock()

    def send(self, message: object) -> None:
        """Send one message; waits while the pipe is full. Does nothing if the learner has died."""
        try:
            with self._lock:
                self.pipe.send(message)
        except (BrokenPipeError, ConnectionResetError):
            return  # the watchdog ends this process


class PipeLogHandler(QueueHandler):
    """Sends log records, already formatted, to the learner. The "queue" is a Reporter."""

    queue: Reporter  # type: ignore[assignment]

    def enqueue(self, record: logging.LogRecord) -> None:
        """Send one record."""
        record.msg = record.message = clipped(record.msg)
        self.queue.send(record)


def log_through(reporter: Reporter, who: str, level: int) -> None:
    """Send everything that this process logs or warns about to the learner, with `who` in front."""
    handler = PipeLogHandler(reporter)  # type: ignore[arg-type]
    handler.setFormatter(logging.Formatter(f"{who}: %(message)s"))
    logging.basicConfig(level=level, handlers=[handler], force=True)
    logging.captureWarnings(True)


def log_here(record: logging.LogRecord) -> None:
    """Log a record of a child as if it had been logged in this process."""
    logger = logging.getLogger(record.name)
    if logger.isEnabledFor(record.levelno):
        logger.handle(record)


def new_pipe(owner: str) -> tuple[Connection, Connection]:
    """Two ends that both send and receive. Raises ResourceError if there is no descriptor left."""
    try:
        return multiprocessing.Pipe(duplex=True)
    except OSError as error:
        raise resource_error(error, f"the pipe of {owner}") from error


def clipped(text: str, nbytes: int = MESSAGE_BYTES) -> str:
    """The text, or only its end, which names the cause, if it has more than `nbytes` bytes in UTF-8."""
    encoded = text.encode("utf-8", "replace")
    if len(encoded) <= nbytes:
        return text
    return "[…] " + encoded[-nbytes:].decode("utf-8", "ignore")
