"""Whole runs of environments that behave as real ones do. Nothing that they do outlives the run, or reaches beyond it."""

from __future__ import annotations

import os
import pwd
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from border_cli.cli import entry
from border_cli.cli.train import main
from border_cli.runtime.forkserver import pid_gone
from border_cli.runtime.forkserver_process import MOST_OUTPUT
from tests.faults.amounts import FULL, sampled
from tests.faults.commands import Command
from tests.faults.processes import wait_until
from tests.real_runs import Run, in_folder, tiny
from tests.warm import finished


def words(folder: Path, habit: str, *args: str, opts: int = 60) -> list[str]:
    """The arguments of a run of CartPole with this habit, whose notes are in the folder `notes`."""
    notes = folder / "notes"
    notes.mkdir(parents=True, exist_ok=True)
    typed = {arg.partition("=")[0] for arg in args}
    default = [
        "env=gym",
        "env.entry_point=tests.faults.habits:Cartpole",
        f"env.kwargs.habit={habit}",
        f"env.kwargs.folder={notes}",
        "agent.compile=false",
        "n_actors=2",
        f"trainer.max_opts={opts}",
        "trainer.eval_interval=20",
        "evaluator=process",
        "recorder.console=plain",
    ]
    default = [arg for arg in default if arg.partition("=")[0] not in typed]
    if "trainer=sync" in args:
        default = [arg for arg in default if not arg.startswith(("n_actors", "evaluator="))]
    return tiny(*default, *args)


def run(folder: Path, habit: str, *args: str, opts: int = 60, **named: Any) -> Command:
    """Start such a run as a command."""
    folder.mkdir(exist_ok=True)
    return Command(folder, *words(folder, habit, *args, opts=opts), **named)


def run_here(folder: Path, habit: str, *args: str, code: int = 0) -> Run:
    """Train in this process, where the learner's own process has no part in what is tested."""
    assert main(words(folder, habit, *args)) == code
    return Run(Path("runs/latest").resolve())


def notes(folder: Path, kind: str) -> dict[str, list[str]]:
    """What the processes of a run have noted, by the name of the process."""
    files = sorted((folder / "notes").glob(f"{kind}-*"))
    return {file.name.removeprefix(f"{kind}-"): file.read_text().splitlines() for file in files}


def left(folder: Path) -> list[int]:
    """The processes that environments have noted and that have not ended."""
    pids = [int(pid) for lines in notes(folder, "pid").values() for pid in lines]
    assert pids
    return [pid for pid in pids if not pid_gone(pid)]


def test_j1_an_environment_of_an_actor_may_fork_workers_and_end_them(workplace: Path) -> None:
    assert run_here(workplace, "forks").counts[0] == 60


def test_j1_an_environment_of_the_learner_may_fork_workers_and_end_them(tmp_path: Path) -> None:
    with run(tmp_path, "forks", "trainer=sync") as command:
        assert command.end() == 0
    assert command.run.counts[0] == 60


@pytest.mark.parametrize(("habit", "kill"), [("leaves_worker", os.kill), ("leaves_simulator", os.killpg)])
def test_j1_j6_what_an_environment_leaves_behind_ends_with_a_killed_learner_and_holds_no_lock(
    tmp_path: Path, full_forkserver: None, capsys: pytest.CaptureFixture[str], habit: str, kill: Any
) -> None:
    with run(tmp_path, habit, opts=10**9) as command:
        wait_until(
            lambda: {"actor-0", "actor-1", "evaluator"} <= notes(tmp_path, "pid").keys(), "all of them"
        )
        kill(command.pid, signal.SIGKILL)
        assert command.end() == 128 + signal.SIGKILL
    wait_until(lambda: not left(tmp_path), "their end")
    with in_folder(tmp_path):
        main(["resume=runs/latest", "trust=true", "trainer.max_opts=1"])
    assert "trained by another process" not in capsys.readouterr().err


def test_j1_a_forked_worker_of_the_learner_holds_no_lock(tmp_path: Path) -> None:
    with run(tmp_path, "leaves_worker", "trainer=sync", opts=10**9) as command:
        wait_until(lambda: notes(tmp_path, "pid").get("MainProcess"), "the worker")
        os.kill(command.pid, signal.SIGKILL)
        command.wait()
        (worker,) = map(int, notes(tmp_path, "pid")["MainProcess"])
        try:
            with Command(tmp_path, "resume=runs/latest", "trust=true", "trainer.max_opts=1") as again:
                again.wait()
                assert "trained by another process" not in again.errors
        finally:
            os.kill(worker, signal.SIGKILL)


