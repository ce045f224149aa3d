"""Whole runs on machines that lack something: memory, descriptors, shared memory, disk, somebody who reads."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from border_cli.recorders.jsonl import read_jsonl
from tests.faults.amounts import times
from tests.faults.commands import COMMAND, border_train, verified_checkpoints, what_is_kept
from tests.faults.marks import STARVED_AT
from tests.faults.processes import ROOT, TIMEOUT_S, assert_session_ends
from tests.faults.test_failing_disk import assert_only_whole_ones
from tests.faults.threads_told import FOLDER
from tests.real_runs import Run, tiny

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")

COUNTING = ("env=gym", "env.entry_point=border_cli.envs.counting:CountingEnv")
SYNC = ("trainer=sync", "n_actors=1")
REFUSED_S = 15.0
"""Of a CPU, until what cannot be is refused: seven times what it takes, most of which is Python's imports."""
NAMESPACE = ("unshare", "-rm", "sh", "-c")


def limited(limit: str) -> tuple[str, ...]:
    """Words in front of a command, under a limit as `ulimit` takes it."""
    return ("sh", "-c", f'ulimit {limit} && exec "$@"', "sh")


def need_mounts(folder: Path, row: str) -> None:
    """Skip the test, and say what is not shown then, where nothing may be mounted."""
    words = [*NAMESPACE, f"mount -t tmpfs -o size=1m tmpfs {folder}"]
    if (
        shutil.which("unshare") is None
        or subprocess.run(words, capture_output=True, timeout=TIMEOUT_S).returncode != 0
    ):
        pytest.skip(f"ROW {row} IS NOT SHOWN HERE: no user namespace with mounts (`unshare -rm`)")


def on_own_disk(folder: Path, size: str) -> tuple[str, ...]:
    """Words in front of a command: `folder`/disk is a disk of this size, and what is in disk/run at the end is kept."""
    disk = folder / "disk"
    disk.mkdir()
    mounted = f'mount -t tmpfs -o size={size} tmpfs {disk} && mkdir {disk}/run && "$@"; code=$?; '
    mounted += f"cp -r {disk}/run {folder}/kept; exit $code"
    return (*NAMESPACE, mounted, "sh")


@contextlib.contextmanager
def running(
    folder: Path, words: list[str], stdout: int | None = None, before: tuple[str, ...] = ()
) -> Iterator[subprocess.Popen[bytes]]:
    """`border-train` with these words, in a session of its own. before: words in front of the command."""
    environment = os.environ | {"PYTHONPATH": str(ROOT), "XDG_STATE_HOME": str(folder / "state")}
    with (folder / "errors").open("wb") as errors:
        process = subprocess.Popen(
            [*before, str(COMMAND), *words],
            cwd=folder,
            env=environment,
            stdout=subprocess.DEVNULL if stdout is None else stdout,
            stderr=errors,
            start_new_session=True,
        )
    try:
        yield process
        assert_session_ends(process.pid)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, 9)
        process.wait(TIMEOUT_S)


def latest(folder: Path) -> Run:
    return Run((folder / "runs" / "latest").resolve())


# -- refused at the start -----------------------------------------------


def refused(folder: Path, *words: str, before: tuple[str, ...] = ()) -> list[str]:
    """What a run says that is refused before there is a directory for it, in three lines at most, and soon.

    Soon is measured in time of a CPU: how long it takes where others do not want it, too.
    """
    spent = _cpu_seconds()
    with running(folder, tiny(*COUNTING, *words), before=before) as process:
        assert process.wait(120) == 3
    assert _cpu_seconds() - spent < REFUSED_S
    assert not (folder / "runs").exists()
    lines = (folder / "errors").read_text().splitlines()
    assert len(lines) <= 3
    return lines


