"""Imported by the forkserver alone: from then on it leaves SIGINT, SIGTERM and SIGUSR1 to the learner.

A signal to the whole process group would otherwise end the forkserver, and with it the learner's view of its
actors. The learner starts it with these signals blocked, so that none gets through before these lines.
"""

from __future__ import annotations

import atexit
import gc
import signal

from border_cli.runtime.child import LEFT_TO_LEARNER

for _number in LEFT_TO_LEARNER:
    signal.signal(_number, signal.SIG_IGN)
signal.pthread_sigmask(signal.SIG_UNBLOCK, LEFT_TO_LEARNER)

# Nothing that was imported here is garbage. Looking for some at the end would keep the forkserver for half a second.
atexit.register(gc.freeze)
