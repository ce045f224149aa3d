"""Actors that die, hang or are stopped: the errors and rows that the actor manager returns.

Whole runs are in `test_runs`, restarts in `test_supervision`.
"""

from __future__ import annotations

import os
import signal
import tempfile
from pathlib import Path
from typing import Any

import pytest

from border_cli.actors.manager import ActorManager
from border_cli.config.schema import ActorManagerConfig
from border_cli.core.errors import ActorLostError
from border_cli.core.types import Chunk
from border_cli.runtime import forkserver
from tests.fakes import COUNTING_COLUMNS, counting_actors, model
from tests.faults.actors import pid_of, pids, running
from tests.faults.processes import named_memory, wait_until

pytestmark = pytest.mark.usefixtures("light_forkserver")


def act(manager: ActorManager, credit: int) -> None:
    """Let every actor use its first credit. The rows stay in the rings."""
    manager.grant([credit] * len(pids(manager)))
    wait_until(
        lambda: all(s.seconds > 0 and s.state == "waiting for credit" for s in manager.stats()),
        "the credit to be used",
    )


def env_steps_by_actor(chunks: list[Chunk]) -> dict[int, int]:
    counts: dict[int, int] = {}
    for chunk in chunks:
        counts[chunk.actor] = counts.get(chunk.actor, 0) + chunk.env_steps
    return counts


@pytest.mark.parametrize(
    ("fault", "loss", "states"),
    [
        (
            {"fault": "exit", "fault_at": "make", "fault_actor": 1},
            r"actor 1 exited with code 3 \(it was making environment\)",
            ["done", "lost"],
        ),
        (
            {"fault": "hang", "fault_at": "reset", "fault_actor": 1},
            r"actor 1 was not ready after 5 s \(it was resetting\)",
            ["done", "killed"],
        ),
    ],
    ids=["exit", "hang"],
)
def test_a7_a9_an_actor_that_never_becomes_ready_is_reported_at_the_start(
    fault: dict[str, Any], loss: str, states: list[str]
) -> None:
    spec = counting_actors(**fault)
    with running(spec, start=False, start_timeout_s=5.0) as manager:
        with pytest.raises(ActorLostError, match=loss):
            manager.start(model())
        assert [stat.state for stat in manager.stats()] == states


def test_a5_a7_hanging_and_frozen_actors_block_no_other_and_are_killed_at_the_stop(
    caplog: pytest.LogCaptureFixture,
) -> None:
    spec = counting_actors(fault="hang", fault_step=3, fault_actor=0, n_buffer=2)
    with running(spec, n_actors=3, stop_timeout_s=5.0) as manager:
        os.kill(pid_of(manager, 1), signal.SIGSTOP)
        manager.grant([5, 5, 5])
        chunks: list[Chunk] = []

        def arrived() -> bool:
            chunks.extend(chunk.copy() for chunk in manager.collect())
            return env_steps_by_actor(chunks) == {0: 2, 2: 5}

        wait_until(arrived, "the chunks")
        ends = [(stat.state, stat.env_steps) for stat in manager.stop()]
    assert ends == [("killed", 2), ("killed", 0), ("done", 5)]
    assert "actor 0 did not exit (acting) and is killed" in caplog.text


def test_death_of_the_forkserver_ends_its_actors_and_the_next_run_starts_another() -> None:
    with running(counting_actors()) as manager:
        server = forkserver.forkserver_pid()
        assert server is not None
        os.kill(server, signal.SIGKILL)
        with pytest.raises(ActorLostError, match=r"actor [01] was killed by SIGKILL"):
            wait_until(lambda: manager.collect() is None, "the loss")
    with running(counting_actors()) as manager:
        act(manager, 10)
        assert env_steps_by_actor(manager.collect()) == {0: 10, 1: 10}
        assert forkserver.forkserver_pid() != server


def test_d1_d3_a_stop_request_ends_the_start_of_actors() -> None:
    spec = counting_actors(fault="hang", fault_at="make")
    config = ActorManagerConfig(stop_timeout_s=0.2)
    polls = iter([False] * 4)
    manager = ActorManager(spec, COUNTING_COLUMNS, 2, config, lambda: next(polls, True))
    manager.start(model())
    assert [stat.state for stat in manager.stop()] == ["killed", "killed"]


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="no folder for shared memory")
def test_f1_shared_memory_of_actors_has_no_name() -> None:
    with running(counting_actors()) as manager, tempfile.NamedTemporaryFile(dir="/dev/shm") as named:
        act(manager, 10)
        assert named_memory([os.getpid(), *pids(manager)]) == {named.name}


def test_serial_init_makes_one_environment_after_the_other() -> None:
    spec = counting_actors(fault="raise", fault_at="make", fault_actor=1)
    with running(spec, n_actors=3, start=False, serial_init=True) as manager:
        with pytest.raises(ActorLostError, match="actor 1 failed"):
            manager.start(model())
        assert [stat.state for stat in manager.stats()] == ["done", "failed", "starting"]
