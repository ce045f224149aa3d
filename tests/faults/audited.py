"""Nothing may be left behind by a test in this process: no child, no descriptor."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from border_cli.runtime import forkserver
from tests.fakes import LIGHT_PRELOAD
from tests.faults.processes import TIMEOUT_S, processes


@contextmanager
def nothing_left() -> Iterator[None]:
    """As long as this lasts, children may come; none and no descriptor of theirs may stay."""
    forkserver.start_early(LIGHT_PRELOAD)
    forkserver.run_in_child(os.getpid, (), TIMEOUT_S)  # the forkserver and what belongs to it is there now
    gc.collect()  # of what earlier tests have left in cycles
    descriptors, helpers = _open_descriptors(), set(processes(parent=os.getpid()))
    yield
    gc.collect()  # an exception that was looked at holds on to the frames it went through
    assert processes(parent=forkserver.forkserver_pid()) == []
    assert set(processes(parent=os.getpid())) <= helpers | {forkserver.forkserver_pid()}
    assert _open_descriptors() == descriptors


def _open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))
