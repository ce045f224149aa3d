"""Speeds of a run's parts, each measured alone on this machine: for `plan=true`, for what is `auto`, and for border-bench.

The two sides of a run are measured as they run later: an actor in a child process, the learner in this one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from statistics import median
from time import monotonic

import numpy as np
import torch

from border_cli.actors.sampler import Sampler
from border_cli.agents.agent import NetworkAgent
from border_cli.agents.compiler import COMPILING_PAYS_S, GraphCompiler
from border_cli.agents.config import NetworkConfig
from border_cli.config import budget, throughput
from border_cli.config.resolve import envs_per_actor, making_s, may_switch, n_actors, reopen, threads
from border_cli.config.schema import TrainConfig
from border_cli.config.throughput import Bench, Measured
from border_cli.config.validate import least_capacity
from border_cli.core.errors import UsageError, first_line
from border_cli.core.format import counted
from border_cli.core.spaces import EnvSpec
from border_cli.core.types import AFTER_TRAINING, Items, empty_items
from border_cli.run import factories
from border_cli.runtime import machine, seeding
from border_cli.runtime.child import ChildError, run_in_child
from border_cli.runtime.signals import StopFlag

_logger = logging.getLogger(__name__)
PLAN_S = 0.5
"""How long a plan measures each side."""
AUTO_S = 0.1
"""How long each speed is measured that decides what `auto` becomes: it delays the run."""
BENCH_S = 0.5
"""How long border-bench measures each part."""
REPLAY_ROWS = 4096
"""In the replay that the opt steps sample from; fewer if the configuration has fewer."""
_WARM_UP = 20
"""Calls before measuring, as the first ones are slow; no more of them than the measurement has time for."""
_ROUNDS = 3
"""Numbers of threads are measured in turn, so that what else the machine does slows down all of them."""


def measure(
    config: TrainConfig,
    spec: EnvSpec,
    envs: Sequence[int],
    seconds: float,
    stop: StopFlag,
) -> Measured:
    """The speeds of both sides with these numbers of environments, `seconds` for each.

    Raises UsageError if the environment raises, Interrupted when asked to stop.
    """
    acted, learner = acting(config, envs, seconds, stop), Learner(config, spec, stop)
    opt_steps = budget.counts(config).opt_steps
    agent = config.agent.resolve(opt_steps, may_switch(config))
    # On a GPU the opt steps that are measured are the captured ones already.
    how = getattr(agent, "compile", "false") if config.device == "cpu" else "false"
    numbers = (
        [threads(config)] if config.threads or not may_switch(config) else throughput.up_to(machine.cpus())
    )
    compiled = (
        dict[int, float]()
        if how == "false"
        else learner.compiled_opt_steps(numbers, seconds, only_cached=True)
    )
    fastest = max((compiled or learner.opt_steps(numbers, seconds)).values())
    is_long = opt_steps is None or opt_steps / fastest >= COMPILING_PAYS_S
    return Measured(
        acted,
        fastest,
        compiled=bool(compiled),
        compiling=not compiled and (how == "true" or (how == "auto" and is_long)),
    )


def bench(config: TrainConfig, spec: EnvSpec, stop: StopFlag) -> Bench:
    """Measure every part of a run, predict the speed of this configuration, and look for the fastest numbers.

    Raises UsageError if the environment raises, Interrupted when asked to stop.
    """
    cpus, k = machine.cpus(), envs_per_actor(config)
    ceilings: dict[str, tuple[float, str]] = {}
    acted = acting(config, {throughput.ENVS[0], k, throughput.ENVS[-1]}, BENCH_S, stop)
    for n, rate in acted.items():
        ceilings[f"one actor, {counted(n, 'environment')}"] = rate, "env steps"
    learner = Learner(config, spec, stop)
    numbers = sorted({threads(config), *throughput.up_to(cpus)}) if config.device == "cpu" else [1]
    learned = learner.opt_steps(numbers, BENCH_S)
    for n, rate in learned.items():
        ceilings[f"opt step, {counted(n, 'thread')}"] = rate, "opt steps"
    may_compile = getattr(config.agent, "compile", "false") != "false"
    compiled = learner.compiled_opt_steps(numbers, BENCH_S) if may_compile else {}
    for n, rate in compiled.items():
        ceilings[f"opt step, compiled, {counted(n, 'thread')}"] = rate, "opt steps"

    learned = compiled or learned
    rate = learned[config.threads] if config.threads in learned else max(learned.values())
    measured = Measured(acted, rate)
    predicted = throughput.predict(config, measured.speeds(k), cpus)
    interval = config.trainer.opt_interval or 1.0
    open_config = throughput.open_numbers(config, interval)
    decided, _ = throughput.decide(open_config, measured, cpus)
    envs = envs_per_actor(decided)
    recommended = [
        f"n_actors={decided.n_actors}",
        f"actor_manager.envs_per_actor={envs}",
        f"trainer.opt_interval={interval:g}",
    ]
    captured = may_compile and config.device.startswith("cuda")
    how = "compiled" if compiled else "captured" if captured else "eager"
    fastest = throughput.predict(decided, measured.speeds(envs), cpus)
    return Bench(ceilings, predicted, how, recommended, fastest.opt_steps)


# -- an actor, in a child process --------------------------------------------------


def acting(config: TrainConfig, envs: Iterable[int], seconds: float, stop: StopFlag) -> dict[int, float]:
    """Env steps/s of one actor, by its number of environments. Raises UsageError if the environment raises."""
    config = reopen(config)  # the number of environments decides whether ALE's threads step them
    configs = [
        replace(config, actor_manager=replace(config.actor_manager, envs_per_actor=n)) for n in sorted(envs)
    ]
    limit_s = len(configs) * (making_s(config) + 10 * seconds)
    try:
        rates: list[float] = run_in_child(act_alone, (configs, seconds), limit_s, stop.check)
    except TimeoutError as e:
        raise UsageError(
            f"an actor cannot be tried: {e}", allowed="a higher actor_manager.start_timeout_s"
        ) from e
    except ChildError as e:
        raise UsageError(f"an actor cannot be tried: {first_line(e)}") from e
    return dict(zip(sorted(envs), rates, strict=True))


def act_alone(configs: Iterable[TrainConfig], seconds: float) -> list[float]:
    """Env steps/s of one actor of each configuration over all of its environments, items included.

    It acts as in most of a run: after random actions at the start, with a model that it was sent.
    """
    rates = []
    for config in configs:
        actor_id = factories.actor_spec(config).actor_id(0, 0, n_actors(config))
        with closing(factories.actor_env(actor_id, config)) as env:
            policy = factories.actor_policy(actor_id, env.spec, config)
            policy.sync_model(policy.model_info())
            processor = factories.actor_processor(actor_id, env.spec, config)
            sampler = Sampler(env, policy, processor, partial(seeding.first_seed, config.seed, 0, 0))
            sampler.begin()
            everyone = list(range(env.n_envs))
            rates.append(env.n_envs * _rate(partial(sampler.sample, everyone, AFTER_TRAINING), seconds))
    return rates


# -- the learner, in this process ---------------------------------------------------


class Learner:
    """An agent that learns, and a small replay of made-up rows. Every method raises Interrupted when asked to stop."""

    def __init__(self, config: TrainConfig, spec: EnvSpec, stop: StopFlag) -> None:
        rows = min(config.buffer.capacity, max(REPLAY_ROWS, 2 * least_capacity(config)))
        small = replace(config, buffer=replace(config.buffer, capacity=rows))
        self._config, self._spec, self._stop = config, spec, stop
        self._agent, self._buffer = factories.make_agent(small, spec), factories.make_buffer(small, spec)
        self._agent.train()
        if config.device.startswith("cuda"):  # captured before the first opt step, as in a run
            factories.capture_on_gpu(self._agent, config)
        self._buffer.push(made_up(self._spec, rows, self._config))

    def opt_steps(self, counts: Iterable[int], seconds: float) -> dict[int, float]:
        """Opt steps/s by the number of threads, sampling included, `seconds` for each."""

        def opt() -> None:
            self._stop.check()
            self._agent.opt(self._buffer)

        before = torch.get_num_threads()
        rates: dict[int, list[float]] = {n: [] for n in counts}
        try:
            for _ in range(_ROUNDS):
                for n, measured in rates.items():
                    if measured and measured[0] < rates[min(rates)][0]:
                        continue  # on a busy machine, threads that wait for each other take seconds for an opt step
                    torch.set_num_threads(n)
                    # a GPU cannot answer whether the agent is finite before it is done
                    measured.append(_rate(opt, seconds / _ROUNDS, 2, self._agent.check_finite))
        finally:
            torch.set_num_threads(before)
        return {n: median(measured) for n, measured in rates.items()}

    def compiled_opt_steps(
        self, counts: Sequence[int], seconds: float, only_cached: bool = False
    ) -> dict[int, float]:
        """As `opt_steps`, when compiled, which is done first if the cache lacks it; empty if that cannot or may not be."""
        c, agent = self._config, self._agent
        if c.device != "cpu" or not isinstance(agent, NetworkAgent) or not isinstance(c.agent, NetworkConfig):
            return {}
        compiler = GraphCompiler(agent, c.agent, c.plugins, self._spec, True, self._stop)
        agent.compiling = compiler.use_cached if only_cached else compiler.poll
        try:
            with closing(compiler):
                agent.opt(self._buffer)
        except UsageError as error:
            _logger.warning("%s", first_line(error))
        agent.compiling = None
        graphs = agent.algorithm.graphs
        rates = self.opt_steps(counts, seconds) if graphs else {}
        graphs.clear()
        return rates


def made_up(spec: EnvSpec, n: int, config: TrainConfig) -> Items:
    """N rows of one stream: observations drawn at random where they are fractions, all else 0."""
    rng = np.random.default_rng(0)
    items = empty_items(factories.run_columns(config, spec), n)
    for leaf in spec.obs.leaves:
        if np.dtype(leaf.dtype).kind == "f":
            items[leaf.name][...] = rng.standard_normal(items[leaf.name].shape)
    items["n_steps"][:] = 1
    items["discount"][:] = config.agent.gamma
    return items


def _rate(
    call: Callable[[], object],
    seconds: float,
    warm_up: int = _WARM_UP,
    finish: Callable[[], object] = lambda: None,
) -> float:
    """Calls per second over this time, after calls that are not counted. finish: waits for work that is under way."""
    began = monotonic()
    for _ in range(warm_up):
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
