"""One job's process: it trains one run, tells the sweep how far it is, and never outlives the sweep."""

from __future__ import annotations

import select
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any, Protocol

from border_cli.config import resources
from border_cli.core.errors import ExitCode, first_line
from border_cli.core.progress import JobProgress, Progress, View
from border_cli.display.advice import first_to_end
from border_cli.runtime.child import OUTPUT_FILE, Child
from border_cli.runtime.forkserver import PRELOAD, start_early
from border_cli.runtime.worker import Failed, Reporter, Returned, clipped

_PRELOAD = (
    *PRELOAD,
    "border_cli.cli.jobs",
    "border_cli.preflight",
    "border_cli.run",
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
        best = progress.best[1] if progress.best is not None else None
        self._reporter.send(
            JobProgress(
                phase=progress.phase,
                seconds=progress.seconds,
                fraction=None if budget is None else budget.fraction,
                eta_s=None if budget is None else budget.eta_s,
                last=last,
                last_at=last_at,
                best=best,
                opt_steps_per_sec=progress.opt_steps_per_sec,
            )
        )

    def note(self, message: str) -> None:
        """Nothing: train.log has it."""

    def close(self) -> None:
        """Nothing."""

    def fail(self, text: str) -> None:
        """Send what went wrong, as the command prints it."""
        lines = text.splitlines()
        # A traceback comes before the message, and may have such a line too.
        cause = next((line for line in reversed(lines) if "error: " in line), lines[0])
        self._reporter.send(JobError(clipped(text), cause.partition("error: ")[2] or cause))

    def send(self, result: object) -> None:
        """Send what the task has found out."""
        self._reporter.send(result)


class Task(Protocol):
    """What a job's process does. It is pickled."""

    def __call__(self, view: JobView) -> int:
        """Train or resume the run. Returns the exit code; `view.fail` is called with an error."""

    def moved(self, run_dir: Path) -> Task:
        """The same for this run directory."""


class JobProcess:
    """A process that runs a task. Raises ResourceError where it cannot be started.

    Args:
        run_dir: created if necessary; what the process prints is written there. None: it is dropped.
        cpus: CPUs that the run is to use.
        gpu: name of the only GPU that the run sees; None for all.
    """

    lost = ""  # a process on this machine always has an exit code

    def __init__(
        self, task: Callable[[JobView], int], run_dir: Path | None, cpus: int, gpu: str | None = None
    ) -> None:
        if run_dir is not None:
            run_dir.mkdir(parents=True, exist_ok=True)
        output = None if run_dir is None else run_dir / OUTPUT_FILE
        visible = {} if gpu is None else {"CUDA_VISIBLE_DEVICES": gpu}
        self._child = Child("job", _run_job, (task, cpus), output=output, trains=True, environment=visible)
        self.latest: JobProgress | None = None
        self.error = JobError("", "")
        self.result: Any = None
        self.closed = False

    def receive(self) -> None:
        """Take what the job has sent."""
        for message in self._child.receive(self._child.exited()):
            if isinstance(message, JobProgress):
                self.latest = message
            elif isinstance(message, JobError):
                self.error = message
            elif isinstance(message, Failed):
                self.error = JobError(message.traceback, message.error)
            elif not isinstance(message, Returned):
                self.result = message

    @property
    def descriptors(self) -> tuple[int, int]:
        """When one of these becomes readable, the job has sent something, or it has ended."""
        return self._child.descriptors

    @property
    def exit_code(self) -> int | None:
        """None while it runs; negative for a signal that killed it."""
        if not self._child.exited():
            return None
        if (refused := self._child.start_error) is not None:
            self.error = JobError(str(refused), first_line(refused))
            return int(ExitCode.RESOURCES)
        self.receive()
        outcome = self._child.outcome
        return outcome.value if isinstance(outcome, Returned) else self._child.exit_code

    def signal(self, number: signal.Signals) -> None:
        """Send a signal, if the process still runs."""
        self._child.signal(number)

    def close(self, grace_s: float = 0.0) -> None:
        """Kill the process unless it exits within grace_s [s], and release its resources."""
        self.closed = True
        self.receive()
        self._child.end(grace_s)


class LocalExecutor:
    """Runs jobs in processes on this machine. gpus: names of the GPUs among which they are divided."""

    def __init__(self, count: int, cpus: int, gpus: Sequence[str] = ()) -> None:
        self.count = count
        self._cpus = cpus
        self._gpus = gpus
        self._running: list[tuple[JobProcess, str | None]] = []
        start_early(_PRELOAD)

    def start(self, task: Task, run_dir: Path) -> JobProcess:
        """Start a process. Raises ResourceError or OSError where that fails."""
        self._running = [one for one in self._running if not one[0].closed]
        taken = [gpu for _, gpu in self._running]
        gpu = min(self._gpus, key=taken.count, default=None)
        process = JobProcess(task, run_dir, self._cpus, gpu)
        self._running.append((process, gpu))
        return process

    def wait(self, timeout_s: float) -> None:
        """Wait until a process has sent something, or has ended."""
        self._running = [one for one in self._running if not one[0].closed]
        wait([end for process, _ in self._running for end in process.descriptors], timeout_s)

    def close(self) -> None:
        """Nothing: the scheduler closes the processes."""


def _run_job(reporter: Reporter, task: Callable[[JobView], int], cpus: int) -> int:
    """What the process runs. Returns the exit code."""
    resources.limit_cpus(cpus)
    return int(task(JobView(reporter)))
