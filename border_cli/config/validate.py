"""Checks of several values together: each value is allowed, but the combination makes no sense or would never end.

The error of a check names every value that it used, so that the user can change one of them.
"""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Collection, Iterator
from fnmatch import fnmatchcase

from border_cli.config import presets, resolve
from border_cli.config.convert import as_typed, dotted, to_plain
from border_cli.config.schema import EnvConfig, TrainConfig
from border_cli.core.errors import UsageError
from border_cli.core.types import SequenceShape


def validate(config: TrainConfig) -> None:
    """Run every cross-check. Raises UsageError for the first one that fails."""
    config.agent.validate()
    for check in (_simulator, _environment, _actors, _device_and_replay, _trainer):
        check(config)


def _refuse(fails: bool, problem: str, allowed: str, nearest: str | None = None) -> None:
    if fails:
        raise UsageError(problem, allowed=allowed, nearest=nearest)


def is_valid(config: TrainConfig) -> bool:
    """Whether every cross-check passes."""
    with contextlib.suppress(UsageError):
        validate(config)
        return True
    return False


def check_effect(config: TrainConfig, overrides: Collection[str]) -> None:
    """Refuse typed keys that would change nothing in this configuration. overrides: the keys that were typed."""
    typed = set(overrides)
    if resolve.may_evaluate_beside(config):  # its process has these limits of actors
        typed -= {"actor_manager.heartbeat_timeout_s", "actor_manager.restarts"}
    for key, reason, allowed in (*unused(config), *_unused_typed(config, typed)):
        if key in typed or any(word.startswith(f"{key}.") for word in typed):
            raise UsageError(f"{key} has no effect {reason}", allowed=f"{key} {allowed}")


def unused(config: TrainConfig) -> Iterator[tuple[str, str, str]]:
    """The keys without effect by the tables `only_with`, each with the reason, and what would give it an effect."""
    values = dotted(to_plain(config))
    for group, section in {"": config, **vars(config)}.items():
        for condition, names in getattr(section, "only_with", {}).items():
            key, wanted = re.split("!?=", condition, maxsplit=1)
            value = as_typed(values[key])
            if (value in wanted.split("|")) == ("!=" in condition):
                key = key.removesuffix(".type")
                others = wanted.replace("|", " or ")
                allowed = f"with {key} other than {others}" if "!=" in condition else f"with {key}={others}"
                for name in names.split():
                    yield f"{group}.{name}".lstrip("."), f"with {key}={value}", allowed


def _unused_typed(config: TrainConfig, typed: Collection[str]) -> Iterator[tuple[str, str, str]]:
    """The keys without effect by rules that no table of keys can state, as `unused` has them."""
    t, evaluator, recorder = config.trainer, config.evaluator, config.recorder
    # The start timeout also limits the making of the environment before the run.
    of_any_actor = ("actor_manager.envs_per_actor", "actor_manager.start_timeout_s")
    of_films = ("evaluator.video_interval", "evaluator.max_episode_steps") if evaluator.video_interval else ()
    for key in typed:
        if key.partition(".")[0] == "actor_manager" and t.type != "async" and key not in of_any_actor:
            yield key, f"with trainer={t.type}", "with trainer=async"
        if key.startswith("evaluator.") and t.eval_interval is None and key not in of_films:
            yield key, "with trainer.eval_interval=null", "with an eval_interval (opt steps)"
    if evaluator.n_envs > evaluator.episodes:
        reason = f"above the {evaluator.episodes} episodes of an evaluation"
        yield "evaluator.n_envs", reason, f"up to {evaluator.episodes}, or more evaluator.episodes"
    if not resolve.trackers(recorder) and recorder.type == "default":
        for key in ("recorder.project", "recorder.finish_s"):
            yield key, "without a tracker", "with recorder.wandb, recorder.mlflow or recorder.type"
    if "hydra.run.dir" in typed:
        yield "name", "with hydra.run.dir", "without it"


def batch_steps(config: TrainConfig) -> int:
    """Env steps after which the replay surely holds a batch.

    In each stream n_step rows wait for the observation n_step places later, and a sequence waits for all of its rows.
    """
    shape: SequenceShape | None = getattr(config.agent, "sequences", None)
    length = 1 if shape is None else shape.length
    return length * config.agent.batch_size + resolve.streams(config) * (config.buffer.n_step + length - 1)


def first_opt_step_at(config: TrainConfig) -> int:
    """Env steps that the first opt step needs."""
    t = config.trainer
    return max(math.ceil(t.warmup_period + (t.opt_interval or 0)), batch_steps(config))


