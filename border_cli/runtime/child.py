"""What every child process does before anything else, so that it never outlives the learner."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import multiprocessing
import os
import signal
import sys
import threading
from multiprocessing import connection, forkserver
from pathlib import Path
from types import FrameType
from typing import Any

from border_cli.runtime.allocator import keep_freed_memory

_PR_SET_PDEATHSIG = 1
LEFT_TO_LEARNER = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
"""Signals that may reach a whole process group and that the learner alone acts on."""
_OOM_MORE, _OOM_MAX = 300, 1000
_NICER = 3


def enter(parent_pid: int) -> None:
    """Tie this process to the learner.

    parent_pid: the process that forked this one (the forkserver, or the learner itself under spawn).
    """
    _forget_forkserver()
    _die_with_parent(parent_pid)
    _leave_signals_to_learner()
    _watch_learner()
    keep_freed_memory()
    gc.freeze()  # what the forkserver imported is never garbage, and looking for some would copy its pages


def one_torch_thread() -> None:
    """Keep torch, if something has imported it, to one thread."""
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(1)


def stand_back() -> None:
    """Make this process one that the learner outlives and outruns, and that can be ended with all it has started."""
    os.nice(_NICER)
    _be_first_when_memory_ends()
    _lead_a_group()


def _be_first_when_memory_ends() -> None:
    """Volunteer for the kernel's OOM killer, so that it spares the learner."""
    path = Path("/proc/self/oom_score_adj")
    with contextlib.suppress(OSError):  # not Linux, or a sandbox that does not let us: then nobody volunteers
        path.write_text(str(min(_OOM_MAX, int(path.read_text()) + _OOM_MORE)))


def _lead_a_group() -> None:
    """Make this process the leader of a process group, with which whatever it starts can be ended."""
    os.setpgid(0, 0)


def _forget_forkserver() -> None:
    """Let go of the descriptor that keeps the forkserver alive: the learner alone keeps it."""
    server: Any = forkserver._forkserver  # its fields are private
    if server._forkserver_alive_fd is not None:
        os.close(server._forkserver_alive_fd)
    server._forkserver_alive_fd = None
    server._forkserver_address = None


def _die_with_parent(parent_pid: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent_pid:  # it died before the line above
        os._exit(1)


def _leave_signals_to_learner() -> None:
    """These signals do nothing here: the learner ends its children itself.

    Handlers instead of SIG_IGN, because what an environment starts would inherit that.
    """
    for number in LEFT_TO_LEARNER:
        signal.signal(number, _do_nothing)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, LEFT_TO_LEARNER)


def _do_nothing(number: int, frame: FrameType | None) -> None:
    del number, frame


def _watch_learner() -> None:
    threading.Thread(target=_exit_with_learner, name="learner-watchdog", daemon=True).start()


def _exit_with_learner() -> None:
    learner = multiprocessing.parent_process()
    if learner is not None:
        connection.wait([learner.sentinel])
        if os.getpgrp() == os.getpid():
            os.killpg(0, signal.SIGKILL)
        os._exit(1)
