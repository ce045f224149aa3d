"""Imported by the forkserver alone: from then on it leaves the signals that stop a run, and SIGUSR1, to the learner.

A signal to the whole process group would otherwise end the forkserver, and with it the learner's view of its
actors. The learner starts it with these signals blocked, so that none gets through before these lines.
"""

from __future__ import annotations

import atexit
import gc
import os
import signal

from border_cli.runtime.child import LEFT_TO_LEARNER

gc.disable()  # during the imports, which then take an eighth less time; `child.enter` enables it

for _number in LEFT_TO_LEARNER:
    signal.signal(_number, signal.SIG_IGN)
signal.pthread_sigmask(signal.SIG_UNBLOCK, LEFT_TO_LEARNER)

# It holds nothing that is to be kept. Taking apart what it has imported would make it outlive the learner by a second;
# registered before all of that, this is the last thing that it does.
atexit.register(os._exit, 0)
