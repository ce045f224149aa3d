"""The slots of a sweep on this machine: processes that each train one run, and how many of them run at a time."""

from __future__ import annotations

import math
import select
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any, cast

from border_cli.config import registry, resource_checks, throughput
from border_cli.config.resolve import envs_per_actor, n_actors, threads
from border_cli.config.resource_checks import MEMORY_SHARE
from border_cli.config.schema import TrainConfig
from border_cli.core.errors import ExitCode
from border_cli.core.format import counted, number, size
from border_cli.core.progress import JobProgress, Progress, View
from border_cli.display.views import first_to_end
from border_cli.runtime import machine
from border_cli.runtime.child import OUTPUT_FILE, Child, output_to
from border_cli.runtime.forkserver import PRELOAD, start_early
from border_cli.runtime.stopping import StopFlag
from border_cli.runtime.worker import Failed, Reporter, Returned

_PRELOAD = (
    *(*PRELOAD, "border_cli.cli.start", "border_cli.run.preflight", "border_cli.run.run"),
    "tensorboard.compat.proto.event_pb2",
)
"""Imported once for all jobs of a sweep."""
_SENT_S = 0.25
"""Least time between two messages about the progress [s]."""
IMPORT_BYTES = 640 << 20
"""Memory of one job beside what its plan lists: Python and torch, twice. Measured: 610 MiB, shared pages counted once."""
_WORTH = 0.15
"""The last slot must have at least this share of the CPUs that a job would use: less is not worth the memory."""


# -- a job ---------------------------------------------------------------------


@dataclass(frozen=True)
class JobEnd:
    """How a job's process ended.

    code: negative for a signal that killed it · error: what it printed, empty if it did not fail · node_lost: it ended with
    the machine that it ran on.
    """

    code: int
    error: str = ""
    node_lost: bool = False

    @property
    def cause(self) -> str:
        """One line of the error."""
        lines = self.error.splitlines() or [""]
        # A traceback comes before the message, and may have such a line too.
        line = next((line for line in reversed(lines) if line.startswith("error: ")), lines[0])
        return line.removeprefix("error: ")


class JobView(View):
    """The `View` of a run in a job's process: it sends the progress to the sweep."""

    def __init__(self, reporter: Reporter) -> None:
        self._reporter = reporter
        self._due = 0.0

    def show(self, progress: Progress) -> None:
        """Send the progress, unless the last message was just sent or the sweep does not read."""
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
            )
        )


Task = Callable[[JobView, Path], JobEnd]
"""Trains or resumes the run in a directory. It is pickled."""


class JobProcess(Child):
    """A process that runs a task. Raises ResourceError or OSError where it cannot be started.

    run_dir: created if necessary; what the process prints is written there · cpus: that the run is to use · gpu: name of
    the only GPU that the run sees; None for all · latest: its progress, None at first.
    """

    def __init__(self, task: Task, run_dir: Path, cpus: int, gpu: str | None = None) -> None:
        run_dir.mkdir(parents=True, exist_ok=True)
        self.gpu = gpu
        self.latest: JobProgress | None = None
        self._output = run_dir / OUTPUT_FILE
        visible = {} if gpu is None else {"CUDA_VISIBLE_DEVICES": gpu}
        args = task, run_dir, cpus
        with output_to(self._output):
            super().__init__("job", _run_job, args, trains=True, environment=visible)

    def update(self) -> None:
        for message in self.receive():
            if isinstance(message, JobProgress):
                self.latest = message

    @property
    def job_end(self) -> JobEnd | None:
        """How it ended; None while it runs."""
        code = self.exit_code
        if code is None:
            return None
        if self.start_error is not None:
            return JobEnd(ExitCode.RESOURCES, f"error: {self.start_error}")
        self.update()
        if isinstance(self.outcome, Returned):
            return cast(JobEnd, self.outcome.value)
        if isinstance(self.outcome, Failed):
            return JobEnd(ExitCode.DEFECT, f"{self.outcome.traceback}\nerror: {self.outcome.error}")
        printed = f"{self._output} has what it printed"
        return JobEnd(code, f"error: the job's process {self.exit_reason}\n{printed}")


