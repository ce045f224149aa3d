"""Sweeps on Ray: the results of this machine, stopped and killed sweeps, lost nodes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from border_cli.cli.train import main
from border_cli.runtime.stopping import StopFlag
from border_cli.sweeps.jobs import Sweep
from border_cli.sweeps.scheduler import JobQueue, Scheduler
from tests.extras.test_ray import running, wait_for_the_end_of_the_cluster
from tests.faults.processes import wait_until
from tests.integration.test_sweep_scheduler import Light, Seen
from tests.real_runs import Run, tiny, train

pytest.importorskip("ray")
pytestmark = [pytest.mark.usefixtures("workplace"), pytest.mark.timeout(300)]
LOCKSTEP = ("trainer.lockstep=true", "n_actors=1", "trainer.eval_interval=20", "trainer.save_interval=20")


def command(*args: str) -> list[str]:
    """The sweep as a process of its own, with its own cluster."""
    words = tiny("hydra/launcher=border_ray", "hydra.launcher.cpus_per_job=1", *LOCKSTEP, *args)
    words = [word for word in words if not word.startswith("recorder.console")]
    return [str(Path(sys.executable).with_name("border-train")), "-m", *words]


def jobs() -> list[Run]:
    (folder,) = Path("runs/sweeps").glob("*/*")
    return [Run(folder / job.run_dir.name) for job in Sweep.read(folder).jobs]


def checkpointed() -> set[Path]:
    """The run directories that have a checkpoint."""
    return {path.parents[1] for path in Path("runs/sweeps").glob("*/*/?_*/checkpoints/step-*")}


def test_jobs_have_the_results_of_runs_on_this_machine_and_are_skipped_the_next_time() -> None:
    args = command("seed=1,2", "trainer.max_opts=40")
    first = subprocess.run(args, capture_output=True, text=True, timeout=200)
    assert first.returncode == 0, first.stderr
    assert "on Ray: 1 node with room for" in first.stdout
    for seed, run in enumerate(jobs(), 1):
        here = train(*LOCKSTEP, "trainer.max_opts=40", f"seed={seed}")
        assert run.files("best") == here.files("best")
        assert run.summary["status"] == "done"
    again = subprocess.run(args, capture_output=True, text=True, timeout=200)
    assert again.returncode == 0
    assert "2 jobs of 2 ended in an earlier launch" in again.stdout


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("cpus_per_job=0", "cpus_per_job: 0 is out of range"),
        ("resources=5", "resources: 5 is of the wrong type"),
    ],
)
@pytest.mark.parametrize("sweeper", [(), ("hydra/sweeper=border_optuna", "agent.lr=interval(0.1,0.2)")])
def test_a_wrong_setting_is_named_before_there_is_a_folder(
    setting: str, message: str, sweeper: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["-m", "hydra/launcher=border_ray", f"hydra.launcher.{setting}", *sweeper]) == 2
    assert f"hydra.launcher.{message}" in capsys.readouterr().err
    assert not Path("runs").exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_sweep_that_is_stopped_or_killed_leaves_nothing_and_continues(number: signal.Signals) -> None:
    args = command("seed=1,2", "trainer.max_opts=600", "sweep.slots=2")
    before = running()
    with subprocess.Popen(args, stdout=subprocess.DEVNULL) as process:
        wait_until(lambda: len(checkpointed()) == 2, "checkpoints of both jobs", 120)
        process.send_signal(number)
        assert process.wait(60) == (143 if number == signal.SIGTERM else -9)

    wait_for_the_end_of_the_cluster(before, "python")
    assert subprocess.run(args, stdout=subprocess.DEVNULL, timeout=200).returncode == 0
    for seed, run in enumerate(jobs(), 1):
        assert run.counts[0] == 600
        assert (run.path / "train.log").read_text().count("ended by max_opts") == 1
        assert run.files("best") == train(*LOCKSTEP, "trainer.max_opts=600", f"seed={seed}").files("best")


def drive(folder: Path, sweep_id: str, tasks: list[Any], config: dict[str, Any]) -> tuple[Sweep, Seen]:
    """Run tasks as the jobs of a sweep in `folder`, on the cluster to which this process is connected."""
    from border_cli.sweeps.ray_jobs import RayExecutor, RaySettings

    sweep, seen = Sweep(folder, [], sweep_id="of this sweep"), Seen()
    added = [sweep.add([f"n={n}"], lambda n: tasks[n].run_dir) for n in range(len(tasks))]
    sweep.save()
    executor = RayExecutor(RaySettings(cpus_per_job=1, **config), None, folder, sweep_id)
    with StopFlag() as stop:
        Scheduler(sweep, executor, lambda job: tasks[job.number], seen, stop).run(JobQueue(added))
    executor.close()
    return sweep, seen


def test_a_node_that_does_not_see_the_folder_is_named(ray_cluster: None, tmp_path: Path) -> None:
    sweep, seen = drive(tmp_path, "of another sweep", [Light(tmp_path / "0")], {})
    assert [(job.state, job.exit_code) for job in sweep.jobs] == [("failed", 2)]
    assert (
        f"does not see {tmp_path}\nallowed: a folder on a file system that all nodes share" in seen.notes[0]
    )


def test_a_job_whose_node_leaves_continues_on_another_one() -> None:
    from ray.cluster_utils import Cluster

    cluster: Any = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    try:
        node = cluster.add_node(num_cpus=1)
        args = command("seed=1,2", "trainer.max_opts=2500", "hydra.launcher.address=auto")
        env = os.environ | {"RAY_ADDRESS": cluster.address}
        with subprocess.Popen(
            args, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=env
        ) as process:
            wait_until(lambda: len(checkpointed()) == 2, "checkpoints of both jobs", 120)
            cluster.remove_node(node)
            out, _ = process.communicate(timeout=200)
        assert process.returncode == 0, out
        assert "2 jobs at a time on Ray: 2 nodes with room for 2, each with CPU=1" in out
        assert out.count("will run again as soon as there is room") == 1
        for seed, run in enumerate(jobs(), 1):
            assert run.files("best") == train(*LOCKSTEP, "trainer.max_opts=2500", f"seed={seed}").files(
                "best"
            )
    finally:
        cluster.shutdown()


def test_a_job_that_waits_for_a_place_ends_when_the_sweep_is_stopped(
    ray_cluster: None, tmp_path: Path
) -> None:
    timer = threading.Timer(3.0, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    sweep, _ = drive(tmp_path, "of this sweep", [Light(tmp_path / "0")], {"resources": {"nowhere": 1}})
    assert [(job.state, job.exit_code) for job in sweep.jobs] == [("waiting", 130)]  # the code of the sweep


class OnlyHere(Light):
    """A job whose module the nodes do not have: pytest imports this file by another name."""


def test_a_module_that_a_node_lacks_is_an_error_at_once(ray_cluster: None, tmp_path: Path) -> None:
    sweep, seen = drive(tmp_path, "of this sweep", [OnlyHere(tmp_path / "0")], {})
    assert [(job.state, job.exit_code) for job in sweep.jobs] == [("failed", 1)]
    assert seen.notes == ["job 0 (n=0): error: ModuleNotFoundError: No module named 'extras'"]


def test_a_tuning_runs_its_trials_on_the_cluster() -> None:
    pytest.importorskip("optuna")
    sweeper = ("hydra/sweeper=border_optuna", "hydra.sweeper.n_trials=2", "hydra.sweeper.pruner=none")
    args = command(*sweeper, "hydra.sweeper.top=0", "trainer.max_opts=40", "agent.gamma=choice(0.9,0.99)")
    tuning = subprocess.run(args, capture_output=True, text=True, timeout=200)
    assert tuning.returncode == 0, tuning.stderr
    assert "on Ray: 1 node with room for" in tuning.stdout
    assert [run.summary["status"] for run in jobs()] == ["done", "done"]