def least_capacity(config: TrainConfig) -> int:
    """Rows of a replay that can always offer a batch, however short the episodes are.

    Every second row is a final observation where each episode is one env step long. In each stream n_step rows wait
    for their next observation, and frame_stack - 1 have lost a frame; the oldest row may be a final observation. With long
    episodes, a batch of sequences needs all rows of each, and up to one sequence per stream is not whole.
    """
    shape: SequenceShape | None = getattr(config.agent, "sequences", None)
    length = max(2, 0 if shape is None else shape.length)
    waiting = config.buffer.n_step + (1 if shape is None else length + shape.burn_in)
    waiting += config.env.frame_stack - 1
    return length * config.agent.batch_size + resolve.streams(config) * waiting


def _simulator(config: TrainConfig) -> None:
    """Refuse a simulator without its trainer, and the other way round, and what no simulator can do."""
    env, e, envs = config.env, config.evaluator, config.actor_manager.envs_per_actor
    is_simulator = config.trainer.type == "device"
    _refuse(
        is_simulator != (env.type == "simulator") or (is_simulator and not env.entry_point),
        f"trainer={config.trainer.type} and env={env.name}: trainer=device is for a simulator, and only it trains in one",
        "trainer=device env=simulator env.entry_point=module:function",
    )
    wraps = ("id", "imports", "wrappers", "frame_stack", "max_episode_steps", "preprocess", "info_keys")
    odd = [f"env.{name}" for name in (*wraps, "vector") if getattr(env, name) != getattr(EnvConfig(), name)]
    odd += ["step_processor"] if config.step_processor is not None else []
    odd += ["actor_manager.envs_per_actor=auto"] if envs is None else []
    _refuse(
        is_simulator and bool(odd),
        f"{', '.join(odd)}: not possible with a simulator",
        "what its factory offers, by env.kwargs",
    )
    is_wrong = e.type == "process" or (e.type == "shared" and e.episodes > (envs or 0))
    _refuse(
        is_wrong if is_simulator else e.type == "shared",
        f"evaluator={e.type}: a simulator is in the learner's process, where each of the {e.episodes} episodes of an "
        "evaluation takes one of its environments; only a simulator can be shared",
        f"evaluator=inline; or with a simulator evaluator=shared evaluator.episodes=<at most {envs}>",
    )


def _environment(config: TrainConfig) -> None:
    env, preset = config.env, config.preset
    example = "ALE/Freeway-v5" if env.preprocess == "atari" else "CartPole-v1"
    _refuse(
        env.type == "gym" and not env.id and not env.entry_point,
        "env.id: the environment has no name",
        f"env.id={example} or env.entry_point=module:name",
    )
    _refuse(
        bool(env.id and env.entry_point),
        f"env.id={env.id} and env.entry_point={env.entry_point} are two environments",
        f"one of them, such as env=gym env.entry_point={env.entry_point}",
    )
    usual = {"env.preprocess": "none", "env.wrappers": []}
    changed = [key for key, value in usual.items() if getattr(env, key.removeprefix("env.")) != value]
    _refuse(
        env.vector and bool(changed),
        f"{' and '.join(changed)} cannot be set with env.vector=true: its sub-environments are stepped and reset as one",
        "env.vector=false, or a vector environment that does this by itself (env.kwargs, env.entry_point)",
    )
    _refuse(
        not fnmatchcase(env.name, preset.env_id or "*"),
        f"preset={preset.name} was tuned for {preset.env_id}, and the environment is {env.name}",
        presets.INSTEAD,
    )


def _actors(config: TrainConfig) -> None:
    t, actors, manager = config.trainer, resolve.n_actors(config), config.actor_manager
    sync = t.type != "async"
    _refuse(
        sync and actors != 1,
        f"n_actors={actors}: trainer={t.type} has one actor, in the learner's own thread",
        "trainer=async trainer.lockstep=true, which is reproducible too,\n"
        "or more environments with actor_manager.envs_per_actor",
    )
    _refuse(
        sync and t.lockstep,
        "trainer.lockstep=true: it needs actors in processes; trainer=sync is reproducible without it",
        "trainer=async trainer.lockstep=true, or trainer=sync",
    )
    _refuse(
        t.opt_interval is None and None in (config.n_actors, manager.envs_per_actor),
        "trainer.opt_interval=null enforces no ratio, so no number of actors or environments is enough for `auto`",
        "a number of n_actors and of actor_manager.envs_per_actor, or of trainer.opt_interval",
    )
    _refuse(
        resolve.is_reproducible(config) and t.opt_interval is None,
        "trainer.opt_interval=null enforces no ratio, and a reproducible run needs one",
        "a number > 0 (env steps), or trainer=async without lockstep",
    )
    _refuse(
        manager.min_actors > actors,
        f"actor_manager.min_actors={manager.min_actors} are more than n_actors={actors}",
        "min_actors <= n_actors",
    )