# tests/unit/test_output.py has both readers, without a run
@pytest.mark.parametrize("reader", sampled(["sleep 1000", "head -1"], 2))
def test_j2_j3_prints_do_not_end_a_run_whose_reader_stops_or_closes(tmp_path: Path, reader: str) -> None:
    ours, theirs = os.pipe()
    with subprocess.Popen(reader.split(), stdin=ours, stdout=subprocess.DEVNULL) as reading:
        os.close(ours)
        with Command(tmp_path, *words(tmp_path, "prints"), stdout=theirs) as command:
            os.close(theirs)
            assert command.end() == 0
        reading.kill()
    assert command.run.counts[0] == 60
    old, newest = (command.run.path / name for name in ("output.log.old", "output.log"))
    assert old.stat().st_size >= MOST_OUTPUT and newest.stat().st_size <= MOST_OUTPUT + 100_000
    assert (command.run.path / "train.log").stat().st_size < 50_000


SEVERAL = ("evaluator.n_envs=2", "actor_manager.envs_per_actor=2")
"""Each process makes several environments."""


def test_j4_what_an_environment_changes_does_not_reach_the_next_one_of_its_process(workplace: Path) -> None:
    run_here(workplace, "is_strict", *SEVERAL)


@pytest.mark.parametrize("habit", sampled(["wanders", "is_strict"], 2))
def test_j4_what_an_environment_of_the_learner_changes_does_not_reach_the_run(
    tmp_path: Path, habit: str
) -> None:
    """The run is stopped by a signal, whose handler the environment has changed, and saves a checkpoint."""
    with run(tmp_path, habit, *SEVERAL, "trainer=sync", opts=10**9) as command:
        command.wait_for_log("new best")
        command.send(signal.SIGTERM)
        assert command.end() == 143
        assert command.run.counts[0] > 0
        assert (command.run.path / "checkpoints").is_dir()


def test_j5_a_close_that_hangs_costs_its_deadline_and_nothing_else(workplace: Path) -> None:
    done = run_here(workplace, "never_closes", "actor_manager.stop_timeout_s=1")
    assert done.counts[0] == 60
    assert {actor["state"] for actor in done.summary["actors"]} == {"done"}


def test_j6_simulators_end_with_the_run(workplace: Path) -> None:
    run_here(workplace, "leaves_simulator")
    assert left(workplace) == []
    assert {"trial", "actor-0", "actor-1", "evaluator"} <= notes(workplace, "pid").keys()


def test_j7_j10_children_have_the_variables_and_cpus_of_the_learner_and_seeds_of_their_own(
    tmp_path: Path, full_forkserver: None
) -> None:
    """The second run has the same seed, and is one of this process."""
    drawn, typed = [], "+hydra.job.env_set.BORDER_TEST=seen"
    # only a command that is started anew reads the variable of OpenMP
    bound = ("env", "OMP_PROC_BIND=true") if FULL else ()
    with run(tmp_path / "first", "looks", typed, before=bound) as command:
        assert command.end() == 0
    (tmp_path / "second").mkdir()
    with in_folder(tmp_path / "second") as folder:
        run_here(folder, "looks", typed)
    for name in ("first", "second"):
        variable = notes(tmp_path / name, "variable")
        assert {variable[process][0] for process in ("actor-0", "actor-1", "evaluator")} == {"seen"}
        cpus = {lines[0] for lines in notes(tmp_path / name, "cpus").values()}
        assert cpus == {str(sorted(os.sched_getaffinity(0)))}
        drawn.append({process: lines[0] for process, lines in notes(tmp_path / name, "drawn").items()})
    assert drawn[0] == drawn[1]
    assert len(set(drawn[0].values())) == len(drawn[0]) >= 4


def train_without_a_home() -> int:
    """Entry point of a user who has no home folder."""
    del os.environ["HOME"], os.environ["XDG_CACHE_HOME"]
    pwd.getpwuid = lambda _: {}["no user"]  # type: ignore[assignment]
    return entry.train()


def test_j8_a_long_tmpdir_and_a_user_without_a_home(workplace: Path) -> None:
    long = workplace / ("t" * 120)
    long.mkdir()
    args = words(workplace, "forks", "agent.compile=auto", "trainer.max_time=1000")
    homeless = "tests.faults.test_habits:train_without_a_home"
    done = finished(homeless, *args, variables={"TMPDIR": str(long)})
    assert (done.returncode, done.stderr) == (0, "")
    assert list(long.iterdir()) == []


def test_j9_the_same_exception_at_the_same_step_ends_the_run_at_once(
    workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ended = run_here(workplace, "raises", "n_actors=1", "actor_manager.restart_delay_s=0.01", code=5)
    first, second, third = capsys.readouterr().err.splitlines()[-3:]
    assert first.endswith("ValueError: the second episode is broken")
    assert (
        second == "it raised this at the same step of the same episode before: another restart would not help"
    )
    assert third == "nothing is saved: there was no opt step yet"
    (actor,) = ended.summary["actors"]
    assert actor["restarts"] == 1
