"""The loop of a sweep: it starts jobs in free slots, follows them, and stops them when asked to."""

from __future__ import annotations

import math
import signal
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from border_cli.core.errors import ExitCode, ResourceError
from border_cli.core.progress import JobProgress
from border_cli.display.output import write_line
from border_cli.run.directory import SWEEP_FILE, folder_error
from border_cli.runtime.child import OUTPUT_FILE, describe_exit
from border_cli.runtime.signals import StopFlag
from border_cli.sweeps.job_process import JobProcess, LocalExecutor, Task
from border_cli.sweeps.jobs import DONE, FAILED, RUNNING, STOPPED, WAITING, Job, Sweep

if TYPE_CHECKING:
    from border_cli.sweeps.ray_jobs import RayExecutor, RayJob

_POLL_S = 0.25
_KILLED = -signal.SIGKILL
_LOSSES = 3
"""How often a job runs again after its node was lost."""


class SweepView:
    """Shows a sweep to a person. This one shows errors alone."""

    def show(self, rows: Sequence[tuple[Job, JobProgress]], eta_s: float | None, stage: str) -> None:
        """All jobs with their progress, and the estimated seconds until the last one ends. Cheap to call at any time.

        stage: see `JobQueue.stage`.
        """

    def changed(self, job: Job) -> None:
        """A job has another state."""

    def note(self, message: str) -> None:
        """Lines that stay, such as an error; on stderr."""
        write_line(sys.stderr, message)

    def close(self) -> None:
        """Leave the terminal as it was found."""


class JobQueue:
    """The jobs of a sweep that are still to be started. Here all are known from the beginning; a subclass may add some."""

    def __init__(self, jobs: Iterable[Job] = ()) -> None:
        self._todo = deque(jobs)

    @property
    def left(self) -> int:
        """How many jobs are still to be started, as far as that is known."""
        return len(self._todo)

    @property
    def stage(self) -> str:
        """How far it is, in words; empty if the states of the jobs say enough."""
        return ""

    def next(self) -> Job | None:
        """The next job to run; None if there is none now. With no job running either, the sweep ends."""
        return self._todo.popleft() if self._todo else None

    def may_continue(self, job: Job, progress: JobProgress) -> bool:
        """Whether a running job continues. One that does not is stopped with a checkpoint."""
        return True

    def ended(self, job: Job) -> None:
        """The process of a job has ended; its state says how."""


RunningJob: TypeAlias = "JobProcess | RayJob"
Executor: TypeAlias = "LocalExecutor | RayExecutor"


@dataclass
class _Slot:
    """What occupies a slot."""

    job: Job
    process: RunningJob
    began: float = field(default_factory=time.monotonic)

    @property
    def seconds(self) -> float:
        """Since the job was started."""
        return time.monotonic() - self.began


