"""A plugin that injects the faults named in the environment variable FAULTS, such as "hold_save:2 starve:30".

It changes classes of the process that imports it.
"""

from __future__ import annotations

import os
import resource
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from border_cli.agents.agent import NetworkAgent
from border_cli.checkpoints import store
from border_cli.runtime import supervision
from tests.faults.trap import spring


def at_opt_steps(act: Callable[[int], None]) -> None:
    """Call `act` at the start of each opt step with its number."""
    opt = NetworkAgent.opt

    def acting(agent: NetworkAgent, *args: Any, **named: Any) -> Any:
        act(agent.opt_steps + 1)
        return opt(agent, *args, **named)

    NetworkAgent.opt = acting  # type: ignore[method-assign]


def hang() -> None:
    """Never finish the import of the plugin."""
    spring("hang")


def hold_save(number: int) -> None:
    """Make a checkpoint (counted from 1) wait after its first file until the test releases it."""
    put_file, to_come = store._put_file, number

    def held(path: Path, content: Any, link: store.Link | None = None) -> store.FileEntry:
        nonlocal to_come
        entry = put_file(path, content, link)
        if path.name == store.MANIFEST_FILE:
            to_come -= 1
        elif to_come == 1:
            spring("wait")
        return entry

    store._put_file = held


def delay_restarts(seconds: int) -> None:
    """Raise the longest delay before a restart."""
    supervision.MAX_DELAY_S = seconds


def save_at(*opt_steps: int) -> None:
    """Send SIGUSR1 to the learner in these opt steps."""
    at_opt_steps(lambda number: number in opt_steps and os.kill(os.getpid(), signal.SIGUSR1))


def starve(opt_step: int) -> None:
    """Limit the address space of the learner in this opt step, and let it allocate more."""
    room = 192 * 2**20

    def limit(number: int) -> None:
        if number == opt_step:
            used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
            resource.setrlimit(resource.RLIMIT_AS, (used + room, resource.RLIM_INFINITY))
            np.ones(2 * room, np.uint8)

    at_opt_steps(limit)


for word in os.environ.get("FAULTS", "").split():
    name, _, numbers = word.partition(":")
    globals()[name](*(int(number) for number in numbers.split(",") if number))
