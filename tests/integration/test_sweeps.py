"""Sweeps that train for real: a folder for each job, failures that stop nobody else, and nothing left between jobs."""

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
STOP = "actor_manager.restarts=0"

pytestmark = pytest.mark.usefixtures("workplace")


def sweep(*words: str) -> int:
    return main(["-m", *tiny(*SHORT, *words)])


def job_runs() -> list[Run]:
    """The jobs of the only sweep, by their number."""
    (folder,) = Path("runs/sweeps").glob("*/*")
    return [Run(path) for path in sorted(folder.iterdir()) if path.is_dir()]


def test_every_job_has_a_run_of_its_own_that_is_what_the_same_words_are_alone() -> None:
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
def test_failing_jobs_are_reported_at_once_the_others_run_and_nothing_is_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An actor that fails in its 30th env step, an environment that cannot be made, and one that is well.

    Looked at before each job and after the sweep: processes, descriptors, handlers of signals and logs, threads.
    """
    found: list[dict[str, object]] = []

    def look() -> None:
        gc.collect()  # an exception that was reported holds on to the frames it went through
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

    forkserver.run_in_child(os.getpid, (), 60.0)  # the forkserver and what belongs to it is there now
    monkeypatch.setattr(SweepTask, "__call__", start)
    faults = ["env.kwargs.fault=raise", "env.kwargs.fault_at=step,make,never", "env.kwargs.fault_step=30"]
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        code = sweep(
            *COUNTING,
            *faults,
            STOP,
            "trainer.eval_interval=null",
            "recorder.console=plain",
            "recorder.tensorboard=true",
        )
    assert code == 5  # the first that is not 0
    text = said.getvalue()
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
    for moment in moments:  # each after the one before
        start = text.find(moment, start)
        places.append(start)
    assert -1 not in places, text
    assert text.count("CountingEnv raises at step") >= 1  # the actor's own traceback
    lost, refused, well = job_runs()
    assert (lost.summary["status"], lost.summary["exit_code"]) == ("failed", 5)
    assert "CountingEnv raises at step" in (lost.path / "train.log").read_text()
    assert {entry.name for entry in refused.path.iterdir()} <= {".hydra"}
    assert (well.summary["status"], well.summary["ended_by"]) == ("done", "max_opts")
    look()
    assert len(found) == 4
    assert found[0]["actors"] == []
    for later in found[1:]:
        assert later == found[0]
