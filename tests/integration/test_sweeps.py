"""Sweeps of real runs: a folder per job, failing jobs do not stop the others, and jobs leave nothing behind."""

from __future__ import annotations

import contextlib
import gc
import io
import logging
import multiprocessing
import os
import signal
import sys
import threading
from pathlib import Path

import pytest
from omegaconf import DictConfig

from border_cli.cli.sweep import SweepTask
from border_cli.cli.train import main
from border_cli.runtime import forkserver
from tests.faults.processes import processes
from tests.real_runs import Run, tiny, train

SHORT = ("trainer.max_opts=30", "trainer.eval_interval=20", "trainer.save_interval=null")
COUNTING = ("env=gym", "env.entry_point=tests.counting:CountingEnv", "n_actors=2")
NO_RESTARTS = "actor_manager.restarts=0"

pytestmark = pytest.mark.usefixtures("workplace")


def sweep(*args: str) -> int:
    return main(["-m", *tiny(*SHORT, *args)])


def job_runs() -> list[Run]:
    """Return the jobs of the only sweep in order."""
    (folder,) = Path("runs/sweeps").glob("*/*")
    return [Run(path) for path in sorted(folder.iterdir()) if path.is_dir()]


def test_every_job_has_its_own_run_and_equals_a_single_run() -> None:
    assert sweep("seed=1,2", "trainer=sync") == 0
    assert not Path("runs/latest").exists()
    runs = job_runs()
    assert [run.path.name for run in runs] == ["0_dqn_cartpole", "1_dqn_cartpole"]
    for seed, run in enumerate(runs, 1):
        assert run.config.seed == seed
        assert run.summary["ended_by"] == "max_opts"
        assert run.checkpoints == ["step-000000030"]
        assert run.steps("eval/return_mean") == [20, 30]
        assert (run.path / ".hydra" / "config.yaml").is_file()
        assert (run.path / "best" / "manifest.json").is_file()
        assert f"seed={seed}" in (run.path / ".hydra" / "overrides.yaml").read_text()
        assert "-m" in run.json("provenance.json")["launches"][0]["command"].split()
    first, second = (run.files("checkpoints", "best") for run in runs)
    name = "checkpoints/step-000000030/model.safetensors"
    assert first[name] != second[name]
    assert len({run.summary["run_id"] for run in runs}) == 2
    assert second == train(*SHORT, "seed=2", "trainer=sync").files("checkpoints", "best")


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_failing_jobs_are_reported_at_once_and_the_others_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Job 0 loses an actor in env step 30, job 1 cannot make its environment, and job 2 finishes.

    Processes, descriptors, signal and log handlers and threads must be the same before each job and after the sweep.
    """
    found: list[dict[str, object]] = []

    def look() -> None:
        gc.collect()  # a reported exception keeps its frames alive
        root, package = logging.getLogger(), logging.getLogger("border_cli")
        found.append(
            {
                "actors": processes(parent=forkserver.forkserver_pid()),
                "children": processes(parent=os.getpid()),
                "known": set(multiprocessing.active_children()),
                "descriptors": len(list(Path("/proc/self/fd").iterdir())),
                "signals": [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)],
                "mask": signal.pthread_sigmask(signal.SIG_BLOCK, ()),
                "threads": {thread.name for thread in threading.enumerate()},
                "logging": (list(root.handlers), package.level),
                "folder": Path.cwd(),
            }
        )

    original = SweepTask.__call__

    def start(task: SweepTask, composed: DictConfig) -> float:
        look()
        return original(task, composed)

    forkserver.run_in_child(os.getpid, (), 60.0)  # starts the forkserver before the first look
    monkeypatch.setattr(SweepTask, "__call__", start)
    faults = ["env.kwargs.fault=raise", "env.kwargs.fault_at=step,make,never", "env.kwargs.fault_step=30"]
    output = io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
        code = sweep(
            *COUNTING,
            *faults,
            NO_RESTARTS,
            "trainer.eval_interval=null",
            "recorder.console=plain",
            "recorder.tensorboard=true",
        )
    assert code == 5  # the first exit code that is not 0
    text = output.getvalue()
    moments = [
        "job 0 (",
        "fault_at=step",
        "error: actor ",
        "job 1 (",
        "fault_at=make",
        "error: env: the environment raised when it was made: RuntimeError: CountingEnv raises",
        "ended by",
    ]
    places, start = [], 0
    for moment in moments:  # in this order
        start = text.find(moment, start)
        places.append(start)
    assert -1 not in places, text
    assert text.count("CountingEnv raises at step") >= 1  # the traceback of the actor
    lost, refused, finished = job_runs()
    assert (lost.summary["status"], lost.summary["exit_code"]) == ("failed", 5)
    assert "CountingEnv raises at step" in (lost.path / "train.log").read_text()
    assert {entry.name for entry in refused.path.iterdir()} <= {".hydra"}
    assert (finished.summary["status"], finished.summary["ended_by"]) == ("done", "max_opts")
    look()
    assert len(found) == 4
    assert found[0]["actors"] == []
    for later in found[1:]:
        assert later == found[0]
