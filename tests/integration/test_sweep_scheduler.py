"""The slots of a sweep with light processes as jobs: each writes the summary of a run and exits as its arguments say."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import pytest

from border_cli.core.errors import ExitCode
from border_cli.core.progress import JobProgress, Progress
from border_cli.runtime.stopping import StopFlag
from border_cli.sweeps.jobs import Job, Sweep
from border_cli.sweeps.local_jobs import JobEnd, JobProcess, JobView, LocalExecutor
from border_cli.sweeps.scheduler import JobQueue, Scheduler, _Slot
from tests.faults.processes import nothing_left, wait_until


@dataclass(frozen=True)
class Light:
    """A job. codes: exit codes of its first and second start, a negative one for a signal · meet: another job to wait for ·
    waits_for_retry: whether to wait until the sweep has put that job back into the queue.
    """

    run_dir: Path
    codes: tuple[int, ...] = (0,)
    meet: int | None = None
    waits_for_retry: bool = False

    def __call__(self, view: JobView, run_dir: Path) -> JobEnd:
        starts = run_dir / "starts"
        n = len(starts.read_text()) if starts.exists() else 0
        starts.write_text("x" * (n + 1))
        (run_dir / "config.yaml").write_text("{}\n")
        view.show(Progress(phase="training", seconds=1.0, opt_steps=1, max_opts=4, opt_steps_per_sec=1.0))
        if n == 0 and self.meet is not None:
            wait_until(self._met, "the other job")
        code = self.codes[min(n, len(self.codes) - 1)]
        if code < 0:
            os.kill(os.getpid(), -code)
        (run_dir / "summary.json").write_text(json.dumps({"status": "failed" if code else "done"}))
        return JobEnd(code, f"error: code {code}\nallowed: 0" if code else "")

    def _met(self) -> bool:
        assert self.meet is not None
        if not (self.run_dir.parent / str(self.meet) / "starts").exists():
            return False
        if not self.waits_for_retry:
            return True
        jobs = Sweep.read(self.run_dir.parent).jobs
        return (
            len(jobs) > self.meet and jobs[self.meet].state == "waiting"
        )  # a job starts before the journal says so


@dataclass
class Seen:
    """A view that keeps what it is shown."""

    changes: list[tuple[int, str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    most: int = 0

    def show(self, rows, eta_s, stage) -> None:
        self.most = max(self.most, sum(job.state == "running" for job, _ in rows))

    def changed(self, job: Job) -> None:
        self.changes.append((job.number, job.state))

    def note(self, message: str) -> None:
        self.notes.append(message)

    def close(self) -> None: ...


def run(
    folder: Path,
    jobs: list[Light],
    slots: int,
    stop: StopFlag | None = None,
    executor: LocalExecutor | None = None,
) -> tuple[Sweep, Seen]:
    sweep, seen = Sweep(folder, []), Seen()
    added = [sweep.add([f"n={n}"], lambda n: jobs[n].run_dir) for n in range(len(jobs))]
    with nothing_left():
        where = executor or LocalExecutor(slots)
        Scheduler(sweep, where, lambda job: jobs[job.number], seen, stop or StopFlag()).run(JobQueue(added))
    sweep.save()  # as the command does at its end
    assert Sweep.read(folder).jobs == [
        Job(job.number, job.overrides, job.run_dir, job.state, job.exit_code, job.error) for job in added
    ]
    return sweep, seen


def starts(sweep: Sweep) -> list[int]:
    return [
        len((job.run_dir / "starts").read_text()) if (job.run_dir / "starts").exists() else 0
        for job in sweep.jobs
    ]


def test_each_job_runs_once_as_many_at_a_time_as_there_are_slots_and_failures_are_reported(
    tmp_path: Path,
) -> None:
    jobs = [
        Light(tmp_path / "0", meet=1),
        Light(tmp_path / "1", meet=0),
        Light(tmp_path / "2", codes=(5,)),
        Light(tmp_path / "3", codes=(-signal.SIGSEGV,)),
    ]
    sweep, seen = run(tmp_path, jobs, slots=2)
    ends = [(job.state, job.exit_code, job.error) for job in sweep.jobs]
    assert ends[:3] == [("done", 0, ""), ("done", 0, ""), ("failed", 5, "code 5")]
    assert ends[3] == ("failed", 139, "the job's process was killed by SIGSEGV")
    assert (starts(sweep), seen.most) == ([1, 1, 1, 1], 2)
    assert seen.changes[:2] == [(0, "running"), (1, "running")]
    assert set(seen.notes) == {
        "job 2 (n=2): error: code 5\nallowed: 0",
        f"job 3 (n=3): error: {ends[3][2]}\n{tmp_path}/3/output.log has what it printed",
    }


def visible_gpus(view: JobView, _: Path) -> JobEnd:
    return JobEnd(2, os.environ["CUDA_VISIBLE_DEVICES"])


@pytest.mark.parametrize("gpu", ["3", None])
def test_a_job_sees_its_gpu_alone_and_leaves_a_ctrl_c_while_it_starts_to_the_sweep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gpu: str | None
) -> None:
    """Until the process leads a group of its own, the terminal sends it SIGINT too."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,3")
    process = JobProcess(visible_gpus, tmp_path, 1, gpu)
    with contextlib.ExitStack() as at_end:
        at_end.callback(process.end)
        process.signal(signal.SIGINT)  # it takes a moment to import what it runs
        wait_until(lambda: process.job_end is not None, "the end of the job")
        assert process.job_end == JobEnd(2, gpu or "0,3")
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "0,3"


