"""The plan of a run: what it will do and take, as arithmetic over the configuration and a few measured numbers.

Nothing is measured and nothing refused here: `border_cli.room` compares with the machine, `border_cli.probe` measures
speeds, `border_cli.recorders.plan_table` prints.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

from border_cli.config.schema import TrainConfig

_MIB = 2**20
LEARNER_BYTES = 96 * _MIB
"""Allowed for what the learner takes beside replay, rings and agent, once torch is imported: kernels, records."""
ACTOR_BYTES = 24 * _MIB
"""Private memory of one actor beside its environments, torch included, which it shares with all others.

Measured: 14 MiB with CartPole.
"""
RECORD_BYTES = 4096
"""One record in metrics.jsonl and in tensorboard/ together, and its line in the log. Measured: 1.1 KiB."""
JSON_BYTES = 64 * 1024
"""The files of a checkpoint that are no arrays."""
LEARNER_DESCRIPTORS = 64
"""Measured: 14 in a run of one actor; environments of the evaluation, and files while a checkpoint is written."""
ACTOR_DESCRIPTORS = 4
"""What the learner holds of each actor: its pipe, the ends of its process. Measured."""
HELPER_TASKS = 8
"""Forkserver, resource tracker, the child that tries the environment, and threads that write."""
ACTOR_TASKS = 2
"""Threads of an actor: its loop, and one that watches the learner."""


@dataclass(frozen=True)
class AgentBytes:
    """Arrays of an agent: what acting needs (model), and all of its state (training)."""

    model: int
    training: int


@dataclass(frozen=True)
class Sizes:
    """Bytes of a run's parts: the replay once it is full, one actor's ring, the model channel, the agent."""

    replay: int
    ring: int
    channel: int
    agent: AgentBytes


@dataclass(frozen=True)
class CheckpointBytes:
    """One checkpoint: `fixed` without the replay, `replay` what a full one adds."""

    fixed: int
    replay: int


@dataclass(frozen=True)
class Counts:
    """What a run does, each None where only its end will tell.

    exact: no other budget and no score can end it before · limit: the budget that ends it.
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
    """Measured alone on this machine: env steps/s of one actor over all its environments, opt steps/s of the learner."""

    env_steps: float
    opt_steps: float


@dataclass(frozen=True)
class Duration:
    """seconds: estimated, without evaluations and checkpoints · bound_by: what it is limited by."""

    seconds: float
    bound_by: str


def is_async(config: TrainConfig) -> bool:
    """Whether actors have processes of their own."""
    return config.trainer.type == "async"


# -- bytes --------------------------------------------------------------


def checkpoint_bytes(sizes: Sizes) -> CheckpointBytes:
    """One checkpoint. A replay that is not full takes less than `replay` says."""
    return CheckpointBytes(sizes.agent.model + sizes.agent.training + JSON_BYTES, sizes.replay)


def memory_need(config: TrainConfig, sizes: Sizes) -> dict[str, int]:
    """Bytes of memory by what takes them. What the environments themselves take is not known and not in it."""
    need = {"replay": sizes.replay}
    # Gradients and a checkpoint on its way to the disk are copies of what the agent is made of.
    need["learner"] = LEARNER_BYTES + 3 * sizes.agent.training
    if is_async(config):
        need["rings"] = config.n_actors * sizes.ring
        need["model channel"] = sizes.channel
        need["actors"] = config.n_actors * (ACTOR_BYTES + 3 * sizes.agent.model)
    return need


def disk_need(config: TrainConfig, sizes: Sizes, with_replay: bool) -> dict[str, int]:
    """Bytes of disk by what takes them, at the worst moment: a new checkpoint is whole before the oldest goes.

    Checkpoints share what was sealed of the replay: twice its bytes are for what differs between the newest and the
    oldest of them.
    """
    one, written = checkpoint_bytes(sizes), counts(config).checkpoints
    kept = config.checkpoint.keep + 1 if written is None else min(config.checkpoint.keep + 1, written)
    need = {"checkpoints": kept * one.fixed}
    if with_replay:
        need["replay in them"] = min(kept, 2) * one.replay
    if config.trainer.eval_interval is not None:
        need["best model"] = 2 * (sizes.agent.model + JSON_BYTES)
    records = counts(config).records
    if records is not None and (config.recorder.jsonl or config.recorder.tensorboard):
        need["records"] = records * RECORD_BYTES
    return need


# -- processes ----------------------------------------------------------


def processes(config: TrainConfig) -> int:
    """All of a run while it trains, helpers left out."""
    actors = config.n_actors if is_async(config) else 0
    return 1 + actors + (config.evaluator.type == "process")


def compute_threads(config: TrainConfig) -> int:
    """Threads that compute: those of the learner and one per actor."""
    return config.threads + processes(config) - 1


def tasks_need(config: TrainConfig, cpus: int) -> int:
    """Processes and threads that a run may have at once. A numeric library starts one thread per CPU at import."""
    actors = ACTOR_TASKS * config.n_actors if is_async(config) else 0
    return config.threads + cpus + HELPER_TASKS + actors


