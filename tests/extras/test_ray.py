"""Actors on Ray: the bits of processes in lockstep, lost actors and nodes, and what a user gets wrong."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from border_cli.cli.train import main
from tests.faults.processes import wait_until
from tests.real_runs import Run, tiny, train

pytest.importorskip("ray")
pytestmark = [pytest.mark.usefixtures("workplace"), pytest.mark.timeout(300)]
ON_RAY = ("actor_manager=ray", "n_actors=2")


def command(*args: str) -> list[str]:
    """`border-train` as a process of its own, which is not connected to the cluster of the tests."""
    return [str(Path(sys.executable).with_name("border-train")), *tiny("actor_manager=ray", *args)]


def running() -> set[int]:
    """All processes."""
    return {process.pid for process in psutil.process_iter()}


def workers(before: set[int]) -> list[psutil.Process]:
    """The processes of actors that were not there before."""
    every = (process for process in psutil.process_iter(["cmdline"]) if process.pid not in before)
    return [process for process in every if "ray::RemoteActor" in " ".join(process.info["cmdline"] or [])]


def wait_for_the_end_of_the_cluster(before: set[int], *more: str) -> None:
    """Wait until no process of Ray is left that was not there before, nor one with such a name.

    Ray's own agents look for their node every few seconds, and give up after a minute.
    """

    def left() -> list[str]:
        every = (process for process in psutil.process_iter(["name", "status"]) if process.pid not in before)
        names = [process.info["name"] for process in every if process.info["status"] != psutil.STATUS_ZOMBIE]
        return [name for name in names if any(word in name for word in ("ray", "gcs", *more))]

    wait_until(lambda: not left(), "the end of the cluster", 120)


def test_the_bits_of_lockstep_are_those_of_actors_in_processes(ray_cluster: None) -> None:
    args = (
        "trainer.lockstep=true",
        "trainer.max_opts=60",
        "trainer.eval_interval=20",
        "trainer.save_interval=20",
    )
    here = train(*args, "n_actors=2").files("checkpoints", "best")
    on_ray = train(*args, *ON_RAY)
    theirs = on_ray.files("checkpoints", "best")
    differing = [name for name in here if here[name] != theirs.get(name)]
    assert set(here) == set(theirs)
    assert [name for name in differing if not name.endswith("manifest.json")] == []
    assert on_ray.summary["status"] == "done"


def test_a_resumed_lockstep_run_equals_one_that_was_not_interrupted(ray_cluster: None) -> None:
    args = ("trainer.lockstep=true", "trainer.eval_interval=20", "trainer.save_interval=20", *ON_RAY)
    whole = train(*args, "trainer.max_opts=60").files("best")
    part = train(*args, "trainer.max_opts=30")
    assert main([f"resume={part.path}", "trainer.max_opts=60"]) == 0
    assert Run(part.path).files("best") == whole


def test_a_killed_actor_is_restarted_and_the_run_ends_well() -> None:
    args = ("n_actors=2", "trainer.max_opts=8000", "trainer.eval_interval=null", "trainer.save_interval=200")
    before = running()
    with subprocess.Popen(command(*args)) as process:
        wait_until(lambda: len(workers(before)) == 2, "the actors", 60)
        wait_until(lambda: bool(list(Path("runs").glob("*/*/checkpoints/step-*"))), "a checkpoint", 60)
        workers(before)[0].kill()
        assert process.wait(120) == 0
    run = Run(Path("runs/latest").resolve())
    assert sum(actor["restarts"] for actor in run.summary["actors"]) == 1
    assert run.counts[0] == 8000


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_nothing_is_left_after_the_driver_has_ended_and_the_run_resumes(number: signal.Signals) -> None:
    args = (
        "n_actors=2",
        "trainer.max_opts=1000000",
        "trainer.eval_interval=null",
        "trainer.save_interval=100",
    )
    before = running()
    with subprocess.Popen(command(*args)) as process:
        wait_until(lambda: bool(list(Path("runs").glob("*/*/checkpoints/step-*"))), "a checkpoint", 60)
        process.send_signal(number)
        assert process.wait(60) == (143 if number == signal.SIGTERM else -9)

    wait_for_the_end_of_the_cluster(before)
    run = Run(Path("runs/latest").resolve())
    # Of the checkpoint: the kill may come before summary.json knows of it.
    until = int(run.checkpoints[-1].removeprefix("step-")) + 50
    resume = [command()[0], f"resume={run.path}", f"trainer.max_opts={until}"]
    assert subprocess.run(resume, timeout=120).returncode == 0
    assert Run(run.path).counts[0] == until


def test_a_node_that_leaves_costs_its_actors_and_one_that_joins_takes_them() -> None:
    from ray.cluster_utils import Cluster

    cluster: Any = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    try:
        node, before = cluster.add_node(num_cpus=1), running()
        args = (
            "n_actors=3",
            "trainer.max_opts=4000",
            "trainer.eval_interval=null",
            "actor_manager.address=auto",
        )
        with subprocess.Popen(command(*args), env=os.environ | {"RAY_ADDRESS": cluster.address}) as process:
            wait_until(lambda: len(workers(before)) == 2, "two actors", 60)
            cluster.remove_node(node)
            wait_until(lambda: len(workers(before)) == 1, "the end of one", 60)
            cluster.add_node(num_cpus=2)
            assert process.wait(200) == 0
        run = Run(Path("runs/latest").resolve())
        assert run.counts[0] == 4000
        assert sum(actor["restarts"] for actor in run.summary["actors"]) >= 1
    finally:
        cluster.shutdown()
