"""One job's process: it trains one run, tells the sweep how far it is, and never outlives the sweep."""

from __future__ import annotations

import select
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

from border_cli.core.errors import ExitCode, first_line
from border_cli.core.format import counted
from border_cli.core.progress import JobProgress, Progress, View
from border_cli.display.views import first_to_end
from border_cli.runtime import machine
from border_cli.runtime.child import OUTPUT_FILE, Child
from border_cli.runtime.forkserver import PRELOAD, start_early
from border_cli.runtime.worker import Failed, Reporter, Returned, clipped

_PRELOAD = (
    *PRELOAD,
    "border_cli.cli.sweep_job",
    "border_cli.run.preflight",
    "border_cli.run.run",
    "border_cli.recorders.tensorboard",
)
"""Imported once for all jobs of a sweep."""
_SENT_S = 0.25
"""Least time between two messages about the progress [s]."""


@dataclass(frozen=True)
class JobError:
    """Message of a job that failed. text: what the command would have printed · cause: one line of it."""

    text: str
    cause: str


NO_ERROR = JobError("", "")


class JobView(View):
    """The `View` of a run in a job's process: it sends how far the run is to the sweep."""

    def __init__(self, reporter: Reporter) -> None:
        self._reporter = reporter
        self._due = 0.0

    def show(self, progress: Progress) -> None:
        """Send the progress, unless the last message is young or the sweep does not read."""
        if time.monotonic() < self._due or not select.select([], [self._reporter.pipe], [], 0)[1]:
            return
        self._due = time.monotonic() + _SENT_S
        budget = first_to_end(progress)
        last_at, last = progress.evaluations[-1] if progress.evaluations else (None, None)
        self._reporter.send(
            JobProgress(
                phase=progress.phase,
                seconds=progress.seconds,
                fraction=None if budget is None else budget.fraction,
                eta_s=None if budget is None else budget.eta_s,
                last=last,
                last_at=last_at,
                best=None if progress.best is None else progress.best[1],
                opt_steps_per_sec=progress.opt_steps_per_sec,
            )
        )

    def fail(self, text: str) -> None:
        """Send what went wrong, as the command prints it."""
        lines = text.splitlines()
        # A traceback comes before the message, and may have such a line too.
        cause = next((line for line in reversed(lines) if "error: " in line), lines[0])
        self._reporter.send(JobError(clipped(text), cause.partition("error: ")[2] or cause))


Task = Callable[[JobView, Path], int]
"""(view, run directory) → exit code: trains or resumes the run. It is pickled, and calls `view.fail` with an error."""


class JobProcess(Child):
    """A process that runs a task. Raises ResourceError where it cannot be started.

    Args:
        run_dir: created if necessary; what the process prints is written there.
        cpus: CPUs that the run is to use.
        gpu: name of the only GPU that the run sees; None for all.

    Attributes:
        latest: its progress, None at first.
        error: what went wrong, if it failed.
        lost: why there will be no more messages; of a process on this machine always empty.
    """

    lost = ""

    def __init__(self, task: Task, run_dir: Path, cpus: int, gpu: str | None = None) -> None:
        run_dir.mkdir(parents=True, exist_ok=True)
        self.gpu = gpu
        self.latest: JobProgress | None = None
        self.error = NO_ERROR
        visible = {} if gpu is None else {"CUDA_VISIBLE_DEVICES": gpu}
        args, output = (task, run_dir, cpus), run_dir / OUTPUT_FILE
        super().__init__("job", _run_job, args, output=output, trains=True, environment=visible)

    def update(self) -> None:
        """Take what the job has sent."""
        for message in self.receive(self.exited()):
            if isinstance(message, JobProgress):
                self.latest = message
            elif isinstance(message, JobError):
                self.error = message
            elif isinstance(message, Failed):
                self.error = JobError(message.traceback, message.error)

    @property
    def exit_code(self) -> int | None:
        """None while it runs; negative for a signal that killed it."""
        if not self.exited():
            return None
        if self.start_error is not None:
            self.error = JobError(str(self.start_error), first_line(self.start_error))
            return int(ExitCode.RESOURCES)
        self.update()
        return self.outcome.value if isinstance(self.outcome, Returned) else super().exit_code


@dataclass
class LocalExecutor:
    """Runs jobs in processes on this machine.

    count: jobs at a time · cpus: CPUs that each of them is to use · gpus: names of the GPUs among which they are divided;
    empty for none · reason: of the number of jobs, in words.
    """

    count: int
    cpus: int
    gpus: Sequence[str] = ()
    reason: str = ""

    @property
    def description(self) -> str:
        """For the user, one line."""
        why = f": {self.reason}" if self.reason else ""
        return f"{counted(self.count, 'job')} at a time, with {counted(self.cpus, 'CPU')} each{why}"

    def start(self, task: Task, run_dir: Path, beside: Sequence[Any]) -> JobProcess:
        """Start a job beside these. Raises ResourceError or OSError where memory or processes are too few."""
        start_early(_PRELOAD)
        taken = [job.gpu for job in beside]
        return JobProcess(task, run_dir, self.cpus, min(self.gpus, key=taken.count, default=None))

    def wait(self, jobs: Sequence[Any], timeout_s: float) -> None:
        """Wait until one of these jobs has sent something, or has ended."""
        wait([end for job in jobs for end in job.descriptors], timeout_s)

    def close(self) -> None:
        """Nothing: the scheduler closes the processes."""


def _run_job(reporter: Reporter, task: Task, run_dir: Path, cpus: int) -> int:
    """What the process runs. Returns the exit code."""
    machine.limit_cpus(cpus)
    return int(task(JobView(reporter), run_dir))
