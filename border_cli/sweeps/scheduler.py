"""The loop of a sweep: it starts jobs in free slots, follows them, and stops them when asked to."""

from __future__ import annotations

import contextlib
import math
import signal
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from border_cli.core.errors import ExitCode, ResourceError
from border_cli.core.progress import JobProgress
from border_cli.display.output import write_line
from border_cli.runtime.stopping import StopFlag
from border_cli.sweeps.jobs import DONE, FAILED, RUNNING, STOPPED, WAITING, Job, Sweep
from border_cli.sweeps.local_jobs import JobEnd, JobProcess, LocalExecutor, Task
from border_cli.sweeps.ray_jobs import RayExecutor, RayJob

_POLL_S = 0.25
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
        """The stage of the sweep, in words; empty if the states of the jobs say enough."""
        return ""

    def next(self) -> Job | None:
        """The next job to run; None if there is none now. The sweep ends if no job is running either."""
        return self._todo.popleft() if self._todo else None

    def may_continue(self, job: Job, progress: JobProgress) -> bool:
        """Whether a running job continues. Otherwise it is stopped with a checkpoint."""
        return True

    def ended(self, job: Job) -> None:
        """The process of a job has ended; its state says how."""


RunningJob: TypeAlias = JobProcess | RayJob
Executor: TypeAlias = LocalExecutor | RayExecutor


@dataclass
class _Slot:
    job: Job
    process: RunningJob
    began: float = field(default_factory=time.monotonic)

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.began

    def stop(self) -> None:
        """Ask the job to stop, once: it saves a checkpoint first."""
        if self.job.state == RUNNING:
            self.process.signal(signal.SIGTERM)
            self.job.state = STOPPED


@dataclass(eq=False)
class Scheduler:
    """Runs jobs of a sweep in the slots of an executor.

    If a job runs out of memory or processes beside others, the number of slots is reduced to the number still running, and
    the job starts again when one of these has ended. A job whose node is lost starts again, or resumes from what its run
    directory holds. task_of: what a job's process is to do.
    """

    sweep: Sweep
    executor: Executor
    task_of: Callable[[Job], Task]
    view: SweepView
    stop: StopFlag
    _limit: float = math.inf
    _running: list[_Slot] = field(default_factory=list)
    _again: list[Job] = field(default_factory=list)  # to be started before those of the source
    _losses: Counter[int] = field(default_factory=Counter)
    _durations: list[float] = field(default_factory=list)  # of the jobs that are done, from their start [s]

    def run(self, source: JobQueue) -> None:
        """Run the jobs of a source until it has no more, or until asked to stop."""
        try:
            while True:
                if self.stop():
                    for slot in self._running:
                        slot.stop()
                else:
                    self._fill_slots(source)
                if not self._running:
                    return
                if self.stop.take_save_request():
                    for slot in self._running:
                        slot.process.signal(signal.SIGUSR1)
                self.executor.wait(self._processes, _POLL_S)
                for slot in list(self._running):
                    self._update(slot, source)
                latest = {slot.job.number: slot.process.latest for slot in self._running}
                rows = [(job, latest.get(job.number) or job.progress) for job in self.sweep.jobs]
                self.view.show(rows, self._eta_s(len(self._again) + source.left), source.stage)
        except Exception:
            self._stop_all()  # what the jobs have learned is kept, for instance on a full disk
            raise
        finally:
            for process in self._processes:
                process.end()

    def _stop_all(self) -> None:
        """Ask every job to stop, and wait until each has saved its checkpoint and has ended."""
        for slot in self._running:
            slot.stop()
        while waiting := [process for process in self._processes if process.job_end is None]:
            self.executor.wait(waiting, _POLL_S)
            for process in waiting:
                process.update()

    def _fill_slots(self, source: JobQueue) -> None:
        while len(self._running) < self._count:
            job = self._again.pop(0) if self._again else source.next()
            if job is None:
                return
            try:
                process = self.executor.start(self.task_of(job), job.run_dir, self._processes)
            except (OSError, ResourceError) as e:
                self._end(job, JobEnd(ExitCode.RESOURCES, f"error: it could not be started: {e}"), source)
            else:
                self._running.append(_Slot(job, process))
                self._change(job, RUNNING)

    def _update(self, slot: _Slot, source: JobQueue) -> None:
        """Take what a job has sent; stop it if it is not to continue."""
        slot.process.update()
        if (end := slot.process.job_end) is not None:
            self._running.remove(slot)
            slot.process.end()
            if self._end(slot.job, end, source) == DONE:
                self._durations.append(slot.seconds)
        elif slot.process.latest and not source.may_continue(slot.job, slot.process.latest):
            slot.stop()

    def _end(self, job: Job, end: JobEnd, source: JobQueue) -> str:
        """Put a job back if its node was lost or it had no room; otherwise note how it ended. Returns its state."""
        when, code = "", end.code
        if not self.stop():
            if end.node_lost and self._losses[job.number] < _LOSSES:
                self._losses[job.number] += 1
                when = "as soon as there is room"
            elif code in (ExitCode.RESOURCES, -signal.SIGKILL) and self._running:
                self._limit = len(self._running)
                when = f"later, with {self._limit} at once"
        if when:
            self.view.note(f"job {job.number} will run again {when}: {end.cause}")
            self._again.append(job)
            self._change(job, WAITING)
            return job.state
        if code == ExitCode.SIGTERM and self.stop.code is not None:  # passed on as SIGTERM
            code = int(self.stop.code)
        job.end(code, end.cause)
        if job.state == FAILED:
            self.view.note(f"{self.sweep.title(job)}: {end.error}")
        self._change(job, job.state)
        source.ended(job)
        return job.state

    def _change(self, job: Job, state: str) -> None:
        """Write and show the job's state. On a full disk jobs continue: the end of the sweep writes what is missing."""
        job.state = state
        with contextlib.suppress(OSError):
            self.sweep.save(job)
        self.view.changed(job)

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
        return int(min(self.executor.count, self._limit))
