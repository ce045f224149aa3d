"""What a run takes of a machine, by arithmetic, and whether it fits: memory, disk, descriptors.

`border_cli.run.preflight` calls the checks.
"""

from __future__ import annotations

import math
import resource
from dataclasses import dataclass
from pathlib import Path

import psutil

from border_cli.config.resolve import counts, n_actors, threads, trackers
from border_cli.config.schema import TrainConfig
from border_cli.core.errors import ResourceError
from border_cli.core.format import size
from border_cli.runtime import machine

_MIB = 2**20
LEARNER_BYTES = 96 * _MIB
"""Allowed for what the learner takes beside replay, rings and agent, once torch is imported: kernels, records."""
ACTOR_BYTES = 24 * _MIB
"""Private memory of one actor beside its environments. Measured: 14 MiB with CartPole; torch is shared with all others."""
RECORDER_BYTES = 128 * _MIB
"""Memory of a recorder with its own process. Measured: 90 MiB with Weights & Biases, its service included."""
JSON_BYTES = 64 * 1024
"""The files of a checkpoint that are not arrays."""
LEARNER_DESCRIPTORS = 64
"""Measured: 14 in a run of one actor; the rest is for environments of the evaluation and for files of a checkpoint."""
ACTOR_DESCRIPTORS = 5
"""Descriptors of the learner for each other process: its pipe, the ends of its process, what wakes it. Measured."""
MEMORY_SHARE = 0.9
"""Of the free memory: the rest is for environments and for what others start meanwhile."""


@dataclass(frozen=True)
class Sizes:
    """Bytes of a full replay, one actor's ring, the model channel, the arrays of acting, and those of the agent's state."""

    replay: int
    ring: int
    channel: int
    model: int
    training: int

    @property
    def fixed(self) -> int:
        """One checkpoint without the replay."""
        return self.model + self.training + JSON_BYTES


# -- what a run takes -----------------------------------------------------


def actor_processes(config: TrainConfig) -> int:
    """Actors with their own process beside the learner: all, or none. Those on a cluster are Ray's to place."""
    return n_actors(config) if config.trainer.type == "async" and config.actor_manager.type != "ray" else 0


def cores_for_actors(config: TrainConfig) -> int | None:
    """CPUs that actors and learner share; None where the actors are on a cluster."""
    return None if config.actor_manager.type == "ray" else machine.cpus()


def memory_need(config: TrainConfig, sizes: Sizes) -> dict[str, int]:
    """Bytes of memory by what takes them; what the environments themselves take is unknown and not included."""
    need = {}
    if config.buffer.device != "cuda":
        need["replay"] = sizes.replay
        if sizes.replay <= psutil.virtual_memory().total and (env_steps := counts(config).env_steps):
            # The kernel gives memory for rows that are written: one per env step, and one per end of an episode.
            need["replay"] = min(sizes.replay, sizes.replay * 2 * env_steps // config.buffer.capacity)
    # Gradients, and a checkpoint on its way to the disk, are copies of the agent.
    need["learner"] = LEARNER_BYTES + 3 * sizes.training
    if actors := actor_processes(config):
        need["rings"] = actors * sizes.ring
        need["model channel"] = sizes.channel
        need["actors"] = actors * (ACTOR_BYTES + 4 * sizes.model)  # one of them transposed, for numpy
    if config.evaluator.type == "process":
        need["evaluator"] = ACTOR_BYTES + 6 * sizes.model  # as an actor, and the two slots of its channel
    if recorders := recorder_processes(config):
        need["recorders"] = recorders * RECORDER_BYTES
    return need


def disk_need(config: TrainConfig, sizes: Sizes, with_replay: bool) -> dict[str, int]:
    """Bytes of disk by what takes them, when a new checkpoint is complete and the oldest is not deleted yet.

    Checkpoints share the full blocks of the replay: twice its bytes are for what differs between newest and oldest.
    """
    written, kept = counts(config).checkpoints, config.checkpoint.keep + 1
    kept = kept if written is None else min(kept, written)
    need = {"checkpoints": kept * sizes.fixed}
    if with_replay:
        need["replay in them"] = min(kept, 2) * sizes.replay
    if config.trainer.eval_interval is not None:
        need["best model"] = 2 * (sizes.model + JSON_BYTES)
    return need


def recorder_processes(config: TrainConfig) -> int:
    """Recorders with their own process: experiment trackers, and one of the user's own."""
    return len(trackers(config.recorder)) + (config.recorder.type != "default")


def processes(config: TrainConfig) -> int:
    """All processes of a run while it trains, without helpers."""
    return 1 + actor_processes(config) + (config.evaluator.type == "process") + recorder_processes(config)


def compute_threads(config: TrainConfig) -> int:
    """Threads that compute: those of the learner, and one of each other process that does not only record."""
    return threads(config) + processes(config) - 1 - recorder_processes(config)


def descriptors_need(config: TrainConfig) -> int:
    """File descriptors that the learner holds at most, without those of its environments."""
    return LEARNER_DESCRIPTORS + ACTOR_DESCRIPTORS * (processes(config) - 1)


# -- whether it fits ------------------------------------------------------


def check_descriptors(config: TrainConfig) -> None:
    """Raise the soft limit as far as needed. Raises ResourceError where the hard limit is too low."""
    need = descriptors_need(config)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or need <= soft:
        return
    if hard == resource.RLIM_INFINITY or need <= hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (need, hard))
        return
    raise ResourceError(
        f"n_actors={n_actors(config)} needs {need} file descriptors, and this process may hold {hard}",
        allowed=f"a higher limit (`ulimit -n {need}`), or fewer actors",
    )


def check_memory(config: TrainConfig, sizes: Sizes) -> None:
    """Raise ResourceError where replay, rings, agent and processes do not fit into the free memory."""
    need, free = memory_need(config, sizes), machine.available_memory()
    left = math.floor(MEMORY_SHARE * free) - sum(need.values())
    if left >= 0:
        return
    replay = need.get("replay", 0)
    # Less than fits, and two digits of it, so that other programs may take a little memory before it is typed.
    share = (left + replay) / sizes.replay if replay else 0.0
    capacity = float(f"{0.9 * config.buffer.capacity * share:.2g}")
    fits = capacity >= max(config.agent.batch_size, config.trainer.warmup_period)
    raise ResourceError(
        f"this run needs {size(sum(need.values()))} of memory, and {size(free)} are free, of which it may take "
        f"{MEMORY_SHARE:.0%}\n{_listed(need)}",
        nearest=f"buffer.capacity={capacity:.0f}" if fits else None,
        allowed="" if fits else "a smaller n_actors, and then a smaller buffer.capacity",
    )


def check_disk(config: TrainConfig, sizes: Sizes, folder: Path) -> None:
    """Raise ResourceError where the checkpoints that are kept do not fit."""
    free, need = machine.free_disk(folder), disk_need(config, sizes, config.checkpoint.replay == "full")
    if sum(need.values()) > free:
        raise ResourceError(
            f"{folder}: this run needs {size(sum(need.values()))} of disk, and {size(free)} are free\n"
            f"{_listed(need)} (checkpoint.keep={config.checkpoint.keep} and the one being written)",
            allowed="free some space, a smaller checkpoint.keep, or another folder by hydra.run.dir=<folder>",
        )


def _listed(need: dict[str, int]) -> str:
    return ", ".join(f"{what} {size(nbytes)}" for what, nbytes in need.items())