def _run_job(reporter: Reporter, task: Task, run_dir: Path, cpus: int) -> JobEnd:
    machine.limit_cpus(cpus)
    return task(JobView(reporter), run_dir)


# -- the slots -----------------------------------------------------------------


@dataclass
class LocalExecutor:
    """Runs jobs in processes on this machine, which share its CPUs and GPUs.

    count: jobs at a time · device: of the jobs; cuda is any GPU, cuda:1 a certain GPU · reason: why this count, in
    words.
    """

    count: int
    device: str = "cpu"
    reason: str = ""

    @property
    def cpus(self) -> int:
        return max(1, machine.cpus() // self.count)

    @property
    def description(self) -> str:
        why = f": {self.reason}" if self.reason else ""
        return f"{counted(self.count, 'job')} at a time, with {counted(self.cpus, 'CPU')} each{why}"

    def start(self, task: Task, run_dir: Path, beside: Sequence[Any]) -> JobProcess:
        """Start a job beside these. Raises ResourceError or OSError where memory or processes are too few."""
        start_early(_PRELOAD)
        taken, gpus = [job.gpu for job in beside], machine.gpus() if self.device == "cuda" else []
        return JobProcess(task, run_dir, self.cpus, min(gpus, key=taken.count, default=None))

    def wait(self, jobs: Sequence[Any], timeout_s: float) -> None:
        """Wait until one of these jobs has sent something, or has ended."""
        wait([end for job in jobs for end in job.descriptors], timeout_s)

    def close(self) -> None:
        """Nothing: the scheduler closes the processes."""


@dataclass(frozen=True)
class Need:
    """What one job takes: CPUs that it would keep busy if no other job ran, and bytes of memory."""

    cpus: float
    memory: int


def measure_need(config: TrainConfig, folder: Path, overrides: Collection[str], cpus: int) -> Need:
    """What a run needs on this number of CPUs, without evaluations. Called in a child; takes a few seconds.

    Raises what `preflight` raises.
    """
    from border_cli.run import factories, probes
    from border_cli.run.preflight import preflight

    registry.import_installed_plugins()
    registry.import_plugins(config.plugins)
    machine.limit_cpus(cpus)
    with StopFlag() as stop:
        config, spec, _ = preflight(config, stop, folder, overrides)
        busy = float(threads(config))
        if config.trainer.type == "async":
            measured = probes.measure(config, spec, [envs_per_actor(config)], probes.AUTO_S, stop)
            alone = n_actors(config) + threads(config)
            busy = throughput.predict(config, measured, cpus=alone).busy_cpus
    memory = sum(resource_checks.memory_need(config, factories.sizes(config, spec)).values()) + IMPORT_BYTES
    return Need(busy, memory)


def divide(need: Need, device: str, n_jobs: int) -> LocalExecutor:
    """As many jobs at once as keep the CPUs busy and fit into the memory; of jobs on a GPU, one per GPU."""
    cpus, free = machine.cpus(), machine.available_memory()
    by_cpus, by_memory = cpus / need.cpus - _WORTH, MEMORY_SHARE * free / need.memory
    limits = {
        f"a job keeps {number(need.cpus)} of {counted(cpus, 'CPU')} busy": math.ceil(by_cpus),
        f"a job takes {size(need.memory)} of {size(free)} memory": math.floor(by_memory),
        f"there are {counted(n_jobs, 'job')}": n_jobs,
    }
    if device.startswith("cuda"):
        n_gpus = len(machine.gpus()) or 1 if device == "cuda" else 1
        limits[f"the jobs have {counted(n_gpus, 'GPU')}"] = n_gpus
    reason = min(limits, key=lambda words: limits[words])
    return LocalExecutor(max(1, limits[reason]), device, reason)
