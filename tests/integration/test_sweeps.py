"""Sweeps of real runs: a folder per job, failing jobs do not stop the others, and jobs leave nothing behind."""

from __future__ import annotations

import gc
import logging
import multiprocessing
import os
import re
import shlex
import signal
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
from hydra.core.hydra_config import HydraConfig
from hydra.core.plugins import Plugins
from omegaconf import OmegaConf

from border_cli.cli import start
from border_cli.cli.sweep_run import SweepRun, SweepSettings
from border_cli.cli.train import main
from border_cli.config.schema import TrainConfig
from border_cli.core.errors import ExitCode, Interrupted, ResourceError
from border_cli.display.output import output
from border_cli.run.directory import Launch
from border_cli.runtime import forkserver
from border_cli.runtime.stopping import StopFlag
from border_cli.sweeps.jobs import Sweep
from border_cli.sweeps.local_jobs import JobEnd
from tests.faults.commands import Command, endless
from tests.faults.processes import processes, run_in_child
from tests.real_runs import Run, tiny, train

SHORT = ("trainer.max_opts=30", "trainer.eval_interval=20", "trainer.save_interval=null")
COUNTING = ("env=gym", "env.entry_point=tests.counting:CountingEnv", "trainer=sync")

pytestmark = pytest.mark.usefixtures("workplace")


def sweep(*args: str) -> int:
    return main(["-m", *tiny(*SHORT, *args)])


def job_runs() -> list[Run]:
    """Return the jobs of the only sweep in order."""
    (folder,) = Path("runs/sweeps").glob("*/*")
    return [Run(path) for path in sorted(folder.glob("[0-9]*")) if path.is_dir()]


