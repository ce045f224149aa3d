"""Imported by the forkserver alone: from then on it leaves SIGINT and SIGTERM to the learner.

A signal to the whole process group would otherwise end the forkserver, and with it the learner's view of its
actors. The learner starts it with both signals blocked, so that none gets through before these lines.
"""

from __future__ import annotations

import atexit
import gc
import signal

for _number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(_number, signal.SIG_IGN)
signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGINT, signal.SIGTERM))

# Nothing that was imported here is garbage. Looking for some at the end would keep the forkserver for half a second.
atexit.register(gc.freeze)
