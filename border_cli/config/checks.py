"""Checks over more than one value: each is allowed, and together they make no sense or could never end.

A cross-check that fails names every value it looked at, so that one of them can be changed.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping

from border_cli.config import presets
from border_cli.config.resuming import is_reproducible
from border_cli.config.schema import EvaluatorConfig, TrainConfig
from border_cli.core.errors import UsageError

_GAME = re.compile(r"(\w+:)?ALE/[\w-]+")
_DEVICE = re.compile(r"cpu|mps|cuda(:\d+)?")
_OF_ACTORS = (
    "n_buffer",
    "heartbeat_timeout_s",
    "ring_rows",
    "start_timeout_s",
    "stop_timeout_s",
    "serial_init",
)
"""Of `actor_manager`: what only actors in processes have."""


def check(config: TrainConfig) -> None:
    """Run every cross-check. Raises UsageError for the first one that fails."""
    for one in (
        _check_agent,
        _check_environment,
        _check_preset,
        _check_device,
        _check_actors,
        _check_lockstep,
        _check_budget,
        _check_capacity,
        _check_ratio,
        _check_warmup,
        _check_ring,
        _check_stop_return,
        _check_confirmation,
    ):
        one(config)


def apply_typed_budget(config: TrainConfig, typed: Mapping[str, str]) -> None:
    """Who types one of the two budgets means that one: the other, from preset or default, is dropped."""
    budgets = {name: f"trainer.{name}" for name in ("max_opts", "max_env_steps")}
    given = [name for name, key in budgets.items() if key in typed]
    if len(given) == 1 and getattr(config.trainer, given[0]) is not None:
        (other,) = budgets.keys() - set(given)
        setattr(config.trainer, other, None)


def check_typed(typed: Collection[str]) -> None:
    """Refuse keys that are written by files and must not be typed."""
    for key in typed:
        group, _, name = key.partition(".")
        if name == "type" and group in ("agent", "buffer"):
            raise UsageError(
                f"{key} cannot be typed: it is set by the option's file\nallowed: {group}=<name>"
            )
        if group == "preset" and name:
            raise UsageError(
                f"{key}: written by preset files, not to be typed\nallowed: preset=<name> or preset=none"
            )


def check_effect(config: TrainConfig, typed: Collection[str]) -> None:
    """Refuse typed keys that would change nothing in this configuration."""
    for key in ("evaluator.heartbeat_timeout_s", "evaluator.restarts"):
        if key in typed and config.evaluator.type == "inline":
            raise UsageError(
                f"{key} is about the process of an evaluator, and evaluator=inline has none\n"
                f"allowed: evaluator=process with it"
            )
    _check_no_restarts(config, typed)
    for group, section in (("agent", config.agent), ("env", config.env)):
        for name, wanted in section.idle():
            if f"{group}.{name}" in typed:
                raise UsageError(
                    f"{group}.{name} changes nothing with the other values of {group}\n"
                    f"allowed: {group}.{name} with {group}.{wanted}"
                )
    for key, mode, allowed in _without_effect(config):
        if key in typed:
            raise UsageError(f"{key} has no effect under {mode}\nallowed: {key} with {allowed}")


def _without_effect(config: TrainConfig) -> Iterator[tuple[str, str, str]]:
    """Keys that another way to train reads: each with the way of this run, and with what it has an effect."""
    if config.trainer.type == "sync":
        for name in _OF_ACTORS:
            yield f"actor_manager.{name}", "trainer=sync", "trainer=async"
        yield "trainer.sync_interval", "trainer=sync", "trainer=async"
    if config.trainer.lockstep:
        for key in ("trainer.sync_interval", "trainer.ratio_tolerance", "actor_manager.n_buffer"):
            yield key, "trainer.lockstep=true, where rounds replace it", "trainer.lockstep=false"
    else:
        yield "trainer.lockstep_steps", "trainer.lockstep=false", "trainer.lockstep=true"
    if config.trainer.opt_interval is None:
        yield "trainer.ratio_tolerance", "trainer.opt_interval=null", "a number of env steps per opt step"


def _check_no_restarts(config: TrainConfig, typed: Collection[str]) -> None:
    """Where the same seed gives the same bits, an environment that raises and an actor that is lost end the run."""
    names = ("restarts", "restart_window_s", "restart_delay_s", "min_actors")
    keys = [f"actor_manager.{name}" for name in names]
    if config.actor_manager.on_env_error == "restart":
        keys.append("actor_manager.on_env_error")
    for key in keys:
        if is_reproducible(config) and key in typed:
            mode = "trainer=sync" if config.trainer.type == "sync" else "trainer.lockstep=true"
            raise UsageError(
                f"{key} has no effect under {mode}: a restart would not be reproducible, so what is lost ends the run\n"
                "allowed: actor_manager.on_env_error=stop, or trainer=async without lockstep"
            )


def confirm_episodes(config: EvaluatorConfig) -> int:
    """Fresh episodes on which a candidate for the best model is judged again; 0 where that is off."""
    if not config.confirm:
        return 0
    return config.episodes if config.confirm_episodes is None else config.confirm_episodes


def streams(config: TrainConfig) -> int:
    """Environments that are stepped for training, each a stream of rows of its own."""
    return config.n_actors * config.actor_manager.envs_per_actor


def ratio_tolerance(config: TrainConfig) -> int:
    """Env steps by which acting may run ahead of opt_interval; follows from the actors where not given."""
    given = config.trainer.ratio_tolerance
    return max(64, 2 * streams(config)) if given is None else given


def lockstep_steps(config: TrainConfig) -> int:
    """Env steps of each environment per round of lockstep; so many that a round is worth its overhead."""
    given = config.trainer.lockstep_steps
    return max(1, 64 // streams(config)) if given is None else given


def steps_natively(config: TrainConfig) -> bool:
    """Whether the actors' environments are Atari games in threads of ALE's own."""
    pays = config.actor_manager.envs_per_actor > 1 and not is_reproducible(config)
    return config.env.native == "always" or (config.env.native == "auto" and _is_game(config) and pays)


def _is_game(config: TrainConfig) -> bool:
    """Whether ALE itself can step and preprocess the environment as it is asked for."""
    env = config.env
    return env.preprocess == "atari" and _GAME.fullmatch(env.id) is not None and not env.kwargs


def unsampled_steps(config: TrainConfig) -> int:
    """Env steps that are taken and cannot be sampled yet.

    In each stream n_step - 1 wait for their sum, and n_step rows for the observation n_step places later; one more waits
    for the value of that where actors compute priorities.
    """
    return streams(config) * (2 * config.buffer.n_step - 1 + config.buffer.needs_estimates())


def batch_steps(config: TrainConfig) -> int:
    """Env steps after which the replay surely holds a batch."""
    return config.agent.batch_size + unsampled_steps(config)


def least_capacity(config: TrainConfig) -> int:
    """Rows of a replay that can always offer a batch, however short the episodes are.

    Every second row is a final observation where each episode is one env step long. In each stream n_step rows wait
    for their next observation, and the oldest row may be a final observation whose transition is overwritten.
    """
    return 2 * config.agent.batch_size + streams(config) * (config.buffer.n_step + 1)


def _batch_formula(config: TrainConfig) -> str:
    """`batch_steps` for messages."""
    waiting = "2·n_step" if config.buffer.needs_estimates() else "(2·n_step - 1)"
    return f"batch_size + n_actors·envs_per_actor·{waiting}"


def _check_agent(config: TrainConfig) -> None:
    mistake = config.agent.mistake()
    if mistake is not None:
        raise UsageError(mistake)
    if config.buffer.needs_estimates() and not config.agent.knows_errors():
        raise UsageError(
            f"buffer.initial_priority=actor: actors with agent={config.agent.type} do not know the errors that its opt "
            "steps give priorities by\nallowed: buffer.initial_priority=max"
        )


def _check_environment(config: TrainConfig) -> None:
    env = config.env
    if not env.id and not env.entry_point:
        example = "ALE/Freeway-v5" if env.preprocess == "atari" else "CartPole-v1"
        raise UsageError(
            f"env.id: the environment has no name\nallowed: env.id={example} or env.entry_point=module:name"
        )
    if env.id and env.entry_point:
        raise UsageError(
            f"env.id={env.id} and env.entry_point={env.entry_point} are two environments\n"
            f"allowed: one of them, such as env=gym env.entry_point={env.entry_point}"
        )
    if env.native == "always":
        _check_native(config)


def _check_native(config: TrainConfig) -> None:
    if is_reproducible(config):
        raise UsageError(
            "env.native=always: games in ALE's threads cannot be resumed within an episode, as sync and lockstep do\n"
            "allowed: env.native=auto, or trainer=async without lockstep"
        )
    if not _is_game(config):
        raise UsageError(
            "env.native=always: only the games of ALE have it, preprocessed, and without arguments of their own\n"
            "allowed: ids such as ALE/Pong-v5 with env.preprocess=atari env.kwargs={}, or env.native=auto"
        )


def _check_preset(config: TrainConfig) -> None:
    preset = config.preset
    if presets.is_for_another(preset.name, config.agent.type):
        raise UsageError(
            f"preset={preset.name} was tuned for another agent than agent={config.agent.type}\n"
            "allowed: the preset of this agent, or preset=none and the values that you want"
        )
    if preset.env_id and preset.env_id != config.env.name:
        other = config.env.name
        raise UsageError(
            f"preset={preset.name} was tuned for {preset.env_id}, and the environment is {other}\n"
            f"allowed: env=gym env.id=<id> for any other, or preset=none with env.id={other}"
        )


def _check_device(config: TrainConfig) -> None:
    if not _DEVICE.fullmatch(config.device):
        raise UsageError(f"device: there is no {config.device!r}\nallowed: cpu, cuda, cuda:<number>, mps")


def _check_actors(config: TrainConfig) -> None:
    if config.trainer.type == "sync" and config.n_actors != 1:
        raise UsageError(
            f"n_actors={config.n_actors}: trainer=sync acts in the learner's own thread, as one actor\n"
            "allowed: trainer=async trainer.lockstep=true, where the same seed gives the same bits as well,\n"
            "or more environments with actor_manager.envs_per_actor"
        )
    least = config.actor_manager.min_actors
    if least > config.n_actors:
        raise UsageError(
            f"actor_manager.min_actors={least} are more than n_actors={config.n_actors}\n"
            "allowed: min_actors <= n_actors"
        )


def _check_lockstep(config: TrainConfig) -> None:
    t = config.trainer
    if not t.lockstep:
        return
    if t.type == "sync":
        raise UsageError(
            "trainer.lockstep=true: it is for actors in processes; trainer=sync gives the same bits as it is\n"
            "allowed: trainer=async trainer.lockstep=true, or trainer=sync"
        )
    if t.opt_interval is None:
        raise UsageError(
            "trainer.opt_interval=null lets the actors run free, and lockstep is the opposite\n"
            "allowed: a number > 0 (env steps)"
        )
    if config.env.nonfinite == "drop":
        raise UsageError(
            "env.nonfinite=drop leaves out env steps, and the rounds of lockstep have a fixed number of them\n"
            "allowed: env.nonfinite=error, or trainer=sync"
        )


def _check_budget(config: TrainConfig) -> None:
    t = config.trainer
    if t.max_opts is None and t.max_env_steps is None and t.max_time is None:
        raise UsageError(
            "trainer: without a budget the run would never end\n"
            "allowed: at least one of trainer.max_opts, trainer.max_env_steps, trainer.max_time"
        )


def _check_capacity(config: TrainConfig) -> None:
    capacity, batch = config.buffer.capacity, config.agent.batch_size
    if capacity < batch:
        raise UsageError(
            f"buffer.capacity={capacity} cannot hold a batch of agent.batch_size={batch}\n"
            "allowed: capacity >= batch_size"
        )
    warmup = config.trainer.warmup_period
    if warmup > capacity:
        raise UsageError(
            f"trainer.warmup_period={warmup} env steps do not fit into buffer.capacity={capacity}\n"
            "allowed: warmup_period <= capacity"
        )
    least = least_capacity(config)
    if capacity < least:
        raise UsageError(
            f"buffer.capacity={capacity} might never offer a batch of agent.batch_size={batch}\n"
            f"allowed: capacity >= 2·batch_size + n_actors·envs_per_actor·(n_step + 1) = {least}"
        )


def _check_ratio(config: TrainConfig) -> None:
    """Refuse settings under which learner and actors could wait for each other for ever."""
    t, tolerance = config.trainer, ratio_tolerance(config)
    if t.opt_interval is None:
        _check_free_running(config)
        return
    if tolerance < streams(config):
        raise UsageError(
            f"trainer.ratio_tolerance={tolerance} does not give each environment one env step\n"
            f"allowed: ratio_tolerance >= n_actors·envs_per_actor = {streams(config)}"
        )
    granted = t.warmup_period + t.opt_interval + tolerance
    if granted < batch_steps(config):
        raise UsageError(
            f"{granted:g} env steps may precede the first opt step; its batch needs {batch_steps(config)}\n"
            f"allowed: trainer.warmup_period + opt_interval + ratio_tolerance\n  >= {_batch_formula(config)}"
        )


def _check_free_running(config: TrainConfig) -> None:
    if config.trainer.type == "sync":
        raise UsageError(
            "trainer.opt_interval=null lets the actors run free, and trainer=sync has none\n"
            "allowed: a number > 0 (env steps), or trainer=async"
        )


def _check_warmup(config: TrainConfig) -> None:
    t, batch = config.trainer, config.agent.batch_size
    if t.max_env_steps is None:
        return
    first = max(t.warmup_period + (t.opt_interval or 0), batch_steps(config))
    if t.max_env_steps < first:
        raise UsageError(
            f"trainer.max_env_steps={t.max_env_steps} ends before the first opt step, at {first:g}\n"
            f"with warmup_period={t.warmup_period}, opt_interval={t.opt_interval}, batch_size={batch}\n"
            "allowed: a larger max_env_steps, or a smaller warmup_period or batch_size"
        )


def _check_ring(config: TrainConfig) -> None:
    if config.trainer.type == "sync":
        return  # no ring is made where nothing crosses a process
    manager = config.actor_manager
    # An env step completes up to two rows: its own, and the final observation of the episode it ends.
    needed = 2 * (manager.n_buffer + manager.envs_per_actor)
    if manager.ring_rows < needed:
        raise UsageError(
            f"actor_manager.ring_rows={manager.ring_rows} cannot take what an actor hands over at once\n"
            f"allowed: ring_rows >= 2·(n_buffer + envs_per_actor) = {needed}"
        )


def _check_stop_return(config: TrainConfig) -> None:
    if config.trainer.stop_return is not None and config.trainer.eval_interval is None:
        raise UsageError(
            "trainer.stop_return waits for an evaluation, and trainer.eval_interval=null has none\n"
            "allowed: an eval_interval (opt steps) with stop_return"
        )


def _check_confirmation(config: TrainConfig) -> None:
    evaluator = config.evaluator
    if evaluator.confirm_episodes is not None and not evaluator.confirm:
        raise UsageError(
            f"evaluator.confirm_episodes={evaluator.confirm_episodes} has no effect with evaluator.confirm=false\n"
            "allowed: one of them"
        )
