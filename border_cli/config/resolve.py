"""Turns what a configuration leaves open, `auto` or null, into values; says what a resumed run may change.

A run stores the result, so its config.yaml has no `auto`, except for `agent.compile` and `threads` of a free-running run,
which chooses them by timing while it runs. When a run is resumed, `reopen` opens values again that follow from other
values, which may then change. All others were decided once for the whole run.
"""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from fnmatch import fnmatchcase
from fractions import Fraction
from functools import reduce
from pathlib import Path
from typing import Any

from border_cli.config.convert import as_typed, dotted, to_plain
from border_cli.config.schema import RecorderConfig, TrainConfig
from border_cli.core.errors import UsageError

_MAKING_S = 120.0
_GAME = re.compile(r"(\w+:)?ALE/[\w-]+")
KEEP_THE_BITS = (
    *("recorder.*", "checkpoint.*", "env.action_mask", "buffer.device", "debug"),
    *(f"actor_manager.{what}_timeout_s" for what in ("start", "heartbeat", "stop")),
    "actor_manager.restarts",  # in a reproducible run, of the evaluator's process alone
)
_SAFE = (
    *KEEP_THE_BITS,
    *("trainer.max_opts", "trainer.max_env_steps", "trainer.max_time", "trainer.stop_return"),
    *("trainer.eval_interval", "trainer.save_interval", "trainer.record_interval", "evaluator.*"),
    *("agent.compile", "agent.lr_opt_steps", "buffer.beta_opt_steps", "device"),
)
_SAFE_RUNNING_FREE = ("n_actors", "actor_manager.*", "threads", "trainer.ratio_tolerance")
_DECIDED_ONCE = (
    *("n_actors", "threads", "actor_manager.envs_per_actor", "trainer.lockstep_steps", "checkpoint.replay"),
    *("env.action_mask", "env.categories"),
    *("agent.lr_opt_steps", "agent.compile", "agent.atoms", "agent.v_min", "agent.v_max"),
)
"""What is decided when a run starts, where it is open; so are all open values of the buffer."""


def resolve(
    config: TrainConfig,
    *,
    replay_fits: bool,
    screen: bool,
    init_from: str | None,
    cpus: int,
    replay_on_gpu: bool = False,
) -> TrainConfig:
    """The configuration that runs: with a value for all that was left open.

    Args:
        config: checked by `border_cli.config.validate`, with what the environment has shown; it is not changed.
        replay_fits: whether there is room on the disk for checkpoints with the replay.
        screen: whether the terminal can show the live view.
        init_from: the model directory that `init_from` means now.
        cpus: those that this process may use.
        replay_on_gpu: whether the GPU of the learner has room for the replay.
    """
    resolved = copy.deepcopy(config)
    resolved.init_from = init_from
    resolved.trainer.ratio_tolerance = ratio_tolerance(config)
    if config.trainer.lockstep:
        resolved.trainer.lockstep_steps = lockstep_steps(config)
    if config.evaluator.type == "auto":
        resolved.evaluator.type = "process" if may_evaluate_beside(config) and cpus > 1 else "inline"
    opt_steps = counts(config).opt_steps
    resolved.buffer = resolved.buffer.resolve(opt_steps)
    if config.buffer.device == "auto":
        resolved.buffer = replace(resolved.buffer, device="cuda" if replay_on_gpu else "cpu")
    if config.device.startswith("cuda") and getattr(config.agent, "compile", None) == "auto":
        # Capturing takes no time, and happens before the first opt step.
        resolved.agent = replace(resolved.agent, compile="true")  # type: ignore[call-arg]
    resolved.agent = resolved.agent.resolve(opt_steps, may_switch(config)).on_device(config.device)
    if not may_switch(config):
        resolved.threads = threads(config)
    if config.checkpoint.replay == "auto":
        resolved.checkpoint.replay = "full" if replay_fits else "none"
    if config.recorder.console == "auto":
        resolved.recorder.console = "screen" if screen else "plain"
    return resolved


def with_env_facts(config: TrainConfig, action_mask: str, categories: dict[str, list[int]]) -> TrainConfig:
    """The configuration with what the environment has shown, where that was left open.

    action_mask: "info" where its info has a mask, else "none" · categories: those of its images of categories.
    """
    env = replace(config.env)
    if env.action_mask == "auto":
        env.action_mask = action_mask
    if env.categories is None:
        env.categories = categories
    return replace(config, env=env)


TRACKERS = ("wandb", "mlflow")
"""Experiment trackers: options under `recorder`, which are also the names of the packages and of the extras."""


