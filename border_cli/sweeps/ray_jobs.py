"""Jobs of a sweep on a Ray cluster: `hydra/launcher=border_ray`.

Each job is an ordinary `JobProcess` on the node where Ray places its `JobHost`, a Ray actor that follows the process for
the sweep. All nodes see the folder of the sweep, on a file system that they share.
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
import socket
from collections.abc import Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

from border_cli.config.schema import option
from border_cli.core.errors import ExitCode
from border_cli.core.format import counted
from border_cli.core.progress import JobProgress
from border_cli.run.directory import SWEEP_FILE
from border_cli.runtime.machine import cpus
from border_cli.runtime.ray_cluster import Cluster, brief
from border_cli.sweeps.jobs import read_head
from border_cli.sweeps.local_jobs import JobEnd, JobProcess, Task

_POLL_S = 0.5
"""How long a host waits for a message of its job [s]. A signal may be delayed by this time."""


@dataclass(frozen=True)
class RaySettings:
    """The keys of `hydra.launcher`."""

    address: str = option("local", "the cluster: see `Cluster`")
    cpus_per_job: float = option(2.0, "reserved for each job, which uses them", unit="CPUs", gt=0)
    gpus_per_job: float = option(0.0, "reserved for each job", unit="GPUs", ge=0)
    resources: dict[str, float] | None = option(None, "reserved for each job beside these", ge=0)

    @property
    def need(self) -> dict[str, float]:
        every = {"CPU": self.cpus_per_job, "GPU": self.gpus_per_job} | (self.resources or {})
        return {name: amount for name, amount in every.items() if amount}

    @property
    def cpus(self) -> int:
        return max(1, math.ceil(self.need.get("CPU", 0)))


# -- on the node ---------------------------------------------------------------


@dataclass(frozen=True)
class JobStatus:
    """How far a job is. end: None while it runs."""

    latest: JobProgress | None
    end: JobEnd | None


@dataclass(repr=False)  # Ray shows an actor before it is made
class JobHost:
    """Runs one job on a node. A Ray actor, whose methods are called one after the other.

    cwd: of the command · folder, sweep_id: of the sweep.
    """

    task: Task
    run_dir: Path
    cpus: int
    cwd: Path
    folder: Path
    sweep_id: str
    process: JobProcess = field(init=False)

    def start(self) -> JobStatus:
        """Start the job, if this node sees the folder of the sweep."""
        if read_head(self.folder / SWEEP_FILE).get("sweep_id") != self.sweep_id:
            problem = f"error: node {socket.gethostname()} does not see {self.folder}"
            allowed = "allowed: a folder on a file system that all nodes share"
            return JobStatus(None, JobEnd(ExitCode.USAGE, f"{problem}\n{allowed}"))
        os.chdir(self.cwd)
        self.process = JobProcess(self.task, self.run_dir, self.cpus)
        return self.report()

    def report(self) -> JobStatus:
        """How far the job is. Waits a moment for something new."""
        wait(self.process.descriptors, _POLL_S)
        end = self.process.job_end
        self.process.update()
        if end is not None:
            self.process.end()
        return JobStatus(self.process.latest, end)

    def signal(self, number: int) -> None:
        self.process.signal(signal.Signals(number))


# -- in the sweep --------------------------------------------------------------


@dataclass
class RayJob:
    """A job on the cluster: what the scheduler needs of a `JobProcess`. host: a `JobHost` as a Ray actor."""

    ray: Any
    host: Any
    latest: JobProgress | None = None
    job_end: JobEnd | None = None

    def __post_init__(self) -> None:
        self._is_placed = False
        self.awaited: Any = self.host.start.remote()

    def update(self) -> None:
        """Take the answer of the host, if it has come, and call it again."""
        errors = self.ray.exceptions
        while self.job_end is None and self.ray.wait([self.awaited], timeout=0)[0]:
            try:
                status = self.ray.get(self.awaited)
            except errors.RayError as e:
                # The host has raised, or a node lacks a module that the job needs. Everything else is a loss.
                raised = isinstance(e, errors.RayTaskError) or getattr(e, "actor_init_failed", False)
                self.job_end = JobEnd(ExitCode.DEFECT, f"error: {brief(e)}", node_lost=not raised)
                return
            self._is_placed = True
            self.latest, self.job_end = status.latest, status.end
            if self.job_end is None:
                self.awaited = self.host.report.remote()

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the job. A job that still waits for its place does not begin after it was asked to stop."""
        if self._is_placed:
            self.host.signal.remote(int(number))
        elif number != signal.SIGUSR1:
            self.job_end = JobEnd(128 + int(number))

    def end(self) -> None:
        with contextlib.suppress(self.ray.exceptions.RayError):  # it may be gone, or its node
            self.ray.kill(self.host, no_restart=True)


class RayExecutor:
    """Places for jobs on a cluster. Raises UsageError where none is reachable.

    limit: jobs at a time at most; None: as many as the nodes have room for, which may come and go.
    """

    def __init__(self, settings: RaySettings, limit: int | None, folder: Path, sweep_id: str) -> None:
        self._settings = settings
        self._limit = limit
        self._sweep = folder, sweep_id
        self._cluster = Cluster("hydra.launcher.address", settings.address, max(cpus(), settings.cpus))
        self._ray: Any = self._cluster.ray
        options = self._cluster.options(settings.need)
        self._host_class = self._ray.remote(JobHost).options(max_restarts=0, **options)

    @property
    def count(self) -> int:
        return max(1, self._cluster.capacity(self._settings.need)) if self._limit is None else self._limit

    @property
    def description(self) -> str:
        need = " ".join(f"{name}={amount:g}" for name, amount in self._settings.need.items())
        nodes = counted(sum(bool(node["Alive"]) for node in self._ray.nodes()), "node")
        capacity = self._cluster.capacity(self._settings.need)
        if not capacity:
            return f"{nodes} on Ray, none of which has room for a job with {need}: jobs wait for one"
        return f"{counted(self.count, 'job')} at a time on Ray: {nodes} with room for {capacity}, each with {need}"

    def start(self, task: Task, run_dir: Path, beside: Sequence[Any]) -> RayJob:
        host = self._host_class.remote(task, run_dir, self._settings.cpus, Path.cwd(), *self._sweep)
        return RayJob(self._ray, host)

    def wait(self, jobs: Sequence[Any], timeout_s: float) -> None:
        self._ray.wait([job.awaited for job in jobs], num_returns=1, timeout=timeout_s)

    def close(self) -> None:
        self._cluster.close()
