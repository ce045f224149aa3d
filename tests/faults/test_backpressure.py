"""Row A10: the faster side waits, the run records it, and memory stays bounded."""

from __future__ import annotations

import os
import resource
import time
from collections import Counter
from pathlib import Path

import psutil
import pytest

from border_cli.actors.manager import ActorManager
from tests.fakes import counting_actors
from tests.faults.actors import RING_ROWS, pids, running
from tests.faults.amounts import times
from tests.faults.processes import wait_until
from tests.real_runs import train

WARM_UP, ENV_STEPS = times(4_000, 10_000), times(8_000, 1_000_000)
STEP_S, SLOW_ENV_STEPS = 5e-3, times(200, 2000)
MAY_GROW = ENV_STEPS / 1e5 + 0.25
"""Megabytes: one in 1e5 env steps, and what the allocator may have kept of something else."""
SPEC = {"n_buffer": 16, "lengths": [7, 30, 1]}


class Memory:
    """Resident memory of learner and actors, compared with its start value."""

    def __init__(self, manager: ActorManager) -> None:
        self._pids = [os.getpid(), *(pid for pid in pids(manager) if pid is not None)]
        self._before = self._mb()

    def _mb(self) -> list[float]:
        pages = [int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in self._pids]
        return [n * resource.getpagesize() / 2**20 for n in pages]

    def assert_bounded(self) -> None:
        grown = [now - before for now, before in zip(self._mb(), self._before, strict=True)]
        assert max(grown) < MAY_GROW, grown


def full(manager: ActorManager) -> bool:
    return all(stat.state == "waiting for room" for stat in manager.stats())


def collect(
    manager: ActorManager, env_steps: int, slowly: bool = False, pause_s: float = 0.0
) -> Counter[bool]:
    """Collect `env_steps` env steps. Returns how many calls of `collect` returned chunks, and how many did not.

    slowly: wait before each call until all rings are full. pause_s: pause before each call [s].
    """
    calls = Counter[bool]()
    while env_steps > 0:
        time.sleep(pause_s)
        if slowly:
            wait_until(lambda: full(manager), "the rings to be full")
        chunks = manager.collect()
        calls[bool(chunks)] += 1
        env_steps -= sum(chunk.env_steps for chunk in chunks)
        for actor in range(len(pids(manager))):
            assert sum(chunk.rows for chunk in chunks if chunk.actor == actor) <= RING_ROWS
    return calls


@pytest.mark.usefixtures("light_forkserver")
@pytest.mark.parametrize("slow", ["learner", "actors"])
def test_a10_memory_is_bounded_whichever_side_is_slow(slow: str) -> None:
    with running(counting_actors(**SPEC)) as manager:
        manager.grant([10**9, 10**9], 0)
        collect(manager, WARM_UP, slow == "learner")
        memory = Memory(manager)
        collect(manager, ENV_STEPS, slow == "learner")
        memory.assert_bounded()
        if slow == "learner":
            assert all(stat.blocked_seconds > 0 for stat in manager.stats())


@pytest.mark.usefixtures("light_forkserver")
def test_a10_an_actor_that_waits_sleeps_until_the_learner_gives_credit() -> None:
    with running(counting_actors(**SPEC), n_actors=1) as manager:
        wait_until(lambda: manager.stats()[0].state == "waiting for credit", "the actor to wait")
        process = psutil.Process(pids(manager)[0])
        before = process.num_ctx_switches().voluntary
        time.sleep(1.0)
        assert process.num_ctx_switches().voluntary - before < 20  # four heartbeats
        manager.grant([100], 0)
        collect(manager, 100)


@pytest.mark.parametrize(
    ("args", "waits", "other"),
    [
        (("trainer.opt_interval=0.1", "trainer.max_opts=200"), "actors", "learner"),
        ((f"env.kwargs.step_s={8 * STEP_S}", "trainer.max_opts=10"), "learner", "actors"),
    ],
)
def test_a10_a_run_records_which_side_waits(
    workplace: Path, args: tuple[str, ...], waits: str, other: str
) -> None:
    env = ("env=gym", "env.entry_point=tests.counting:CountingEnv", "trainer.eval_interval=null")
    run = train(*env, *args)
    waited, other_waited = (run.series(f"async/{side}_blocked")[-1][1] for side in (waits, other))
    assert waited > other_waited
