"""What a run takes of a machine, by arithmetic, and what the machine has left: memory, disk, descriptors, processes.

`border_cli.preflight` calls the checks and measures speeds for the plan, `border_cli.display.tables` prints it.
"""

from __future__ import annotations

import errno
import itertools
import math
import os
import re
import resource
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path

import psutil

from border_cli.config.resolve import envs_per_actor, is_reproducible, n_actors, reopen, threads
from border_cli.config.schema import TrainConfig
from border_cli.config.validate import is_valid
from border_cli.core.errors import ResourceError
from border_cli.display.format import size

_MIB = 2**20
LEARNER_BYTES = 96 * _MIB
"""Allowed for what the learner takes beside replay, rings and agent, once torch is imported: kernels, records."""
ACTOR_BYTES = 24 * _MIB
"""Private memory of one actor beside its environments. Measured: 14 MiB with CartPole; torch is shared with all others."""
RECORD_BYTES = 4096
"""One record in metrics.jsonl and in tensorboard/ together, and its line in the log. Measured: 1.1 KiB."""
JSON_BYTES = 64 * 1024
"""The files of a checkpoint that are not arrays."""
LEARNER_DESCRIPTORS = 64
"""Measured: 14 in a run of one actor; the rest is for environments of the evaluation and for files of a checkpoint."""
ACTOR_DESCRIPTORS = 4
"""Descriptors of the learner for each actor: its pipe, the ends of its process. Measured."""
HELPER_TASKS = 8
"""Forkserver, resource tracker, the child that makes the environment once, and threads that write."""
ACTOR_TASKS = 2
"""Threads of an actor: its loop, and one that watches the learner."""
LOOP_S = 35e-6
"""The learner's time per opt step for collecting, granting credit and records [s], beside what is measured. Measured."""
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


@dataclass(frozen=True)
class Counts:
    """How often a run does something, each None where only its end will tell.

    limit: the budget that ends it · exact: whether no other budget and no score can end it before.
    """

    env_steps: int | None
    opt_steps: int | None
    evaluations: int | None
    checkpoints: int | None
    records: int | None
    exact: bool
    limit: str


@dataclass(frozen=True)
class Speeds:
    """Measured alone on this machine.

    env_steps: per second, of one actor over all its environments · opt_steps: per second, sampling included ·
    insert_s: the learner's time to take the rows of one env step from a ring into the replay [s] · publish_s: its time to
    publish a model [s].
    """

    env_steps: float
    opt_steps: float
    insert_s: float = 0.0
    publish_s: float = 0.0


@dataclass(frozen=True)
class Throughput:
    """Predicted speed of training, which part limits it, and the share of time that each side waits."""

    env_steps: float
    opt_steps: float
    bound_by: str
    actors_blocked: float
    learner_blocked: float


@dataclass(frozen=True)
class Duration:
    """Estimated seconds without evaluations and checkpoints, and which part limits them."""

    seconds: float
    bound_by: str


@dataclass(frozen=True)
class Measured:
    """Speeds by what `auto` may choose.

    acting: env steps/s of one actor, by its number of environments · learning: opt steps/s, by the number of threads ·
    insert_s, publish_s: see `Speeds` · compiling: whether the run will compile its opt steps, and these are eager.
    """

    acting: Mapping[int, float]
    learning: Mapping[int, float]
    insert_s: float = 0.0
    publish_s: float = 0.0
    compiling: bool = False

    def speeds(self, envs: int, threads: int) -> Speeds:
        """With this number of environments per actor, which need not have been measured, and threads, which must."""
        return Speeds(self._acting(envs), self.learning[threads], self.insert_s, self.publish_s)

    def _acting(self, envs: int) -> float:
        """The time of a step grows linearly with the environments: a fixed part is spent once, on the policy."""
        if envs in self.acting:
            return self.acting[envs]
        few, many = min(self.acting), max(self.acting)
        first_s, last_s = few / self.acting[few], many / self.acting[many]
        return envs / (first_s + (last_s - first_s) * (envs - few) / (many - few))


@dataclass(frozen=True)
class Decision:
    """What `auto` becomes, and why, in one line; the reason is empty where nothing was `auto`."""

    n_actors: int
    envs_per_actor: int
    threads: int
    reason: str = ""


