"""The plan of a run: its arithmetic over the speeds of its two sides, each measured alone for a few seconds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from time import monotonic

import numpy as np

from border_cli import parts
from border_cli.actors.sampler import Sampler
from border_cli.config import plan
from border_cli.config.checks import least_capacity
from border_cli.config.plan import Plan, Speeds
from border_cli.config.schema import TrainConfig
from border_cli.core.errors import ExitCode, Interrupted, UsageError
from border_cli.core.items import Items, empty_items, item_columns
from border_cli.core.spaces import EnvSpec
from border_cli.runtime import forkserver, resources, seeding
from border_cli.runtime.signals import StopFlag

PROBE_S = 2.0
"""How long each side is measured."""
REPLAY_ROWS = 4096
"""In the replay that the opt steps sample from; fewer if the configuration has fewer."""
_WARM_UP = 20
"""Calls before measuring, as the first ones are slow; no more of them than PROBE_S has time for."""
_MAKING_S = 120.0


def make_plan(config: TrainConfig, spec: EnvSpec, folder: Path, stop: StopFlag) -> Plan:
    """The plan of a run whose directory would be in `folder`. Takes a few seconds. Raises as `measure` does."""
    sizes, speeds, cpus = parts.sizes(config, spec), measure(config, spec, stop), resources.cpus()
    return Plan(
        counts=plan.counts(config),
        memory=plan.memory_need(config, sizes),
        free_memory=resources.available_memory(),
        checkpoint=plan.checkpoint_bytes(sizes),
        disk=plan.disk_need(config, sizes, config.checkpoint.replay == "full"),
        free_disk=resources.free_disk(folder),
        processes=plan.processes(config),
        threads=plan.compute_threads(config),
        cpus=cpus,
        speeds=speeds,
        duration=plan.duration(config, speeds, cpus),
    )


def measure(config: TrainConfig, spec: EnvSpec, stop: StopFlag) -> Speeds:
    """Act as one actor does, in a process of its own; then do opt steps here, on rows made up.

    Raises UsageError if the environment raises, Interrupted when asked to stop.
    """
    return Speeds(_act(config, stop), _learn(config, spec, stop))


def act_alone(config: TrainConfig, seconds: float) -> float:
    """Env steps/s of one actor over all of its environments, items included. Run in a child."""
    spec = parts.actor_spec(config)
    place = spec.place(0, 0, config.n_actors)
    env = parts.actor_env(place, config, tuple(config.plugins))
    try:
        policy = parts.actor_policy(place, env.spec, config.agent, tuple(config.plugins))
        processor = parts.actor_processor(place, env.spec, config)
        seeds = [seeding.env_seed(config.seed, 0, 0, i) for i in range(place.n_envs)]
        sampler = Sampler(env, policy, processor, seeds)
        sampler.begin()
        everyone = list(range(place.n_envs))
        return place.n_envs * _rate(lambda: sampler.sample(everyone, 0), seconds)
    finally:
        env.close()


def _act(config: TrainConfig, stop: StopFlag) -> float:
    try:
        rate: float = forkserver.run_in_child(
            act_alone, (config, PROBE_S), _MAKING_S + 10 * PROBE_S, should_stop=stop
        )
    except forkserver.ChildStopped as e:
        raise Interrupted(stop.code or ExitCode.SIGTERM) from e
    except (forkserver.ChildError, TimeoutError) as e:
        first = (str(e).splitlines() or [""])[0]
        raise UsageError(f"plan: an actor cannot be tried: {first}") from e
    return rate


def _learn(config: TrainConfig, spec: EnvSpec, stop: StopFlag) -> float:
    """Opt steps/s, sampling included."""
    rows = min(config.buffer.capacity, max(REPLAY_ROWS, 2 * least_capacity(config)))
    small = replace(config, buffer=replace(config.buffer, capacity=rows))
    agent, buffer = parts.make_agent(small, spec), parts.make_buffer(small, spec)
    agent.train()
    buffer.push(_made_up(spec, rows, config))

    def opt_step() -> None:
        if stop.code is not None:
            raise Interrupted(stop.code)
        agent.opt(buffer)

    def wait_for_device() -> None:
        agent.check_finite()  # the only call of an agent that cannot answer before the device is done

    return _rate(opt_step, PROBE_S, wait_for_device)


def _made_up(spec: EnvSpec, n: int, config: TrainConfig) -> Items:
    """N rows of one stream: observations drawn at random where they are fractions, all else 0."""
    rng = np.random.default_rng(0)
    items = empty_items(item_columns(spec, config.buffer.needs_estimates()), n)
    for leaf in spec.obs.leaves:
        if np.dtype(leaf.dtype).kind == "f":
            items[leaf.name][...] = rng.standard_normal(items[leaf.name].shape)
    items["span"][:] = 1
    items["discount"][:] = config.agent.gamma
    return items


def _rate(call: Callable[[], object], seconds: float, finish: Callable[[], None] = lambda: None) -> float:
    """Calls per second, measured for so long after some that are not counted. finish: waits for what was begun."""
    began = monotonic()
    for _ in range(_WARM_UP):
        call()
        if monotonic() - began > seconds:
            break
    finish()
    began, n = monotonic(), 0
    while (passed := monotonic() - began) < seconds or n == 0:
        call()
        n += 1
    finish()
    return n / max(passed, monotonic() - began)