def _device_and_replay(config: TrainConfig) -> None:
    device, capacity, least = config.device, config.buffer.capacity, least_capacity(config)
    _refuse(
        not re.fullmatch(r"cpu|mps|cuda(:\d+)?", device),
        f"device: there is no {device!r}",
        "cpu, cuda, cuda:<number>, mps",
    )
    _refuse(
        getattr(config.agent, "compile", "auto") == "true" and device == "mps",
        f"agent.compile=true is for opt steps on the CPU or by CUDA, and device={device}",
        "agent.compile=auto or false, or device=cpu",
    )
    _refuse(
        config.buffer.device == "cuda" and not device.startswith("cuda"),
        f"buffer.device=cuda keeps the rows on the GPU that computes opt steps, and device={device}",
        "buffer.device=cpu, or device=cuda",
    )
    buffer = config.buffer
    _refuse(
        buffer.her != "none" and (buffer.n_step != 1 or buffer.device == "cuda"),
        f"buffer.her={buffer.her} gives single env steps in the main memory other rewards; here are "
        f"buffer.n_step={buffer.n_step} and buffer.device={buffer.device}",
        "buffer.n_step=1, and buffer.device=auto or cpu",
    )
    sequences = getattr(config.agent, "sequences", None)
    _refuse(
        buffer.her != "none" and (sequences is not None or config.trainer.type == "device"),
        f"buffer.her={buffer.her} is for single rows of environments of gymnasium, not for agent.gru or trainer=device",
        "agent.gru=null and trainer=async or sync, or buffer.her=none",
    )
    _refuse(
        config.trainer.warmup_period > capacity,
        f"trainer.warmup_period={config.trainer.warmup_period} env steps do not fit into buffer.capacity={capacity}",
        "warmup_period <= capacity",
    )
    _refuse(
        capacity < least,
        f"buffer.capacity={capacity} might never offer a batch of agent.batch_size={config.agent.batch_size}",
        f"capacity >= 2·batch_size + n_actors·envs_per_actor·(n_step + frame_stack) = {least}"
        if sequences is None
        else f"capacity >= {least}, for sequences of agent.sequence_length={sequences.length}",
    )


def _trainer(config: TrainConfig) -> None:
    """Refuse budgets that end too early or never, and values that make learner and actors wait for each other."""
    t, tolerance, episodes = config.trainer, resolve.ratio_tolerance(config), config.evaluator.episodes
    needed, first = batch_steps(config), first_opt_step_at(config)
    # An actor with a vector environment may wait with less credit than a step of all needs.
    factor = 2 if resolve.steps_as_one(config) else 1
    sequences: SequenceShape | None = getattr(config.agent, "sequences", None)
    _refuse(
        t.max_opts is None and t.max_env_steps is None and t.max_time is None,
        "trainer: without a budget the run would never end",
        "at least one of trainer.max_opts, trainer.max_env_steps, trainer.max_time",
    )
    if t.opt_interval is not None:
        _refuse(
            tolerance < factor * resolve.streams(config),
            f"trainer.ratio_tolerance={tolerance} does not give each environment {factor} env steps",
            f"ratio_tolerance >= {factor}·n_actors·envs_per_actor = {factor * resolve.streams(config)}",
        )
        granted = t.warmup_period + t.opt_interval + tolerance
        _refuse(
            granted < needed,
            f"{granted:g} env steps may precede the first opt step; its batch needs {needed}",
            f"trainer.warmup_period + opt_interval + ratio_tolerance >= {needed}, for agent.batch_size "
            + ("rows" if sequences is None else f"sequences of {sequences.length} rows"),
            f"trainer.warmup_period={needed}",
        )
    _refuse(
        t.max_env_steps is not None and t.max_env_steps < first,
        f"trainer.max_env_steps={t.max_env_steps} ends before the first opt step, at {first:,}\n"
        f"with warmup_period={t.warmup_period}, opt_interval={t.opt_interval}, "
        f"batch_size={config.agent.batch_size}",
        "a larger max_env_steps, or a smaller warmup_period or batch_size",
    )
    _refuse(
        t.stop_return is not None and t.eval_interval is None,
        "trainer.stop_return waits for an evaluation, and trainer.eval_interval=null has none",
        "an eval_interval (opt steps) with stop_return",
    )
    _refuse(
        t.stop_return is not None and episodes < 2,
        f"trainer.stop_return needs an interval around the mean, and evaluator.episodes={episodes} has none",
        "evaluator.episodes of at least 2",
    )