class Scheduler:
    """Runs jobs of a sweep in the slots of an executor.

    If a job runs out of memory or processes beside others, the number of slots is reduced to the number still running, and
    the job starts again when one of these has ended. A job whose node is lost starts again, or resumes from what its run
    directory holds.

    Args:
        task_of: what a job's process is to do.
    """

    def __init__(
        self,
        sweep: Sweep,
        executor: Executor,
        task_of: Callable[[Job], Task],
        view: SweepView,
        stop: StopFlag,
    ) -> None:
        self._sweep = sweep
        self._executor = executor
        self._limit = math.inf
        self._task_of = task_of
        self._view = view
        self._stop = stop
        self._running: list[_Slot] = []
        self._again: list[Job] = []  # to be started before those of the source
        self._losses: Counter[int] = Counter()
        self._is_saved = True
        self._durations: list[float] = []  # of the jobs that this launch has done, from their start [s]

    def run(self, source: JobQueue) -> None:
        """Run the jobs of a source until it has no more, or until asked to stop.

        Raises ResourceError if the disk is too full for what the source keeps there; the jobs stop with checkpoints first.
        """
        try:
            while True:
                if self._stop():
                    for slot in self._running:
                        self._stop_job(slot)
                else:
                    self._fill_slots(source)
                if not self._running:
                    return
                to_save = self._running if self._stop.take_save_request() else ()
                for slot in to_save:
                    slot.process.signal(signal.SIGUSR1)
                self._executor.wait(self._processes, _POLL_S)
                for slot in list(self._running):
                    self._update(slot, source)
                latest = {slot.job.number: slot.process.latest for slot in self._running}
                rows = [(job, latest.get(job.number) or job.progress) for job in self._sweep.jobs]
                self._view.show(rows, self._eta_s(len(self._again) + source.left), source.stage)
        except (OSError, ResourceError) as e:
            self._drain()
            if isinstance(e, OSError):
                raise folder_error(e, self._sweep.folder) from e
            raise
        finally:
            for slot in self._running:
                slot.process.close()

    def _fill_slots(self, source: JobQueue) -> None:
        while len(self._running) < self._count:
            job = self._again.pop(0) if self._again else source.next()
            if job is None:
                return
            self._start(job, source)

    def _start(self, job: Job, source: JobQueue) -> None:
        try:
            process = self._executor.start(self._task_of(job), job.run_dir, self._processes)
        except (OSError, ResourceError) as e:
            if self._running:
                self._run_again(job, f"it could not be started: {e}", beside_fewer=True)
                return
            job.state, job.exit_code, job.error = FAILED, int(ExitCode.RESOURCES), str(e)
            self._view.note(f"{self._title(job)}: error: {e}")
            source.ended(job)
        else:
            job.state = RUNNING
            self._running.append(_Slot(job, process))
        self._save(job)
        self._view.changed(job)

    def _update(self, slot: _Slot, source: JobQueue) -> None:
        """Take what a job has sent; stop it if it is not to continue."""
        slot.process.update()
        if slot.process.exit_code is not None or slot.process.lost:
            self._end(slot, source)
        elif slot.process.latest and not source.may_continue(slot.job, slot.process.latest):
            self._stop_job(slot)

    def _end(self, slot: _Slot, source: JobQueue) -> None:
        """Run a job again whose node was lost, or that had no room; note how every other one ended."""
        job, process = slot.job, slot.process
        process.update()
        code = ExitCode.DEFECT if process.lost else process.exit_code or 0
        self._running.remove(slot)
        process.close()
        if not self._stop():
            if process.lost and self._losses[job.number] < _LOSSES:
                self._losses[job.number] += 1
                self._run_again(job, process.lost)
                return
            if code in (ExitCode.RESOURCES, _KILLED) and self._running:
                why = process.error.cause or "it was killed, probably for lack of memory"
                self._run_again(job, why, beside_fewer=True)
                return
        if code == ExitCode.SIGTERM and self._stop.code is not None:  # passed on as SIGTERM
            code = int(self._stop.code)
        job.exit_code = code if code >= 0 else 128 - code  # as a shell has it
        job.state = STOPPED if job.exit_code in (ExitCode.SIGINT, ExitCode.SIGTERM) else FAILED
        job.error, text = process.error.cause or process.lost, process.error.text
        if code < 0 or (not job.error and job.state == FAILED and code):
            job.error = f"the job's process {describe_exit(code)}"
            where = f"{job.run_dir / OUTPUT_FILE} has what it printed"
            text = text or f"{self._title(job)}: error: {job.error}\n{where}"
        job.refresh()
        if job.state == DONE:
            self._durations.append(slot.seconds)
        if job.state == FAILED:
            self._view.note(text or f"{self._title(job)}: error: {job.error}")
        self._save(job)
        self._view.changed(job)
        source.ended(job)

    def _title(self, job: Job) -> str:
        return f"job {job.number} ({self._sweep.settings(job)})"

    def _run_again(self, job: Job, why: str, beside_fewer: bool = False) -> None:
        """Put a job back. beside_fewer: there was no room for it beside the others."""
        when = "as soon as there is room"
        if beside_fewer:
            self._limit = len(self._running)
            when = f"later, with {self._limit} at once"
        self._view.note(f"job {job.number} will run again {when}: {why}")
        job.state = WAITING
        self._save(job)
        self._again.append(job)

    def _save(self, job: Job) -> None:
        """Write the job's state. A full disk must not end the jobs: the end of the sweep writes what is missing."""
        try:
            self._sweep.save(job)
        except OSError as e:
            if self._is_saved:
                self._view.note(f"{SWEEP_FILE} cannot be written, training continues: {e}")
            self._is_saved = False

    def _drain(self) -> None:
        """Stop all jobs, and wait until their processes have ended."""
        for slot in self._running:
            self._stop_job(slot)
        while left := [p for p in self._processes if p.exit_code is None and not p.lost]:
            self._executor.wait(left, _POLL_S)
            for process in left:
                process.update()

    def _stop_job(self, slot: _Slot) -> None:
        """Ask a job to stop, once: it saves a checkpoint first."""
        if slot.job.state == RUNNING:
            slot.process.signal(signal.SIGTERM)
            slot.job.state = STOPPED

    def _eta_s(self, n_waiting: int) -> float | None:
        """Seconds until all jobs have ended; None while unknown. A job without an ETA is taken to be an average one."""
        etas = [slot.process.latest.eta_s if slot.process.latest else None for slot in self._running]
        slots = list(zip(self._running, etas, strict=True))
        whole = self._durations + [slot.seconds + eta for slot, eta in slots if eta is not None]
        if not whole:
            return None
        mean = sum(whole) / len(whole)
        left = [max(0.0, mean - slot.seconds) if eta is None else eta for slot, eta in slots]
        return max([(sum(left) + n_waiting * mean) / self._count, *left])

    @property
    def _processes(self) -> list[RunningJob]:
        return [slot.process for slot in self._running]

    @property
    def _count(self) -> int:
        """Jobs at a time."""
        return int(min(self._executor.count, self._limit))
