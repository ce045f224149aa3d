"""Whether the machine has room for a run: memory, disk, file descriptors, processes. What is too little is refused."""

from __future__ import annotations

import errno
import math
import os
import tempfile
from pathlib import Path

from border_cli.config import plan
from border_cli.config.plan import Sizes
from border_cli.config.schema import TrainConfig
from border_cli.core.errors import ResourceError
from border_cli.recorders.figures import size
from border_cli.runs.directory import folder_error
from border_cli.runtime import resources

_MEMORY_SHARE = 0.9
"""Of what is free: the rest is for environments and for what others start meanwhile."""
_PROBE = os.urandom(4096)


def check_folder(folder: Path) -> None:
    """Write a file without a name where `folder` is, or will be, and read it back.

    Raises UsageError where that is not allowed, ResourceError where the disk is full.
    """
    place = resources.existing(folder)
    try:
        with tempfile.TemporaryFile(dir=place) as file:
            file.write(_PROBE)
            file.flush()
            os.fsync(file.fileno())
            file.seek(0)
            if file.read() != _PROBE:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
    except OSError as e:
        raise folder_error(e, folder) from e


def check_descriptors(config: TrainConfig) -> None:
    """Raise the soft limit as far as needed. Raises ResourceError where the hard limit is too low."""
    need = plan.descriptors_need(config)
    soft, hard = resources.descriptor_limits()
    if soft is None or need <= soft:
        return
    if hard is None or need <= hard:
        resources.raise_descriptor_limit(need)
        return
    fits = (hard - plan.LEARNER_DESCRIPTORS) // plan.ACTOR_DESCRIPTORS
    raise ResourceError(
        f"n_actors={config.n_actors} needs {need} file descriptors, and this process may hold {hard}\n"
        f"allowed: a higher limit (`ulimit -n {need}`){_or_fewer_actors(fits)}"
    )


def check_tasks(config: TrainConfig) -> None:
    """Raises ResourceError where fewer processes and threads may be started than a run has."""
    need, free = plan.tasks_need(config, resources.cpus()), resources.free_tasks()
    if free is None or need <= free:
        return
    fits = config.n_actors - math.ceil((need - free) / plan.ACTOR_TASKS)
    raise ResourceError(
        f"n_actors={config.n_actors} needs {need} processes and threads, and {free} more may be started\n"
        "allowed: a higher limit (`ulimit -u`, or pids.max of the control group)"
        f"{_or_fewer_actors(fits) if plan.is_async(config) else ''}"
    )


def check_memory(config: TrainConfig, sizes: Sizes) -> None:
    """Raises ResourceError where replay, rings, agent and processes do not fit into the memory that is free."""
    free = resources.available_memory()
    if free is None:
        return
    need, room = plan.memory_need(config, sizes), math.floor(_MEMORY_SHARE * free)
    if sum(need.values()) <= room:
        return
    taken = ", ".join(f"{what} {size(nbytes)}" for what, nbytes in need.items())
    raise ResourceError(
        f"this run needs {size(sum(need.values()))} of memory, and {size(free)} are free, of which it may take "
        f"{_MEMORY_SHARE:.0%}\n{taken}\nallowed: {_fitting(config, sizes, need, room)}"
    )


def settle_replay(config: TrainConfig, sizes: Sizes, folder: Path) -> None:
    """Whether checkpoints hold the replay, where that is left to us: if twice its bytes, and the rest, are free."""
    if config.checkpoint.replay == "auto":
        need = sum(plan.disk_need(config, sizes, with_replay=True).values())
        config.checkpoint.replay = "full" if need <= resources.free_disk(folder) else "none"


def check_disk(config: TrainConfig, sizes: Sizes, folder: Path) -> None:
    """Raises ResourceError where the checkpoints that are kept do not fit."""
    free = resources.free_disk(folder)
    need = plan.disk_need(config, sizes, config.checkpoint.replay == "full")
    if sum(need.values()) <= free:
        return
    taken = ", ".join(f"{what} {size(nbytes)}" for what, nbytes in need.items())
    raise ResourceError(
        f"{folder}: this run needs {size(sum(need.values()))} of disk, and {size(free)} are free\n{taken} "
        f"(checkpoint.keep={config.checkpoint.keep} and the one being written)\n"
        "allowed: free some space, a smaller checkpoint.keep, or another folder by hydra.run.dir=<folder>"
    )


def _fitting(config: TrainConfig, sizes: Sizes, need: dict[str, int], room: int) -> str:
    """What would fit: a smaller replay if the rest leaves room for one, else fewer or smaller actors."""
    capacity = config.buffer.capacity
    fits = math.floor(capacity * (room - sum(need.values()) + sizes.replay) / sizes.replay)
    if fits >= max(config.agent.batch_size, config.trainer.warmup_period):
        return f"buffer.capacity up to {fits}"
    return "a smaller n_actors or actor_manager.ring_rows, and then a smaller buffer.capacity"


def _or_fewer_actors(fits: int) -> str:
    return f", or n_actors up to {fits}" if fits >= 1 else ""