@pytest.mark.parametrize("code", [ExitCode.RESOURCES, -signal.SIGKILL])
def test_a_job_for_which_there_was_no_memory_beside_others_runs_again_when_the_next_has_ended(
    tmp_path: Path, code: int
) -> None:
    jobs = [
        Light(tmp_path / "0", meet=1, waits_for_retry=True),
        Light(tmp_path / "1", codes=(code, 0), meet=0),
    ]
    sweep, seen = run(tmp_path, [*jobs, Light(tmp_path / "2")], slots=2)
    assert [job.state for job in sweep.jobs] == ["done"] * 3
    assert starts(sweep) == [1, 2, 1]
    assert "job 1 will run again later, with 1 at once" in seen.notes[0]


def test_a_job_for_which_there_is_no_memory_alone_has_failed(tmp_path: Path) -> None:
    sweep, _ = run(tmp_path, [Light(tmp_path / "0", codes=(ExitCode.RESOURCES,))], slots=2)
    assert [(job.state, job.exit_code) for job in sweep.jobs] == [("failed", 3)]
    assert starts(sweep) == [1]


class Refusing(LocalExecutor):
    """Cannot start this job the first time."""

    refused = "1"

    def start(self, task, run_dir: Path, beside: Sequence[JobProcess]) -> JobProcess:
        if run_dir.name == self.refused:
            self.refused = ""
            raise OSError(11, "Resource temporarily unavailable")
        return super().start(task, run_dir, beside)


@pytest.mark.parametrize(("slots", "state"), [(2, "done"), (1, "failed")])
def test_a_job_that_cannot_be_started_waits_for_the_others_and_fails_if_there_are_none(
    tmp_path: Path, slots: int, state: str
) -> None:
    jobs = [Light(tmp_path / str(n)) for n in range(3)]
    sweep, seen = run(tmp_path, jobs, slots, executor=Refusing(slots))
    assert [job.state for job in sweep.jobs] == ["done", state, "done"]
    assert starts(sweep) == [1, int(state == "done"), 1]
    assert len(seen.notes) == 1 and "Resource temporarily unavailable" in seen.notes[0]


def test_a_journal_that_cannot_be_written_does_not_end_the_jobs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original, full = Sweep.save, [OSError(28, "No space left on device")] * 2

    def save(sweep: Sweep, *jobs: Job) -> None:
        if full:
            raise full.pop()
        original(sweep, *jobs)

    monkeypatch.setattr(Sweep, "save", save)
    sweep, _ = run(tmp_path, [Light(tmp_path / str(n)) for n in range(2)], slots=1)
    assert ([job.state for job in sweep.jobs], full) == (["done"] * 2, [])


