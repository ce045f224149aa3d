"""Row A10: whoever is faster waits for the other, and says so; memory does not grow with what is still to come."""

from __future__ import annotations

import os
import resource
import sys
from pathlib import Path

import pytest

from border_cli.actors.manager import ActorManager
from border_cli.cli.train import main
from border_cli.runtime.clock import SYSTEM_CLOCK
from tests.fakes import counting_actors
from tests.faults.actors import audit, running  # noqa: F401 - audit is a fixture
from tests.faults.amounts import times
from tests.faults.deadly import slow_actors
from tests.faults.processes import wait_until
from tests.real_runs import Run, tiny

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc"),
    pytest.mark.usefixtures("audit"),
]

WARM_UP, ENV_STEPS = 10_000, times(20_000, 1_000_000)
RING_ROWS = 256
STEP_S, SLOW_ENV_STEPS = 5e-3, times(200, 2000)
MAY_GROW = ENV_STEPS / 1e5 + 0.25
"""Megabytes: one in 1e5 env steps, and what the allocator may have kept of something else."""


def resident_mb(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 2**20


def full(manager: ActorManager) -> bool:
    return all(stat.state == "waiting for room" for stat in manager.stats())


def take_in(manager: ActorManager, env_steps: int, slowly: bool = False, pause_s: float = 0.0) -> list[bool]:
    """Take in so many env steps: slowly is not before all rings are full, else it is at once and again and again.

    pause_s: between two looks [s]. Returns for each look whether it found something.
    """
    found = []
    while env_steps > 0:
        SYSTEM_CLOCK.sleep(pause_s)
        if slowly:
            wait_until(lambda: full(manager), "the rings to be full")
        chunks = manager.collect()
        found.append(bool(chunks))
        env_steps -= sum(chunk.env_steps for chunk in chunks)
        for actor in range(len(manager.pids())):
            assert sum(chunk.rows for chunk in chunks if chunk.actor == actor) <= RING_ROWS
    return found


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


def test_a10_slow_environments_keep_nobody_waiting_but_the_learner() -> None:
    """Most looks of the learner find nothing, nothing piles up, and no actor ever waits."""
    with running(slow_actors(STEP_S, n_buffer=16, lengths=[7, 30, 1]), ring_rows=RING_ROWS) as manager:
        manager.grant([10**9, 10**9])
        take_in(manager, 50)
        pids = [os.getpid(), *(pid for pid in manager.pids() if pid is not None)]
        before = [resident_mb(pid) for pid in pids]
        found = take_in(manager, SLOW_ENV_STEPS, pause_s=1e-3)
        grown = [resident_mb(pid) - mb for pid, mb in zip(pids, before, strict=True)]
        assert max(grown) < MAY_GROW, grown
        assert [stat.blocked_seconds for stat in manager.stats()] == [0.0, 0.0]
    assert found.count(False) > found.count(True)


@pytest.mark.parametrize(
    ("words", "who", "other"),
    [
        (
            (
                "env.entry_point=border_cli.envs.counting:CountingEnv",
                "trainer.opt_interval=0.05",
                "trainer.max_opts=300",
            ),
            "actors",
            "learner",
        ),
        (
            (
                "env.entry_point=tests.faults.deadly:SlowToStep",
                f"env.kwargs.step_s={STEP_S}",
                "trainer.max_opts=30",
            ),
            "learner",
            "actors",
        ),
    ],
)
def test_a10_a_run_records_who_waits(workplace: Path, words: tuple[str, ...], who: str, other: str) -> None:
    assert main(tiny("env=gym", *words, "trainer.eval_interval=null")) == 0
    run = Run(Path("runs/latest").resolve())
    waited, other_waited = (run.series(f"async/{side}_blocked")[-1][1] for side in (who, other))
    assert waited > other_waited
