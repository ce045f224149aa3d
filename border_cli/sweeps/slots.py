"""How many jobs of a sweep run at once, and what each of them may use."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from border_cli.config import registry, resources, throughput
from border_cli.config.resolve import envs_per_actor, n_actors, threads
from border_cli.config.resources import MEMORY_SHARE
from border_cli.config.schema import TrainConfig
from border_cli.core.format import counted, number, size
from border_cli.core.spaces import EnvSpec
from border_cli.runtime import machine
from border_cli.runtime.signals import StopFlag
from border_cli.runtime.worker import Reporter
from border_cli.sweeps.job_process import LocalExecutor

IMPORT_BYTES = 640 << 20
"""Memory of one job beside what its plan lists: Python and torch, twice. Measured: 610 MiB, shared pages counted once."""

_WORTH = 0.15
"""The last job must find at least this share of the CPUs that it would use: less is not worth the memory."""


@dataclass(frozen=True)
class Need:
    """What one job takes that may use the smallest share of the CPUs that a slot can have.

    cpus: those that it would keep busy if no other job ran · memory: bytes · device: cuda alone is any GPU, cuda:1 a
    certain one.
    """

    cpus: float
    memory: int
    device: str


def measure_need(
    reporter: Reporter, config: TrainConfig, folder: Path, overrides: Collection[str], cpus: int
) -> Need:
    """What a run needs on so many CPUs, for a child that trains. Takes a few seconds. Raises what `preflight` raises."""
    from border_cli.run import factories
    from border_cli.run.preflight import preflight

    del reporter
    registry.import_installed_plugins()
    registry.import_plugins(config.plugins)
    machine.limit_cpus(cpus)
    with StopFlag() as stop:
        config, spec, _ = preflight(config, stop, folder, overrides)
        busy = float(threads(config))
        if config.trainer.type == "async":
            busy = _busy_cpus(config, spec, stop)
    memory = sum(resources.memory_need(config, factories.sizes(config, spec)).values()) + IMPORT_BYTES
    return Need(busy, memory, config.device)


def _busy_cpus(config: TrainConfig, spec: EnvSpec, stop: StopFlag) -> float:
    """CPUs that acting and learning keep busy together. Evaluations are not counted: between them nothing waits."""
    from border_cli.run import probes

    measured = probes.measure(config, spec, [envs_per_actor(config)], probes.AUTO_S, stop)
    return throughput.predict(config, measured, cpus=n_actors(config) + threads(config)).busy_cpus


def divide(need: Need, n_jobs: int) -> LocalExecutor:
    """As many jobs at once as keep the CPUs busy and fit into the memory; of jobs on a GPU, one per GPU."""
    cpus, free = machine.cpus(), machine.available_memory()
    limits = {
        f"a job keeps {number(need.cpus)} of {counted(cpus, 'CPU')} busy": math.ceil(
            cpus / need.cpus - _WORTH
        ),
        f"a job takes {size(need.memory)} of {size(free)} memory": math.floor(
            MEMORY_SHARE * free / need.memory
        ),
        f"there are {counted(n_jobs, 'job')}": n_jobs,
    }
    if need.device.startswith("cuda"):
        n_gpus = len(_gpus(need.device)) or 1
        limits[f"the jobs have {counted(n_gpus, 'GPU')}"] = n_gpus
    reason = min(limits, key=lambda words: limits[words])
    return executor(max(1, limits[reason]), need.device, reason)


def executor(count: int, device: str, reason: str = "") -> LocalExecutor:
    """So many slots, which share the CPUs and GPUs of this machine. reason: of their number, in words."""
    return LocalExecutor(count, max(1, machine.cpus() // count), _gpus(device), reason)


def _gpus(device: str) -> tuple[str, ...]:
    """Names of the GPUs among which jobs are divided."""
    return tuple(machine.gpus()) if device == "cuda" else ()