def descriptors_need(config: TrainConfig) -> int:
    """File descriptors that the learner holds at most, environments of its own left out."""
    return LEARNER_DESCRIPTORS + (ACTOR_DESCRIPTORS * config.n_actors if is_async(config) else 0)


# -- counts -------------------------------------------------------------


def counts(config: TrainConfig) -> Counts:
    """What the budgets come to."""
    t = config.trainer
    env_steps, opt_steps, limit = _budgets(config)
    return Counts(
        env_steps,
        opt_steps,
        0 if t.eval_interval is None else _times(opt_steps, t.eval_interval),
        _times(opt_steps, t.save_interval),
        0 if t.record_interval is None else _times(opt_steps, t.record_interval),
        exact=t.opt_interval is not None and t.max_time is None and t.stop_return is None,
        limit=limit,
    )


def _budgets(config: TrainConfig) -> tuple[int | None, int | None, str]:
    """Env steps and opt steps at the end, as far as the budgets say, and which of them ends the run."""
    t = config.trainer
    if t.opt_interval is None:
        return t.max_env_steps, t.max_opts, _first_named(config)
    interval = Fraction(str(t.opt_interval))
    by_env_steps = (
        None if t.max_env_steps is None else max(0, (t.max_env_steps - t.warmup_period) // interval)
    )
    if t.max_opts is not None and (by_env_steps is None or t.max_opts < by_env_steps):
        return t.warmup_period + math.ceil(interval * t.max_opts), t.max_opts, "max_opts"
    if by_env_steps is not None:
        return t.max_env_steps, by_env_steps, "max_env_steps"
    return None, None, "max_time"


def _first_named(config: TrainConfig) -> str:
    t = config.trainer
    named = [name for name in ("max_opts", "max_env_steps", "max_time") if getattr(t, name) is not None]
    return " or ".join(named)


def _times(opt_steps: int | None, interval: int | None) -> int | None:
    """How often something is done at an interval, and once more at the end unless that falls together."""
    if opt_steps is None:
        return None
    return math.ceil(opt_steps / interval) if interval is not None else min(1, opt_steps)


# -- time ---------------------------------------------------------------


def duration(config: TrainConfig, speeds: Speeds, cpus: int) -> Duration:
    """Estimated time of training, by the slower side of the ratio; max_time where nothing else ends the run.

    Nobody computes for more CPUs than there are, which many actors on few CPUs would need.
    """
    estimate = _free_running(config, speeds, cpus) if config.trainer.opt_interval is None else None
    if config.trainer.opt_interval is not None:
        estimate = _by_ratio(config, speeds, cpus, config.trainer.opt_interval)
    limit = config.trainer.max_time
    if limit is not None and (estimate is None or limit < estimate.seconds):
        return Duration(limit, "max_time")
    if estimate is None:
        raise ValueError("a run without a budget")  # `config.checks` has refused it
    return estimate


def _by_ratio(config: TrainConfig, speeds: Speeds, cpus: int, interval: float) -> Duration | None:
    t, done = config.trainer, counts(config)
    if done.opt_steps is None:
        return None
    act_s, opt_s = interval / speeds.env_steps, 1 / speeds.opt_steps  # per opt step
    if not is_async(config):
        seconds = t.warmup_period / speeds.env_steps + done.opt_steps * (act_s + opt_s)
        return Duration(seconds, "acting" if act_s > opt_s else "learning")
    at_once = min(config.n_actors, cpus)
    sides = {
        "acting": act_s / config.n_actors,
        "learning": opt_s,
        "CPUs": (act_s + opt_s * min(config.threads, cpus)) / cpus,
    }
    bound_by = max(sides, key=lambda side: sides[side])
    warmup_s = t.warmup_period / (speeds.env_steps * at_once)
    return Duration(warmup_s + done.opt_steps * sides[bound_by], bound_by)


def _free_running(config: TrainConfig, speeds: Speeds, cpus: int) -> Duration | None:
    """Each side at its own speed, or at its share of the CPUs, until the first budget."""
    t = config.trainer
    share = min(1.0, cpus / (config.n_actors + config.threads))
    ends = []
    if t.max_env_steps is not None:
        ends.append(Duration(t.max_env_steps / (speeds.env_steps * config.n_actors * share), "acting"))
    if t.max_opts is not None:
        ends.append(Duration(t.max_opts / (speeds.opt_steps * share), "learning"))
    return min(ends, key=lambda end: end.seconds, default=None)


# -- all of it ----------------------------------------------------------


@dataclass(frozen=True)
class Plan:
    """What a person is shown. memory, disk: bytes by what takes them · free_…: on this machine, None if not known."""

    counts: Counts
    memory: dict[str, int]
    free_memory: int | None
    checkpoint: CheckpointBytes
    disk: dict[str, int]
    free_disk: int
    processes: int
    threads: int
    cpus: int
    speeds: Speeds
    duration: Duration
