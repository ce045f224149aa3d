"""Speeds of a run's two sides, each measured alone here: for `plan=true`, for what is `auto`, and for border-bench.

They are measured as they run later: an actor in a child process, the learner in this one.
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
from border_cli.config import resolve, throughput
from border_cli.config.resolve import making_s, may_switch, n_actors, threads
from border_cli.config.schema import TrainConfig
from border_cli.config.throughput import Measured
from border_cli.config.validate import least_capacity
from border_cli.core.errors import UsageError, first_line
from border_cli.core.spaces import EnvSpec
from border_cli.core.types import AFTER_TRAINING, MAX_STEP, Items, empty_items
from border_cli.run import factories
from border_cli.runtime import machine, seeding
from border_cli.runtime.child import Child, ChildError, call
from border_cli.runtime.stopping import StopFlag

_logger = logging.getLogger(__name__)
PLAN_S = 0.5
"""How long a plan and border-bench measure each speed."""
AUTO_S = 0.1
"""How long each speed is measured that decides what `auto` becomes: it delays the run."""
REPLAY_ROWS = 4096
"""In the replay that the opt steps sample from; fewer if the configuration has fewer."""
_WARM_UP = 20
"""Calls before a measurement, because the first ones are slow; fewer if the measurement is too short for them."""
_ROUNDS = 3
"""Numbers of threads are measured in turn, so that other load on the machine affects all of them."""


def measure(
    config: TrainConfig,
    spec: EnvSpec,
    envs: Iterable[int],
    seconds: float,
    stop: StopFlag,
    compile: bool = False,
) -> Measured:
    """The speeds of both sides with these numbers of environments, `seconds` for each.

    compile: compile the opt step unless the cache has it; otherwise opt steps that the run will compile are estimated.
    Raises UsageError if the environment raises, Interrupted when asked to stop.
    """
    if config.trainer.type == "device":
        raise UsageError(
            "trainer=device: only a run shows how fast a simulator is", allowed="a run, without plan=true"
        )
    (acted, actor_cpus), learner = acting(config, envs, seconds, stop), Learner(config, spec, stop)
    is_open = may_switch(config) and not config.threads
    counts = throughput.up_to(machine.cpus()) if is_open else (threads(config),)
    n_opt_steps = resolve.counts(config).opt_steps
    how = getattr(config.agent.resolve(n_opt_steps, may_switch(config)), "compile", "false")
    # On a GPU the opt steps that are measured are the captured ones already.
    form = "captured" if config.device.startswith("cuda") and how != "false" else "eager"
    rates = learner.opt_steps(counts, seconds)
    fastest = max(rates.values())
    learned = {(form, n): rate for n, rate in rates.items()}
    if config.device == "cpu" and how != "false":
        is_long = n_opt_steps is None or n_opt_steps / fastest >= COMPILING_PAYS_S
        if compiled := learner.compiled_opt_steps(counts, seconds, only_cached=not compile):
            learned |= {("compiled", n): rate for n, rate in compiled.items()}
            form, fastest = "compiled", max(compiled.values())
        elif not compile and (how == "true" or is_long):
            form = f"compiled, taken as {throughput.COMPILED:g} times as fast as eager ones"
            fastest *= throughput.COMPILED
    return Measured(acted, learned, fastest, form, actor_cpus)


# -- an actor, in a child process --------------------------------------------------


def acting(
    config: TrainConfig, envs: Iterable[int], seconds: float, stop: StopFlag
) -> tuple[dict[int, float], float]:
    """Env steps/s of one actor, by its number of environments, and the CPUs that it keeps busy.

    Raises UsageError if the environment raises.
    """
    manager, counts = config.actor_manager, sorted(set(envs))
    configs = [replace(config, actor_manager=replace(manager, envs_per_actor=n)) for n in counts]
    limit_s = len(configs) * (making_s(config) + 10 * seconds)
    try:
        child = Child("act alone", call, (act_alone, (configs, seconds)))
        acted: list[tuple[float, float]] = child.answer(limit_s, stop.check)
    except (TimeoutError, ChildError) as e:
        allowed = "a higher actor_manager.start_timeout_s" if isinstance(e, TimeoutError) else ""
        raise UsageError(f"an actor cannot be tried: {first_line(e)}", allowed=allowed) from e
    rates, cpus = zip(*acted, strict=True)
    return dict(zip(counts, rates, strict=True)), max(cpus)


def act_alone(configs: Iterable[TrainConfig], seconds: float) -> list[tuple[float, float]]:
    """Env steps/s of one actor of each configuration over all of its environments, items included, and the CPUs that it
    and its children keep busy meanwhile.

    It acts as in most of a run: with a model, after the random actions at the start.
    """
    acted = []
    for config in configs:
        actor_id = factories.actor_spec(config).actor_id(0, 0, n_actors(config))
        with closing(factories.actor_env(actor_id, config)) as env:
            policy = factories.actor_policy(actor_id, env.spec, config)
            policy.sync_model(policy.model_info())
            processor = factories.actor_processor(actor_id, env.spec, config)
            sampler = Sampler(env, policy, processor, partial(seeding.first_seed, config.seed, 0, 0))
            sampler.begin()
            before_s, began_s = machine.cpu_seconds(), monotonic() - machine.queued_seconds()
            rate = env.n_envs * _rate(partial(sampler.sample, (), AFTER_TRAINING), seconds)
            # without the time in which other processes had the CPU
            acted_s = monotonic() - machine.queued_seconds() - began_s
            acted.append((rate, (machine.cpu_seconds() - before_s) / acted_s))
    return acted


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
        """As `opt_steps`, for compiled opt steps. Compiles first if the cache lacks them; empty if this is not possible
        or not allowed.
        """
        c, agent = self._config, self._agent
        if c.device != "cpu" or not isinstance(agent, NetworkAgent) or not isinstance(c.agent, NetworkConfig):
            return {}
        compiler = GraphCompiler(agent, c.plugins, True, self._stop)
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
    """N rows of one stream: random numbers in observations of floats, all else 0."""
    rng = np.random.default_rng(0)
    items = empty_items(factories.run_columns(config, spec), n)
    for leaf in spec.obs.leaves:
        if np.dtype(leaf.dtype).kind == "f":
            items[leaf.name][...] = rng.standard_normal(items[leaf.name].shape)
    items["step"][:] = np.arange(n) % MAX_STEP
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