def trackers(recorder: RecorderConfig) -> list[str]:
    """The experiment trackers that are turned on."""
    return [name for name in TRACKERS if getattr(recorder, name) not in ("none", None)]


def reopen(stored: TrainConfig) -> TrainConfig:
    """The configuration of a run to be resumed, in which values that follow from other values are open again."""
    config = copy.deepcopy(stored)
    config.trainer.ratio_tolerance = None
    if stored.trainer.ratio_tolerance != ratio_tolerance(config):
        config.trainer.ratio_tolerance = stored.trainer.ratio_tolerance
    if stored.recorder.console in ("screen", "plain"):
        config.recorder.console = "auto"
    return config


def reopen_for_device(config: TrainConfig, stored: TrainConfig, chosen: Collection[str]) -> TrainConfig:
    """If the kind of device differs from the stored run's, open again what was decided for that device.

    chosen: keys whose values the user has chosen now; they stay.
    """
    if config.device.partition(":")[0] == stored.device.partition(":")[0]:
        return config
    reopened = copy.deepcopy(config)
    if "agent.compile" not in chosen and hasattr(reopened.agent, "compile"):
        reopened.agent.compile = "auto"
    if "buffer.device" not in chosen:
        reopened.buffer.device = "auto"
    return reopened


def inherit(config: TrainConfig, stored: TrainConfig) -> TrainConfig:
    """A new configuration whose open values are those that a stored one has decided once for its run."""
    inherited = copy.deepcopy(config)
    for key in (*_DECIDED_ONCE, *(f"buffer.{name}" for name in vars(config.buffer))):
        *group, name = key.split(".")
        section, before = (reduce(getattr, group, c) for c in (inherited, stored))
        if getattr(section, name, "") in (None, "auto") and hasattr(before, name):
            setattr(section, name, getattr(before, name))
    for name, value in vars(config.agent.on_device(config.device)).items():
        if value != getattr(config.agent, name):  # left open
            setattr(inherited.agent, name, getattr(stored.agent, name, value))
    if config.evaluator.type == "auto" and stored.evaluator.type in ("inline", "process"):  # not a plugin's
        inherited.evaluator.type = stored.evaluator.type
    if config.init_from is not None and stored.init_from is not None:
        path = Path(config.init_from)
        moves_on = any(part.is_symlink() for part in (path, *path.parents))  # such as runs/latest
        if moves_on or Path(stored.init_from).is_relative_to(path.resolve()):
            inherited.init_from = stored.init_from
    chosen = [key for key, value in dotted(to_plain(config)).items() if value != "auto"]
    return reopen_for_device(inherited, stored, chosen)


def with_typed_budget(config: TrainConfig, overrides: Mapping[str, Any]) -> TrainConfig:
    """If one of max_opts and max_env_steps is typed, the other one, from preset or default, is dropped."""
    budgets = ("max_opts", "max_env_steps")
    typed = [name for name in budgets if f"trainer.{name}" in overrides]
    if len(typed) != 1 or getattr(config.trainer, typed[0]) is None:
        return config
    other: dict[str, Any] = {name: None for name in budgets if name not in typed}
    return replace(config, trainer=replace(config.trainer, **other))


def with_trained_agent(config: TrainConfig, overrides: Collection[str]) -> TrainConfig:
    """With `init_from` the agent does not begin with random actions, unless typed values say so."""
    if config.init_from is None:
        return config
    agent = config.agent.trained()
    typed = {f.name: getattr(config.agent, f.name) for f in fields(agent) if f"agent.{f.name}" in overrides}
    return replace(config, agent=replace(agent, **typed))


def n_actors(config: TrainConfig) -> int:
    """Number of actors; the smallest one that is allowed while it is left open."""
    return config.actor_manager.min_actors if config.n_actors is None else config.n_actors


def envs_per_actor(config: TrainConfig) -> int:
    """Environments of each actor; 1 while that is left open."""
    return config.actor_manager.envs_per_actor or 1


def threads(config: TrainConfig) -> int:
    """Threads of the learner; where that is left open, those that it starts with."""
    return config.threads or 1


def making_s(config: TrainConfig) -> float:
    """Time limit for making one environment in a child [s]."""
    return max(_MAKING_S, config.actor_manager.start_timeout_s)


def streams(config: TrainConfig) -> int:
    """Number of environments that are stepped for training; each is one stream of rows."""
    return n_actors(config) * envs_per_actor(config)