def test_every_job_has_its_own_run_and_the_best_configuration_is_a_preset_for_other_runs(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """How many jobs run at a time is measured first."""
    lockstep = ("trainer.lockstep=true", "n_actors=1")
    assert sweep("agent.gamma=0.5,0.6", *lockstep, "recorder.console=plain") == 0
    assert not Path("runs/latest").exists()
    runs = job_runs()
    assert [run.path.name for run in runs] == ["0_dqn_cartpole", "1_dqn_cartpole"]
    for gamma, run in zip((0.5, 0.6), runs, strict=True):
        assert run.config.agent.gamma == gamma
        assert run.summary["ended_by"] == "max_opts"
        assert run.checkpoints == ["step-000000030"]
        assert run.steps("eval/return_mean") == [20, 30]
        assert (run.path / ".hydra" / "config.yaml").is_file()
        assert (run.path / "best" / "manifest.json").is_file()
        assert f"agent.gamma={gamma}" in (run.path / ".hydra" / "overrides.yaml").read_text()
        assert "-m" in run.json("provenance.json")["launches"][0]["command"].split()
    assert len({run.summary["run_id"] for run in runs}) == 2

    (preset,) = Path("runs/sweeps").glob("*/*/preset/best_cartpole.yaml")
    folder = preset.parent.parent
    assert (
        f"best     border-train --config-dir {folder} agent=dqn env=cartpole trainer.lockstep=True preset=best_cartpole"
        in (out := capsys.readouterr().out)
    )
    assert re.search(r"jobs? at a time, with \d+ CPUs? each: \w+", out)
    with_preset = train("--config-dir", str(folder), "preset=best_cartpole", *SHORT, *lockstep)
    assert with_preset.config.preset.name == "best_cartpole"
    assert "mean return of" in with_preset.config.preset.expect
    (same,) = (run for run in runs if run.config.agent == with_preset.config.agent)
    assert with_preset.files("checkpoints", "best") == same.files("checkpoints", "best")
    assert same.summary["best_score"]["mean"] == max(run.summary["best_score"]["mean"] for run in runs)


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_jobs_in_this_process_leave_nothing_and_those_that_fail_do_not_stop_the_others(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Job 0 fails in env step 30, job 1 cannot make its environment, and job 2 finishes.

    With Hydra's own launcher, jobs run in this process. Processes, descriptors, signal and log handlers and threads must be
    the same before each job, and the same before and after the sweep.
    """
    seen: list[dict[str, object]] = []

    def look() -> None:
        gc.collect()  # a reported exception keeps its frames alive
        root, package = logging.getLogger(), logging.getLogger("border_cli")
        seen.append(
            {
                "actors": processes(forkserver.forkserver_pid()),
                "children": processes(os.getpid()),
                "known": set(multiprocessing.active_children()),
                "descriptors": len(list(Path("/proc/self/fd").iterdir())),
                "signals": [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)],
                "mask": signal.pthread_sigmask(signal.SIG_BLOCK, ()),
                "threads": {thread.name for thread in threading.enumerate()},
                "logging": (list(root.handlers), package.level),
                "folder": Path.cwd(),
            }
        )

    train_job = start.train_job

    def watched(*args: object) -> JobEnd:
        look()
        return train_job(*args)  # type: ignore[arg-type]

    run_in_child(os.getpid, (), 60.0)  # starts the forkserver before the first look
    monkeypatch.setattr(start, "train_job", watched)
    faults = ["env.kwargs.fault=raise", "env.kwargs.fault_at=step,make,never", "env.kwargs.fault_step=30"]
    words = ("trainer.eval_interval=null", "hydra/launcher=basic", "recorder.console=plain")
    look()
    assert sweep(*COUNTING, *faults, *words) == 5  # the first exit code that is not 0
    text = capsys.readouterr()
    assert re.search(r"job 0 \(.*fault_at=step.*\): .*\n(.*\n)*error: .*CountingEnv raises at step", text.err)
    assert re.search(
        r"job 1 \(.*fault_at=make.*\): error: env: the environment raised when it was made", text.err
    )
    failed, refused, finished = job_runs()
    assert (failed.summary["status"], failed.summary["exit_code"]) == ("failed", 5)
    assert "CountingEnv raises at step" in (failed.path / "train.log").read_text()
    assert {entry.name for entry in refused.path.iterdir()} <= {".hydra"}
    assert (finished.summary["status"], finished.summary["ended_by"]) == ("done", "max_opts")
    look()
    before, first, second, third, after = seen
    assert before["actors"] == []
    assert after == before
    assert first == second == third


def test_a_killed_sweep_continues_and_its_runs_equal_those_of_one_that_was_not_killed(
    workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The sweep is killed while one of two jobs hangs after its first checkpoints, and the other one has not started."""
    trapped = "{name: 'tests.faults.trap:Trapped', kwargs: {at: step, then: hang, step: 55}}"
    words = endless(
        *("env=cartpole", "env.entry_point=null", f"env.wrappers=[{trapped}]", "trainer=sync"),
        *("trainer.max_opts=60", "trainer.save_interval=20", "trainer.eval_interval=30"),
        *("checkpoint.keep=10", "seed=1,2", "sweep.slots=1"),
    )
    with Command(workplace, "-m", *words) as command:
        command.wait_for_trap()
        command.send(signal.SIGKILL)
        assert command.end() == 137  # no process of its session is left
    (sweep,) = Path("runs/sweeps").glob("*/*")
    assert [job.state for job in Sweep.read(sweep).jobs] == ["running", "waiting"]
    assert Run(sweep / "0_dqn_cartpole").checkpoints == ["step-000000020"]

    assert main(["-m", *words, "recorder.console=plain"]) == 0
    first, second = job_runs()
    assert [run.summary["status"] for run in (first, second)] == ["done", "done"]
    assert [run.summary["exact"] for run in (first, second)] == [True, True]
    assert [len(run.json("provenance.json")["launches"]) for run in (first, second)] == [2, 1]
    assert f"continuing {sweep}" in capsys.readouterr().out
    alone = train(*(word for word in words if not word.startswith(("seed=", "sweep."))), "seed=1")
    assert first.files("checkpoints", "best") == alone.files("checkpoints", "best")

    before = [run.files(".") for run in (first, second)]
    assert main(["-m", *words, f"hydra.sweep.dir={sweep}", "recorder.console=plain"]) == 0
    assert "2 jobs of 2 ended in an earlier launch" in capsys.readouterr().out
    assert [run.files(".") for run in (first, second)] == before


def test_an_error_of_a_launcher_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Such as that of submitit for a job whose time is over."""

    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("job 3 has timed out\nits log: …")

    monkeypatch.setattr(Plugins, "instantiate_launcher", lambda *_, **__: SimpleNamespace(launch=fail))
    assert sweep("hydra/launcher=basic", "hydra.sweep.dir=out_${trainer.max_opts}", "seed=1,2") == 1
    assert capsys.readouterr().err == "error: hydra/launcher=basic: RuntimeError: job 3 has timed out\n"
    assert [job.state for job in Sweep.read(Path("out_30")).jobs] == ["waiting", "waiting"]


def test_without_room_for_the_measurement_a_sweep_has_one_slot(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ResourceError("starting job: Resource temporarily unavailable")

    monkeypatch.setattr("border_cli.cli.sweep_run.Child", fail)
    monkeypatch.setattr("border_cli.cli.sweep_run.Scheduler", lambda *_: SimpleNamespace(run=lambda _: None))
    assert sweep("seed=1,2", "recorder.console=plain") == 0
    assert "1 job at a time" in (out := capsys.readouterr().out)
    assert "what a job needs could not be measured: starting job: Resource temporarily unavailable" in out


def test_a_stop_ends_the_sweeper_of_a_plugin(tmp_path: Path) -> None:
    stop = StopFlag()
    stop.request(ExitCode.SIGINT)
    with output() as out:
        command = Launch([], {})
        run = SweepRun(Sweep(tmp_path, []), None, command, SweepSettings(), "border", stop, out)  # type: ignore[arg-type]
    with pytest.raises(Interrupted):
        run.launch([])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["sweep.slots=2"], "sweep.slots has no effect without -m"),
        (["-m", "sweep.slots=0"], "sweep.slots: 0 is out of range"),
        (["-m", "sweep.retry=yes"], "allowed: true or false"),
        (["-m", "sweep.slot=2"], "nearest: sweep.slots"),
        (["-m", "hydra/sweeper=border_optuna,basic"], "hydra/sweeper=border_optuna,basic: a sweep has one"),
        (["-m", "resume=auto"], "resume continues one run, and -m starts several"),
        (["-m", "seed=1,2", "hydra.sweep.dir=/proc/sweeps"], "/proc/sweeps cannot be made"),
        (["-m", "seed=1,2", "hydra.sweep.dir=other"], "other holds a sweep"),
        (["-m", "agent.lr=interval(0.1,0.2)"], "agent.lr=interval(0.1,0.2) is a search space"),
        (["agent.lr=interval(0.1,0.2)"], "allowed: -m hydra/sweeper=border_optuna, for tuning"),
        (["-m", "seed=range(10,1)"], "the sweep has no jobs: one of its ranges is empty"),
        (["hydra/sweeper=border_optuna"], "hydra/sweeper has no effect without -m"),
        (["-m", "hydra/sweeper=optunaa"], "allowed: basic, border_optuna"),
        (["-m", "hydra/job_logging=colour"], "allowed: default, disabled, none, stdout"),
        (["-m", "hydra/launcher=submitit_slurm"], "submitit_slurm after pip install hydra-submitit-launcher"),
        (["-m", "hydra/sweeper=nevergrad"], "nevergrad after pip install hydra-nevergrad-sweeper"),
    ],
)
def test_mistakes_about_sweeps_are_named(
    workplace: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    (workplace / "other").mkdir()
    Sweep(workplace / "other", ["seed=3"]).save()
    assert main(words) == 2
    error = capsys.readouterr().err
    assert message in error
    assert len(error.splitlines()) <= 3


def test_the_preset_of_a_sweep_with_files_of_the_user_is_used_with_them(
    workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (workplace / "c" / "env").mkdir(parents=True)
    (workplace / "c" / "env" / "mine.yaml").write_text("id: Acrobot-v1\n")
    words = (
        "env=mine",
        "agent.gamma=0.5",
        "trainer=sync",
        "trainer.max_env_steps=100",
        "hydra/launcher=basic",
    )
    words += ("trainer.eval_interval=20", "trainer.save_interval=null", "recorder.console=plain")
    words += ("evaluator.max_episode_steps=20",)
    assert main(["--config-dir", "c", "-m", *tiny(*words)]) == 0
    (best,) = re.findall("best +(border-train --config-dir c .*)", capsys.readouterr().out)
    assert "'hydra.searchpath=[runs/sweeps/" in best
    with_preset = train(*shlex.split(best)[1:], "trainer=sync", "trainer.max_env_steps=100")
    assert with_preset.config.agent.gamma == 0.5


def test_after_a_job_of_a_launcher_was_stopped_its_process_begins_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(start, "stopped_by", None)
    began: list[str] = []

    def stopped(*args: object) -> None:
        began.append("job")
        raise Interrupted(ExitCode.SIGINT)

    monkeypatch.setattr(start, "start_run", stopped)
    monkeypatch.setattr(start, "check_composed", lambda *args: TrainConfig())
    state = SimpleNamespace(
        overrides=SimpleNamespace(task=["seed=1"]),
        runtime=SimpleNamespace(output_dir="nowhere", choices={}),
    )
    monkeypatch.setattr(HydraConfig, "get", lambda: state)
    for _ in range(2):
        assert start.train_job([], [], OmegaConf.create()).code == 130
    assert began == ["job"]