def test_jobs_are_divided_among_the_gpus_that_are_free(monkeypatch: pytest.MonkeyPatch) -> None:
    def process(task: object, run_dir: Path, cpus: int, gpu: str | None) -> SimpleNamespace:
        return SimpleNamespace(gpu=gpu)

    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,3")
    monkeypatch.setattr("border_cli.sweeps.local_jobs.JobProcess", process)
    executor, task = LocalExecutor(2, "cuda"), Light(Path("0"))
    first = executor.start(task, Path("0"), [])
    second = executor.start(task, Path("1"), [first])
    assert [job.gpu for job in (first, second)] == ["0", "3"]
    assert executor.start(task, Path("2"), [first]).gpu == "3"
    assert LocalExecutor(2, "cuda:1").start(task, Path("0"), []).gpu is None  # which sees all of them


def test_the_time_that_a_sweep_needs_by_hand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two slots: one job done in 10 s, one that has 4 of its 20 s left, one that has just been started, three that wait."""
    sweep = Sweep(tmp_path, [])
    jobs = [Job(n, (f"n={n}",), tmp_path / str(n)) for n in range(6)]
    sweep.jobs = jobs
    scheduler = Scheduler(sweep, LocalExecutor(2), lambda job: None, Seen(), StopFlag())  # type: ignore[arg-type, return-value]
    starting = SimpleNamespace(latest=None)
    now = 1000.0
    monkeypatch.setattr("border_cli.sweeps.scheduler.time.monotonic", lambda: now)
    scheduler._running = [_Slot(jobs[1], starting, now)]  # type: ignore[arg-type]
    assert scheduler._eta_s(4) is None
    scheduler._durations = [10.0]
    almost = SimpleNamespace(latest=JobProgress("training", 14.0, eta_s=4.0))
    scheduler._running = [_Slot(jobs[1], almost, now - 16.0), _Slot(jobs[2], starting, now - 5.0)]  # type: ignore[arg-type]
    assert scheduler._eta_s(3) == (4.0 + (15.0 - 5.0) + 3 * 15.0) / 2
    assert scheduler._eta_s(0) == 10.0


@dataclass(frozen=True)
class Patient:
    """A job that runs until it is asked to stop, and then writes a file.

    beside: another job · asks: its sweep to stop, when both have started · sweep: process of the sweep.
    """

    run_dir: Path
    asks: bool = True
    beside: Path | None = None
    sweep: int = field(default_factory=os.getpid)

    def __call__(self, view: JobView, run_dir: Path) -> JobEnd:
        with StopFlag() as stop:
            (run_dir / "config.yaml").write_text("{}\n")
            (run_dir / "starts").write_text("x")
            if self.beside is not None:
                wait_until((self.beside / "starts").exists, "the other job")
            if self.asks:
                os.kill(self.sweep, signal.SIGINT)
            while not stop():
                time.sleep(0.01)
            (run_dir / "saved").touch()
            return JobEnd(stop.code or 0)


def test_a_stop_reaches_every_job_and_no_further_job_starts(tmp_path: Path) -> None:
    with StopFlag() as stop:
        first, asking = Patient(tmp_path / "0", asks=False), Patient(tmp_path / "1", beside=tmp_path / "0")
        sweep, _ = run(tmp_path, [first, asking, Light(tmp_path / "2")], slots=2, stop=stop)  # type: ignore[list-item]
        assert stop.code == ExitCode.SIGINT
    stopped = ("stopped", 130)  # the code of the sweep, which passes SIGINT on as SIGTERM
    assert [(job.state, job.exit_code) for job in sweep.jobs] == [stopped, stopped, ("waiting", None)]
    assert all((tmp_path / name / "saved").exists() for name in ("0", "1"))


class FullDisk(JobQueue):
    """Raises when a second job is wanted, as the records of a tuning do on a full disk."""

    def next(self) -> Job | None:
        job = super().next()
        if job is None:
            wait_until((self.first.run_dir / "starts").exists, "the first job")
            raise OSError(28, "No space left on device")
        self.first = job
        return job


def test_jobs_save_before_an_error_of_the_sweep_ends_them(tmp_path: Path) -> None:
    job = Patient(tmp_path / "0", asks=False)
    sweep = Sweep(tmp_path, [])
    jobs = FullDisk([sweep.add(["n=0"], lambda _: job.run_dir)])
    with nothing_left(), pytest.raises(OSError, match="No space left"):
        Scheduler(sweep, LocalExecutor(2), lambda _: job, Seen(), StopFlag()).run(jobs)
    assert (tmp_path / "0" / "saved").exists()