def ratio_tolerance(config: TrainConfig) -> int:
    """Env steps by which acting may run ahead of opt_interval.

    By default two chunks of one actor, so that it fills the second while the learner uses the first. With one chunk they
    would take turns. On a cluster each actor has credit for one whole chunk, because its way there and back takes longer.
    """
    if config.trainer.ratio_tolerance is not None:
        return config.trainer.ratio_tolerance
    on_cluster = config.actor_manager.type == "ray"
    return max(128, 2 * streams(config), on_cluster * n_actors(config) * config.actor_manager.n_buffer)


def lockstep_steps(config: TrainConfig) -> int:
    """Env steps of each environment per round of lockstep: enough that a round is worth its overhead."""
    return config.trainer.lockstep_steps or max(1, 64 // streams(config))


def may_evaluate_beside(config: TrainConfig) -> bool:
    """Whether evaluations can have a process of their own: by choice, or by `auto` in a free-running run."""
    free = not is_reproducible(config) and config.trainer.eval_interval is not None
    return config.evaluator.type == "process" or (config.evaluator.type == "auto" and free)


def steps_natively(config: TrainConfig) -> bool:
    """Whether ALE steps the Atari games of an actor in its own threads, with the same frames: several, free-running.

    It cannot where an environment has arguments or wrappers, nor resume a game within an episode.
    """
    env = config.env
    is_game = env.preprocess == "atari" and _GAME.fullmatch(env.id) and not (env.kwargs or env.wrappers)
    return bool(is_game) and envs_per_actor(config) > 1 and not is_reproducible(config)


def steps_as_one(config: TrainConfig) -> bool:
    """Whether the environments of an actor are one vector environment. Where each episode has a seed, they are several."""
    return config.env.vector and not is_reproducible(config)


def may_switch(config: TrainConfig) -> bool:
    """Whether opt steps may change their form in the middle of the run: compiled or not, with more or fewer threads."""
    return config.device == "cpu" and not is_reproducible(config)


def is_reproducible(config: TrainConfig) -> bool:
    """Whether the same seed gives the same bits, and a resumed run equals one that was never interrupted."""
    return config.trainer.type != "async" or config.trainer.lockstep


@dataclass(frozen=True)
class Change:
    """One key with the value of the run so far and the one from now on."""

    key: str
    before: Any
    now: Any

    def __str__(self) -> str:
        return f"{self.key}: {as_typed(self.before)} → {as_typed(self.now)}"

    def is_among(self, patterns: Sequence[str]) -> bool:
        return any(fnmatchcase(self.key, pattern) for pattern in patterns)


def changes(before: TrainConfig, now: TrainConfig) -> list[Change]:
    """Every key whose value differs, in schema order."""
    old, new = dotted(to_plain(before)), dotted(to_plain(now))
    keys = dict.fromkeys([*old, *new])
    return [Change(key, old.get(key), new.get(key)) for key in keys if old.get(key) != new.get(key)]


def check_changes(config: TrainConfig, wanted: Sequence[Change]) -> None:
    """Raise UsageError for a change that would turn the run into another one. config: that of the run so far."""
    may_change = _SAFE if is_reproducible(config) else (*_SAFE, *_SAFE_RUNNING_FREE)
    if unsafe := [change for change in wanted if not change.is_among(may_change)]:
        shown = "; ".join(map(str, unsafe[:3])) + ("; …" if len(unsafe) > 3 else "")
        group = unsafe[0].key.partition(".")[0]
        allowed = [key for key in may_change if key.startswith(group)]
        raise UsageError(
            f"resume: these values cannot change within a run: {shown}",
            allowed=["a new run that starts from its weights, with init_from=<run>", *allowed],
        )


# -- what the budgets allow ------------------------------------------------------


@dataclass(frozen=True)
class Counts:
    """How often a run does something, each None where only its end will tell.

    limit: the budget that ends it · exact: whether no other budget and no score can end it before.
    """

    env_steps: int | None
    opt_steps: int | None
    evaluations: int | None
    checkpoints: int | None
    exact: bool
    limit: str


def counts(config: TrainConfig) -> Counts:
    """What the budgets allow."""
    t = config.trainer
    env_steps, opt_steps, limit = t.max_env_steps, t.max_opts, "max_time"
    if t.opt_interval is None:
        budgets = ("max_opts", "max_env_steps", "max_time")
        limit = " or ".join(name for name in budgets if getattr(t, name) is not None)
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
        exact=t.opt_interval is not None and t.max_time is None and t.stop_return is None,
        limit=limit,
    )