def _cpu_seconds() -> float:
    """Of all children that have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def test_f4_too_few_descriptors_for_so_many_actors(tmp_path: Path) -> None:
    first, *others = refused(tmp_path, "n_actors=32", before=limited("-n 64"))
    assert first == "error: n_actors=32 needs 192 file descriptors, and this process may hold 64"
    assert "ulimit -n" in "".join(others)


def test_f4_a_soft_limit_is_raised_and_the_log_says_so(tmp_path: Path) -> None:
    words = tiny(*COUNTING, "n_actors=2", "trainer.max_opts=20", "trainer.eval_interval=null")
    with running(tmp_path, words, before=limited("-Sn 40")) as process:
        assert process.wait(120) == 0
    assert (tmp_path / "errors").read_text() == ""
    log = (latest(tmp_path).path / "train.log").read_text()
    assert "the limit of file descriptors was raised from 40 to 72" in log


def test_b5_a_replay_larger_than_the_memory_is_refused_before_any_of_it_is_taken(tmp_path: Path) -> None:
    """Its address space is limited far below the replay: an attempt to take it would end otherwise."""
    first, taken, allowed = refused(tmp_path, "buffer.capacity=1e12", before=limited(f"-v {64 * 2**20}"))
    assert re.search(r"needs 43\.\d TiB of memory, and \d+\.\d [GM]iB are free", first)
    assert "replay 43." in taken and "buffer.capacity up to" in allowed


def test_f1_rings_larger_than_the_memory_are_refused(tmp_path: Path) -> None:
    """So much that no file may be so long: where this is not refused, taking it fails at once and harms nobody."""
    first, taken, allowed = refused(tmp_path, "n_actors=2", f"actor_manager.ring_rows={2**63 - 1}")
    assert re.search(r"needs [\d.]+ PiB of memory, and [\d.]+ [GM]iB are free", first)
    assert re.search(r"rings [\d.]+ PiB", taken)
    assert "a smaller n_actors or actor_manager.ring_rows" in allowed


@pytest.mark.parametrize("error", ["ENOMEM", "ENOSPC"][: times(1, 2)])
def test_f1_a_ring_that_the_system_refuses_after_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: str
) -> None:
    """That of the second actor, once the first one has been started: none is left."""
    monkeypatch.setenv("RINGS", "1")
    monkeypatch.setenv("REFUSED_WITH", error)
    with running(tmp_path, tiny(*COUNTING, "n_actors=2", "plugins=[tests.faults.rings_refused]")) as process:
        assert process.wait(120) == 3
    first, *others = (tmp_path / "errors").read_text().splitlines()
    why = os.strerror(getattr(errno, error))
    assert re.fullmatch(rf"error: an actor's ring needs .* MiB, .* MiB are free: {why}", first)
    assert "allowed: a smaller actor_manager.ring_rows or n_actors" in others and len(others) <= 2
    summary = latest(tmp_path).summary
    assert (summary["status"], summary["exit_code"]) == ("failed", 3)
    assert summary["counters"].get("opt_steps", 0) == 0
    assert verified_checkpoints(latest(tmp_path)) == []


def test_f1_a_ring_that_the_system_refuses_to_the_next_incarnation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RINGS", "2")
    monkeypatch.setenv("REFUSED_WITH", "ENOMEM")
    words = ["env.kwargs.place=actor", "env.kwargs.at=step", "env.kwargs.step=100", "env.kwargs.then=hang"]
    words += ["actor_manager.restarts=1", "actor_manager.min_actors=2", "actor_manager.restart_delay_s=0.1"]
    with border_train(tmp_path, *words, "plugins=[tests.faults.rings_refused]") as command:
        os.kill(command.wait_for_trap(), signal.SIGKILL)
        assert command.end() == 5
        run, errors = command.run, command.errors
    assert re.match(r"error: actor [01] could not be started again: an actor's ring needs .* MiB", errors)
    assert os.strerror(errno.ENOMEM) in errors and len(errors.splitlines()) <= 3
    assert (run.summary["status"], run.summary["exit_code"]) == ("failed", 5)
    kept = [checkpoint.opt_steps for checkpoint in verified_checkpoints(run)]
    assert kept == [run.counts[0]] and kept[0] > 0


def test_f1_rings_need_no_shared_memory_folder(tmp_path: Path) -> None:
    """/dev/shm of 8 MiB, as containers have it, and rings of 60 MiB."""
    need_mounts(tmp_path, "F1 (rings and a small /dev/shm)")
    small = 'mount -t tmpfs -o size=8m tmpfs /dev/shm && df -m /dev/shm > shm && exec "$@"'
    words = tiny(*COUNTING, "n_actors=2", "trainer.max_opts=50", "actor_manager.ring_rows=500000")
    words += ["trainer.eval_interval=null", "evaluator.episodes=1"]
    with running(tmp_path, words, before=(*NAMESPACE, small, "sh")) as process:
        assert process.wait(120) == 0, (tmp_path / "errors").read_text()
    assert " 8 " in (tmp_path / "shm").read_text()
    assert latest(tmp_path).counts[0] == 50


# -- while training -----------------------------------------------------


@pytest.mark.parametrize("threads", [1, 2])
def test_f6_every_actor_has_one_torch_thread_and_the_learner_what_it_was_given(
    tmp_path: Path, threads: int
) -> None:
    words = ["env=gym", "env.entry_point=tests.faults.threads_told:Telling", f"threads={threads}"]
    ends = ["trainer.max_opts=100", "trainer.eval_interval=50", "evaluator.episodes=1", "n_actors=2"]
    with running(tmp_path, tiny(*words, *ends)) as process:
        assert process.wait(120) == 0, (tmp_path / "errors").read_text()
    told = {path.name: path.read_text() for path in (tmp_path / FOLDER).iterdir()}
    outside = os.environ.get("OMP_NUM_THREADS")
    assert told == {"actor-0": "1 1", "actor-1": "1 1", "MainProcess": f"{threads} {outside}"}


def test_f3_a_learner_out_of_memory_keeps_its_state_and_names_the_cause(tmp_path: Path) -> None:
    words = [*COUNTING, "plugins=[tests.faults.starved]", "trainer.save_interval=20"]
    with border_train(tmp_path, *words) as command:
        assert command.end() == 1
        run, errors = command.run, command.errors
    assert "MemoryError: Unable to allocate 128. MiB" in errors
    *_, cause, kept_line = errors.splitlines()
    assert cause.startswith("the process got no more memory")
    assert kept_line == what_is_kept(run, tmp_path)
    summary = run.summary
    assert (summary["status"], summary["exit_code"]) == ("failed", 1)
    assert "Unable to allocate" in summary["error"]
    assert "MemoryError" in run.json("crash.json")["error"]
    kept = [checkpoint.opt_steps for checkpoint in verified_checkpoints(run)]
    assert kept == [STARVED_AT - 1, 20]


def test_h3_a_disk_that_fills_up_costs_records_and_not_the_run(tmp_path: Path) -> None:
    """The run directory lies on a disk of its own, which a file fills up; once it is gone, writing goes on."""
    need_mounts(tmp_path, "H3 (a full disk and records)")
    words = tiny(*COUNTING, *SYNC, "plugins=[tests.faults.full_disk]", f"hydra.run.dir={tmp_path}/disk/run")
    words += ["trainer.record_interval=10", "trainer.max_opts=4000", "trainer.eval_interval=null"]
    words += ["trainer.save_interval=null", "recorder.tensorboard=true", "agent.hidden=[4]"]
    with running(tmp_path, words, before=on_own_disk(tmp_path, "3m")) as process:
        assert process.wait(120) == 0, (tmp_path / "errors").read_text()
    assert (tmp_path / "errors").read_text() == ""
    run = Run(tmp_path / "kept")
    dropped = run.summary["records_dropped"]
    assert set(dropped) <= {"metrics.jsonl", "tensorboard"}
    assert dropped["metrics.jsonl"] > 0
    steps = [line["opt_steps"] for line in read_jsonl(run.path / "metrics.jsonl")]
    assert steps[-1] == run.counts[0] == 4000
    assert len(steps) + dropped["metrics.jsonl"] == 401  # of the warm-up, and of every tenth opt step
    assert [checkpoint.opt_steps for checkpoint in verified_checkpoints(run)] == [4000]


def test_c6_training_goes_on_without_the_saves_that_a_full_disk_takes_no_more(tmp_path: Path) -> None:
    """Full from opt step 15 to 45, which comes although saves fail: at 20, so that at 30 is left out, and at 40, so
    that those at 50 and 60 are. RLIMIT_FSIZE, as in `test_failing_disk`, refuses large files; here nothing has room.
    """
    need_mounts(tmp_path, "C6 (a full disk and checkpoints)")
    words = tiny(
        *COUNTING, *SYNC, "plugins=[tests.faults.full_at_saves]", f"hydra.run.dir={tmp_path}/disk/run"
    )
    words += ["trainer.save_interval=10", "trainer.record_interval=1", "trainer.max_opts=85"]
    words += [
        "trainer.eval_interval=null",
        "checkpoint.keep=9",
        "checkpoint.replay=full",
        "buffer.capacity=200",
    ]
    with running(tmp_path, words, before=on_own_disk(tmp_path, "1m")) as process:
        assert process.wait(120) == 0, (tmp_path / "errors").read_text()
    assert (tmp_path / "errors").read_text() == ""
    run = Run(tmp_path / "kept")
    assert (run.summary["status"], run.counts[0]) == ("done", 85)
    assert_only_whole_ones(run, [10, 70, 80, 85])
    failed = dict(run.series("checkpoint/failed_saves"))
    assert failed[85] == 2.0
    assert min(failed) >= 20 and set(failed.values()) <= {1.0, 2.0}


def test_d9_a_reader_of_stdout_that_stops_reading_does_not_stop_the_run(tmp_path: Path) -> None:
    """Many more lines than a pipe holds, of which nobody reads any before the run is over."""
    words = tiny(
        *COUNTING, *SYNC, "recorder.console=plain", "trainer.record_interval=1", "trainer.max_opts=1000"
    )
    with running(tmp_path, [*words, "trainer.eval_interval=null"], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        with process.stdout:
            assert process.wait(120) == 0
            shown = process.stdout.read()
    assert b"opt_steps=2 " in shown
    assert b"opt_steps=1000 " not in shown  # else nothing had to wait, and this tests nothing
    assert latest(tmp_path).counts[0] == 1000
    assert (tmp_path / "errors").read_text() == ""


@pytest.mark.parametrize("closed", [">&-", "<&- >&- 2>&-"])
def test_d9_a_run_without_its_streams_completes(tmp_path: Path, closed: str) -> None:
    words = tiny(
        *COUNTING, *SYNC, "recorder.console=auto", "trainer.max_opts=50", "trainer.eval_interval=null"
    )
    with running(tmp_path, words, before=("sh", "-c", f'exec "$@" {closed}', "sh")) as process:
        assert process.wait(120) == 0
    assert latest(tmp_path).counts[0] == 50
