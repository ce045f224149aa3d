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

from border_cli.cli import jobs
from border_cli.cli.train import main
from border_cli.runtime import forkserver
from tests.real_runs import Run, tiny

SHORT = ("trainer.max_opts=30", "trainer.eval_interval=20", "trainer.save_interval=null")
COUNTING = ("env=gym", "env.entry_point=border_cli.envs.counting:CountingEnv", "n_actors=2")
STOP = "actor_manager.on_env_error=stop"

pytestmark = pytest.mark.usefixtures("workplace")


def sweep(*words: str) -> int:
    return main(["-m", *tiny(*SHORT, *words)])


def job_runs() -> list[Run]:
    """The jobs of the only sweep, by their number."""
    (folder,) = Path("runs/sweeps").glob("*/*")
    return [Run(path) for path in sorted(folder.iterdir()) if path.is_dir()]


def children_of(pid: int | None) -> set[int]:
    """Living processes of this parent."""
    found = set()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has just gone
            state, parent = stat.read_text().rpartition(")")[2].split()[:2]
            if state not in ("Z", "X") and int(parent) == pid:
                found.add(int(stat.parent.name))
    return found


def test_every_job_has_a_run_of_its_own() -> None:
    assert sweep("seed=1,2", "trainer=sync") == 0
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
    first, second = (run.files("checkpoints") for run in runs)
    name = "checkpoints/step-000000030/model.safetensors"
    assert first[name] != second[name]
    assert len({run.summary["run_id"] for run in runs}) == 2
    assert not Path("runs/latest").exists()


def test_a_job_is_what_the_same_words_are_alone() -> None:
    """Whatever ran before it in the same process, under `trainer=sync`."""
    assert sweep("seed=1,2", "trainer=sync") == 0
    assert main(tiny(*SHORT, "seed=2", "trainer=sync")) == 0
    alone = Run(Path("runs/latest").resolve())
    assert job_runs()[1].files("checkpoints", "best") == alone.files("checkpoints", "best")


def test_failing_jobs_are_reported_at_once_and_the_others_run() -> None:
    """An actor that fails in its 30th env step, an environment that cannot be made, and one that is well."""
    faults = ["env.kwargs.fault=raise", "env.kwargs.fault_at=step,make,never", "env.kwargs.fault_step=30"]
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        code = sweep(*COUNTING, *faults, STOP, "trainer.eval_interval=null", "recorder.console=plain")
    assert code == 5  # the first that is not 0
    text = said.getvalue()
    moments = [
        "job 0 (",
        "fault_at=step",
        "error: actor ",
        "job 1 (",
        "fault_at=make",
        "error: env: the environment raised when it was made or reset: RuntimeError: CountingEnv was told",
        "ended by",
    ]
    places, start = [], 0
    for moment in moments:  # each after the one before
        start = text.find(moment, start)
        places.append(start)
    assert -1 not in places, text
    assert text.count("CountingEnv was told to raise at step") >= 1  # the actor's own traceback
    lost, refused, well = job_runs()
    assert (lost.summary["status"], lost.summary["exit_code"]) == ("failed", 5)
    assert "CountingEnv was told to raise at step" in (lost.path / "train.log").read_text()
    assert {entry.name for entry in refused.path.iterdir()} <= {".hydra"}
    assert (well.summary["status"], well.summary["ended_by"]) == ("done", "max_opts")


def test_a_job_whose_value_is_bad_only_for_the_environment_fails_alone() -> None:
    said = io.StringIO()
    with contextlib.redirect_stderr(said):
        code = sweep("env=gym", "env.id=CartPole-v1,CartPool-v1,Acrobot-v1", "trainer=sync")
    assert code == 2
    lines = said.getvalue().splitlines()
    assert lines[0].startswith("job 1 (")
    assert "env.id: there is no environment 'CartPool-v1'" in lines[0]
    assert len(lines) <= 3
    well, _, last = job_runs()
    assert [well.summary["status"], last.summary["status"]] == ["done", "done"]


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_nothing_is_left_between_jobs_and_after_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looked at before each job and after the sweep: processes, descriptors, handlers of signals and logs, threads."""
    found = []

    def look() -> None:
        gc.collect()  # an exception that was reported holds on to the frames it went through
        root, package = logging.getLogger(), logging.getLogger("border_cli")
        found.append(
            {
                "actors": children_of(forkserver.forkserver_pid()),
                "children": children_of(os.getpid()),
                "known": set(multiprocessing.active_children()),
                "descriptors": len(list(Path("/proc/self/fd").iterdir())),
                "signals": [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)],
                "mask": signal.pthread_sigmask(signal.SIG_BLOCK, ()),
                "threads": {thread.name for thread in threading.enumerate()},
                "logging": (list(root.handlers), package.level),
                "folder": Path.cwd(),
            }
        )

    original = jobs._Sweep._start

    def start(*args: object) -> object:
        look()
        return original(*args)  # type: ignore[arg-type]

    forkserver.run_in_child(os.getpid, (), 60.0)  # the forkserver and what belongs to it is there now
    monkeypatch.setattr(jobs._Sweep, "_start", start)
    words = ["env.kwargs.fault=null,raise,null", "env.kwargs.fault_step=40", "recorder.tensorboard=true"]
    with contextlib.redirect_stderr(io.StringIO()):
        assert sweep(*COUNTING, *words, STOP, "trainer.eval_interval=null") == 5
    look()
    assert len(found) == 4
    assert found[0]["actors"] == set()
    for later in found[1:]:
        assert later == found[0]