@dataclass(frozen=True)
class Plan:
    """What `plan=true` shows. memory, disk: bytes by what takes them; checkpoint: `fixed` and `replay` of one."""

    counts: Counts
    memory: dict[str, int]
    free_memory: int | None
    checkpoint: Sizes
    disk: dict[str, int]
    free_disk: int
    processes: int
    threads: int
    cpus: int
    speeds: Speeds
    duration: Duration


@dataclass(frozen=True)
class Bench:
    """What border-bench shows.

    ceilings: what each part can do alone, by its name: a rate [1/s] and what it counts · predicted: for the given
    configuration · recommended: overrides that are predicted to train fastest, for the same ratio.
    """

    ceilings: Mapping[str, tuple[float, str]]
    predicted: Throughput
    recommended: Sequence[str]


@dataclass(frozen=True)
class RunSpeeds:
    """Env steps/s and opt steps/s of a run: the median of its records, and over all of its time; None where not known."""

    typical: tuple[float | None, float | None]
    whole: tuple[float | None, float | None]


# -- what a run takes -----------------------------------------------------


def actor_processes(config: TrainConfig) -> int:
    """Actors with their own process: all, or none."""
    return n_actors(config) if config.trainer.type == "async" else 0


def memory_need(config: TrainConfig, sizes: Sizes) -> dict[str, int]:
    """Bytes of memory by what takes them; what the environments themselves take is unknown and not included."""
    # gradients, and a checkpoint on its way to the disk, are copies of the agent
    need = {"replay": sizes.replay} if config.buffer.device != "cuda" else {}
    need["learner"] = LEARNER_BYTES + 3 * sizes.training
    if actors := actor_processes(config):
        need["rings"] = actors * sizes.ring
        need["model channel"] = sizes.channel
        need["actors"] = actors * (ACTOR_BYTES + 4 * sizes.model)  # one of them transposed, for numpy
    if config.evaluator.type == "process":
        need["evaluator"] = ACTOR_BYTES + 6 * sizes.model  # as an actor, and the two slots of its channel
    return need


def disk_need(config: TrainConfig, sizes: Sizes, with_replay: bool) -> dict[str, int]:
    """Bytes of disk by what takes them, when a new checkpoint is complete and the oldest is not deleted yet.

    Checkpoints share the full blocks of the replay: twice its bytes are for what differs between newest and oldest.
    """
    done = counts(config)
    kept = min(config.checkpoint.keep + 1, math.inf if done.checkpoints is None else done.checkpoints)
    need = {"checkpoints": int(kept) * sizes.fixed}
    if with_replay:
        need["replay in them"] = min(int(kept), 2) * sizes.replay
    if config.trainer.eval_interval is not None:
        need["best model"] = 2 * (sizes.model + JSON_BYTES)
    if done.records is not None and (config.recorder.jsonl or config.recorder.tensorboard):
        need["records"] = done.records * RECORD_BYTES
    return need


def processes(config: TrainConfig) -> int:
    """All processes of a run while it trains, without helpers."""
    return 1 + actor_processes(config) + (config.evaluator.type == "process")


def compute_threads(config: TrainConfig) -> int:
    """Threads that compute: those of the learner and one of each other process."""
    return threads(config) + processes(config) - 1


def tasks_need(config: TrainConfig, cpus: int) -> int:
    """Processes and threads that a run may have at once. A numeric library starts one thread per CPU at import."""
    return threads(config) + cpus + HELPER_TASKS + ACTOR_TASKS * actor_processes(config)


def descriptors_need(config: TrainConfig) -> int:
    """File descriptors that the learner holds at most, without those of its environments."""
    return LEARNER_DESCRIPTORS + ACTOR_DESCRIPTORS * actor_processes(config)


# -- what a run does ------------------------------------------------------


