"""Row A10: whoever is faster waits for the other, and says so; memory does not grow with what is still to come."""

from __future__ import annotations

import os
import resource
import sys
from pathlib import Path

import pytest

from border_cli.actors.manager import ActorManager
from border_cli.cli.train import main
from tests.fakes import counting_actors
from tests.faults.actors import audit, running  # noqa: F401 - audit is a fixture
from tests.faults.amounts import times
from tests.faults.processes import wait_until
from tests.real_runs import Run, tiny

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc"),
    pytest.mark.usefixtures("audit"),
]

WARM_UP, ENV_STEPS = 10_000, times(20_000, 1_000_000)
RING_ROWS = 256
MAY_GROW = ENV_STEPS / 1e5 + 0.25
"""Megabytes: one in 1e5 env steps, and what the allocator may have kept of something else."""


def resident_mb(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 2**20


def full(manager: ActorManager) -> bool:
    return all(stat.state == "waiting for room" for stat in manager.stats())


def take_in(manager: ActorManager, env_steps: int, slowly: bool) -> None:
    """Take in so many env steps: slowly is not before all rings are full, else it is at once and again and again."""
    while env_steps > 0:
        if slowly:
            wait_until(lambda: full(manager), "the rings to be full")
        chunks = manager.collect()
        env_steps -= sum(chunk.env_steps for chunk in chunks)
        for actor in range(len(manager.pids())):
            assert sum(chunk.rows for chunk in chunks if chunk.actor == actor) <= RING_ROWS


@pytest.mark.parametrize("slow", ["learner", "actors"])
def test_a10_memory_is_bounded_whoever_is_slow(slow: str) -> None:
    spec = counting_actors(n_buffer=16, lengths=[7, 30, 1])
    with running(spec, ring_rows=RING_ROWS) as manager:
        manager.grant([10**9, 10**9])
        take_in(manager, WARM_UP, slow == "learner")
        pids = [os.getpid(), *(pid for pid in manager.pids() if pid is not None)]
        before = [resident_mb(pid) for pid in pids]
        take_in(manager, ENV_STEPS, slow == "learner")
        grown = [resident_mb(pid) - mb for pid, mb in zip(pids, before, strict=True)]
        assert max(grown) < MAY_GROW, grown
        if slow == "learner":
            assert all(stat.blocked_seconds > 0 for stat in manager.stats())


@pytest.mark.parametrize(
    ("opt_interval", "waits"), [(0.05, "async/actors_blocked"), (100, "async/learner_blocked")]
)
def test_a10_a_run_records_who_waits(workplace: Path, opt_interval: float, waits: str) -> None:
    words = ("env=gym", "env.entry_point=border_cli.envs.counting:CountingEnv", "trainer.max_opts=30")
    assert main(tiny(*words, "trainer.eval_interval=null", f"trainer.opt_interval={opt_interval}")) == 0
    assert Run(Path("runs/latest").resolve()).series(waits)[-1][1] > 0