def counts(config: TrainConfig) -> Counts:
    """What the budgets allow."""
    t = config.trainer
    env_steps, opt_steps, limit = t.max_env_steps, t.max_opts, "max_time"
    if t.opt_interval is None:
        given = [name for name in ("max_opts", "max_env_steps", "max_time") if getattr(t, name) is not None]
        limit = " or ".join(given)
    else:
        # The decimal number that was typed: 0.1 has no exact binary form.
        interval = Fraction(str(t.opt_interval))
        by_env_steps = math.inf if env_steps is None else max(0, (env_steps - t.warmup_period) // interval)
        if opt_steps is not None and opt_steps < by_env_steps:
            env_steps, limit = t.warmup_period + math.ceil(interval * opt_steps), "max_opts"
        elif env_steps is not None:
            opt_steps, limit = int(by_env_steps), "max_env_steps"

    def times(interval: int | None) -> int | None:
        """How often something is done at an interval and at the end, unless both coincide."""
        if interval is None:
            return 0
        return None if opt_steps is None else math.ceil(opt_steps / interval)

    at_end = None if opt_steps is None else min(1, opt_steps)
    return Counts(
        env_steps,
        opt_steps,
        evaluations=times(t.eval_interval),
        checkpoints=at_end if t.save_interval is None else times(t.save_interval),
        records=times(t.record_interval),
        exact=t.opt_interval is not None and t.max_time is None and t.stop_return is None,
        limit=limit,
    )


def throughput(config: TrainConfig, speeds: Speeds, cpus: int) -> Throughput:
    """Predicted speed of training: that of the slower side of the ratio, or what the CPUs allow."""
    t, n, own = config.trainer, n_actors(config), threads(config)
    act_s, opt_s = 1 / speeds.env_steps, 1 / speeds.opt_steps + LOOP_S
    if actor_processes(config) and t.sync_interval is not None:
        opt_s += speeds.publish_s / t.sync_interval
    if t.opt_interval is None:  # each side at its own speed, or at its share of the CPUs
        share = min(1.0, cpus / (n + own))
        env_steps = n * share * speeds.env_steps
        opt_steps = max(share / 100, share - env_steps * speeds.insert_s) / opt_s  # never 0
        return Throughput(env_steps, opt_steps, "CPUs" if share < 1 else "learning", 0.0, 0.0)
    acting_s = t.opt_interval * act_s  # per opt step, by one actor
    opt_s += t.opt_interval * speeds.insert_s
    sides = {"acting": acting_s / n, "learning": opt_s}
    slower_s = max(sides.values())
    waits = {side: 1 - each_s / slower_s for side, each_s in sides.items()}
    if actor_processes(config):
        sides["CPUs"] = (acting_s + opt_s * min(own, cpus)) / cpus
    bound_by = max(sides, key=lambda side: sides[side])
    each_s = sides[bound_by] if actor_processes(config) else acting_s + opt_s
    return Throughput(t.opt_interval / each_s, 1 / each_s, bound_by, waits["acting"], waits["learning"])


def duration(config: TrainConfig, speeds: Speeds, cpus: int) -> Duration:
    """Estimated time of training at the predicted speed; never more than max_time."""
    t, rates = config.trainer, throughput(config, speeds, cpus)
    ends = [] if t.max_time is None else [Duration(t.max_time, "max_time")]
    opt_steps = counts(config).opt_steps
    if t.opt_interval is None:
        if t.max_env_steps is not None:
            ends.append(Duration(t.max_env_steps / rates.env_steps, "acting"))
        if t.max_opts is not None:
            ends.append(Duration(t.max_opts / rates.opt_steps, "learning"))
    elif opt_steps is not None:
        warmup_s = t.warmup_period / (speeds.env_steps * min(n_actors(config), cpus))
        ends.append(Duration(warmup_s + opt_steps / rates.opt_steps, rates.bound_by))
    return min(ends, key=lambda end: end.seconds)


# -- what `auto` becomes --------------------------------------------------

ENVS = (1, 2, 4, 8, 16)
"""What `envs_per_actor=auto` may choose. The first and the last are measured."""
ACTORS_AHEAD = 1.1
"""Actors are never equally fast: as in the advice of the live view, they are to carry this much more than the mean."""
CLEARLY_FASTER = 1.15
"""More threads must make the run at least this much faster: they also cost the other processes of the machine."""
SMALL_OPT_STEP = 2_000_000
"""Weights of the policy's network times rows of a batch: below this, a second thread costs about what it saves."""
COMPILED = 2.0
"""Opt steps that the run will compile count as this much faster: measured are 1.3 to 5.9 times."""
_SAME = 0.98
"""More actors or environments must predict a faster run than this share of the fastest."""


def most_actors(config: TrainConfig, cpus: int) -> int:
    """The largest number of actors that `auto` may choose; the given number where it is not `auto`."""
    is_fixed = config.n_actors is not None or is_reproducible(config)
    return n_actors(config) if is_fixed else max(n_actors(config), cpus - 1)


def env_counts(config: TrainConfig) -> tuple[int, ...]:
    """Numbers of environments per actor with which acting is to be measured; empty where it decides nothing."""
    if is_reproducible(config):
        return ()
    if config.actor_manager.envs_per_actor is None:
        return ENVS[0], ENVS[-1]
    return () if config.n_actors is not None else (envs_per_actor(config),)


def thread_counts(config: TrainConfig, work: float, cpus: int) -> tuple[tuple[int, ...], str]:
    """Numbers of threads among which a measurement is to decide, and if there is only one, why, where it was left open.

    work: weights of the policy's network times rows of a batch.
    """
    if config.threads is not None:
        return (config.threads,), ""
    if is_reproducible(config):
        return (1,), "a reproducible run decides nothing by a measurement"
    if config.device != "cpu":
        return (1,), f"opt steps run on {config.device}"
    if cpus == 1:
        return (1,), "there is one CPU"
    if work < SMALL_OPT_STEP:
        return (1,), "its opt steps are too small to be shared among threads"
    return up_to(cpus), ""


def up_to(cpus: int) -> tuple[int, ...]:
    """Numbers of threads worth a measurement: 1, 2, 4, … and one per CPU."""
    return (*(2**i for i in range(cpus.bit_length()) if 2**i < cpus), cpus)


def decide(
    config: TrainConfig,
    measured: Measured | None,
    cpus: int,
    why_one_thread: str = "",
) -> Decision:
    """Choose the numbers that are `auto`.

    The fewest actors, with the fewest environments, such that the learner does not wait for them, or else the fastest that
    the CPUs allow: one stays with the learner. Then the fewest threads that no larger number makes clearly faster.

    Args:
        measured: None where no measurement may or need decide: then the smallest numbers are chosen.
        why_one_thread: as `thread_counts` has it.
    """
    chosen, rate = Decision(n_actors(config), envs_per_actor(config), threads(config)), 0.0
    if measured is None:
        return replace(chosen, reason=_reason(config, chosen, None, why_one_thread))
    actors = range(chosen.n_actors, most_actors(config, cpus) + 1)
    envs = ENVS if config.actor_manager.envs_per_actor is None else (chosen.envs_per_actor,)
    for n_threads in sorted(measured.learning):
        found: dict[Decision, float] = {}
        for n, k in itertools.product(actors, envs):
            one = Decision(n, k, n_threads)
            if is_valid(tried := with_numbers(config, one)):
                speeds = measured.speeds(k, n_threads)
                ahead = replace(
                    speeds,
                    env_steps=speeds.env_steps / ACTORS_AHEAD,
                    opt_steps=speeds.opt_steps * (COMPILED if measured.compiling else 1),
                )
                found[one] = throughput(tried, ahead, cpus).opt_steps
        fastest = max(found.values(), default=0.0)
        if fastest > CLEARLY_FASTER * rate:
            chosen = next(one for one, each in found.items() if each >= _SAME * fastest)
            rate = found[chosen]
    return replace(chosen, reason=_reason(config, chosen, measured, why_one_thread))


def _reason(config: TrainConfig, chosen: Decision, measured: Measured | None, why_one_thread: str) -> str:
    """What was chosen, and why, in one line; empty where nothing was `auto`."""
    parts = []
    n, k, t = chosen.n_actors, chosen.envs_per_actor, chosen.threads
    if config.n_actors is None or config.actor_manager.envs_per_actor is None:
        numbers = f"n_actors={n} envs_per_actor={k}"
        if measured is None:
            parts.append(f"{numbers}: a reproducible run decides nothing by a measurement")
        else:
            speeds = measured.speeds(k, t)
            opt_steps = speeds.opt_steps * (COMPILED if measured.compiling else 1)
            parts.append(
                f"{numbers}: they can take {n * speeds.env_steps:,.0f} env steps/s, and the learner's {opt_steps:,.0f} "
                f"{'compiled ' if measured.compiling else ''}opt steps/s need "
                f"{(config.trainer.opt_interval or 0) * opt_steps:,.0f}"
            )
    if config.threads is None:
        why = why_one_thread
        if not why and measured is not None:
            rates = (f"{rate:,.0f} with {count}" for count, rate in sorted(measured.learning.items()))
            why = f"opt steps/s alone are {', '.join(rates)}"
        parts.append(f"threads={t}: {why}")
    return "; ".join(parts)


def open_numbers(config: TrainConfig, opt_interval: float) -> TrainConfig:
    """The configuration with `auto` for actors, environments and threads, and with this ratio.

    What follows from these numbers, such as the tolerance, is open again. Lockstep, which would fix them, is off.
    """
    config = reopen(config)
    return replace(
        config,
        n_actors=None,
        threads=None,
        actor_manager=replace(config.actor_manager, envs_per_actor=None),
        trainer=replace(config.trainer, opt_interval=opt_interval, lockstep=False),
    )


def with_numbers(config: TrainConfig, decision: Decision) -> TrainConfig:
    """The configuration with these numbers of actors, environments and threads."""
    return replace(
        config,
        n_actors=decision.n_actors,
        threads=decision.threads,
        actor_manager=replace(config.actor_manager, envs_per_actor=decision.envs_per_actor),
    )


# -- what the machine has left --------------------------------------------

ROOT = Path("/")


def available_memory(root: Path = ROOT) -> int:
    """Bytes that may still be allocated, limits of control groups included. root: where these are mounted."""
    left = [int(psutil.virtual_memory().available)]
    for group in _cgroups("memory", root):
        for limit, used, cache in (
            ("memory.max", "memory.current", "inactive_file"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
        ):
            most, now = _number(group / limit), _number(group / used)
            if most is not None and now is not None:
                # pages of files that were read count as used, and the kernel gives them back
                cached = re.search(rf"^{cache} (\d+)", _text(group / "memory.stat"), re.MULTILINE)
                left.append(max(0, most - max(0, now - (int(cached[1]) if cached else 0))))
    return min(left)


def free_tasks(root: Path = ROOT) -> int | None:
    """Processes and threads that may still be started; None where nothing limits them."""
    left = []
    limit, user = resource.getrlimit(resource.RLIMIT_NPROC)[0], os.getuid()
    if limit != resource.RLIM_INFINITY and user != 0:
        every = psutil.process_iter(["uids", "num_threads"])
        own = (p.info["num_threads"] or 0 for p in every if p.info["uids"] and p.info["uids"].real == user)
        left.append(limit - sum(own))
    for group in _cgroups("pids", root):
        most, now = _number(group / "pids.max"), _number(group / "pids.current")
        if most is not None and now is not None:
            left.append(most - now)
    return max(0, min(left)) if left else None


def _cgroups(controller: str, root: Path) -> Iterator[Path]:
    """Folders of the control groups around this process, of version 1 or 2; each may set a limit."""
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "" or controller in controllers.split(","):
            # a container may see its own group as the root of the mount, though it is named by its path outside
            inner = Path(path.lstrip("/"))
            yield from (root / "sys/fs/cgroup" / controllers / part for part in (inner, *inner.parents))


def _number(path: Path) -> int | None:
    """The number in a file; None for "max", and where there is no such file."""
    words = _text(path).split()
    return int(words[0]) if words and words[0].isdigit() else None


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def cpus() -> int:
    """CPUs that this process may use, at least 1."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def has_bfloat16(root: Path = ROOT) -> bool:
    """Whether the CPU has instructions for products of bfloat16 numbers; False where the system does not list them."""
    flags = re.findall(r"^(?:flags|Features)\s*:(.*)$", _text(root / "proc/cpuinfo"), re.MULTILINE)
    return not {"avx512_bf16", "amx_bf16", "bf16"}.isdisjoint(flags[0].split() if flags else ())


def existing(path: Path) -> Path:
    """The path itself, or the nearest parent that exists."""
    path = path.absolute()
    return next(one for one in (path, *path.parents) if one.exists())


def free_disk(folder: Path) -> int:
    """Bytes that may still be written to `folder`, which need not exist yet. Raises OSError."""
    return int(psutil.disk_usage(str(existing(folder))).free)


# -- whether it fits ------------------------------------------------------

descriptor_limit_before: int | None = None
"""The soft limit that this process was started with, if `check_descriptors` has raised it."""


def descriptor_limit() -> int:
    """File descriptors that this process may hold now."""
    return int(resource.getrlimit(resource.RLIMIT_NOFILE)[0])


def check_descriptors(config: TrainConfig) -> None:
    """Raise the soft limit as far as needed. Raises ResourceError where the hard limit is too low."""
    global descriptor_limit_before
    need = descriptors_need(config)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or need <= soft:
        return
    if hard == resource.RLIM_INFINITY or need <= hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (need, hard))
        descriptor_limit_before = descriptor_limit_before or soft
        return
    raise ResourceError(
        f"n_actors={n_actors(config)} needs {need} file descriptors, and this process may hold {hard}\n"
        f"allowed: a higher limit (`ulimit -n {need}`)"
        f"{_or_fewer_actors((hard - LEARNER_DESCRIPTORS) // ACTOR_DESCRIPTORS)}"
    )


def check_tasks(config: TrainConfig) -> None:
    """Raise ResourceError where fewer processes and threads may be started than a run has."""
    need, free = tasks_need(config, cpus()), free_tasks()
    if free is None or need <= free:
        return
    fits = actor_processes(config) - math.ceil((need - free) / ACTOR_TASKS)
    raise ResourceError(
        f"n_actors={n_actors(config)} needs {need} processes and threads, and {free} more may be started\n"
        f"allowed: a higher limit (`ulimit -u`, or pids.max of the control group){_or_fewer_actors(fits)}"
    )


def _or_fewer_actors(fits: int) -> str:
    return f", or n_actors up to {fits}" if fits >= 1 else ""


def check_memory(config: TrainConfig, sizes: Sizes) -> None:
    """Raise ResourceError where replay, rings, agent and processes do not fit into the free memory."""
    need, free = memory_need(config, sizes), available_memory()
    left = math.floor(MEMORY_SHARE * free) - sum(need.values())
    if left >= 0:
        return
    replay = need.get("replay", 0)
    capacity = math.floor(config.buffer.capacity * (left + replay) / replay) if replay else 0
    if capacity >= max(config.agent.batch_size, config.trainer.warmup_period):
        fitting = f"buffer.capacity up to {capacity}"
    else:
        fitting = "a smaller n_actors or actor_manager.ring_rows, and then a smaller buffer.capacity"
    raise ResourceError(
        f"this run needs {size(sum(need.values()))} of memory, and {size(free)} are free, of which it may take "
        f"{MEMORY_SHARE:.0%}\n{_listed(need)}\nallowed: {fitting}"
    )


def check_disk(config: TrainConfig, sizes: Sizes, folder: Path) -> None:
    """Raise ResourceError where the checkpoints that are kept do not fit."""
    free, need = free_disk(folder), disk_need(config, sizes, config.checkpoint.replay == "full")
    if sum(need.values()) > free:
        raise ResourceError(
            f"{folder}: this run needs {size(sum(need.values()))} of disk, and {size(free)} are free\n"
            f"{_listed(need)} (checkpoint.keep={config.checkpoint.keep} and the one being written)\n"
            "allowed: free some space, a smaller checkpoint.keep, or another folder by hydra.run.dir=<folder>"
        )


def check_folder(folder: Path) -> None:
    """Write a file without a name where `folder` is, or will be, and read it back. Raises OSError."""
    probe = os.urandom(4096)
    with tempfile.TemporaryFile(dir=existing(folder)) as file:
        file.write(probe)
        file.flush()
        os.fsync(file.fileno())
        file.seek(0)
        if file.read() != probe:
            raise OSError(errno.EIO, os.strerror(errno.EIO))


def _listed(need: dict[str, int]) -> str:
    return ", ".join(f"{what} {size(nbytes)}" for what, nbytes in need.items())
