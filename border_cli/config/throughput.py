"""How fast a run trains by arithmetic over measured speeds, and what `auto` becomes for actors and environments.

`border_cli.run.probes` measures the speeds; `plan=true` and border-bench show what follows from them.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, replace

from border_cli.config.resolve import counts, envs_per_actor, is_reproducible, n_actors, reopen, threads
from border_cli.config.resource_checks import actor_processes
from border_cli.config.schema import TrainConfig
from border_cli.config.validate import is_valid

LOOP_S = 35e-6
"""The learner's time per opt step for collecting, granting credit and records [s], beside what is measured. Measured."""
COMPILED = 2.0
"""Opt steps that the run will compile count as this much faster: measured are 1.3 to 5.9 times."""
ENVS = (1, 2, 4, 8, 16)
"""What `envs_per_actor=auto` may choose. The first and the last are measured."""
MOST_ON_CLUSTER = 256
"""Actors on a cluster that `auto` may choose. Those for which it has no room wait for nodes."""
MOST_WAITING = 16
"""Actors beside the learner that `auto` may choose, however few CPUs there are, if their environments wait."""
_WAITS, _LEAST = 0.5, 0.01
"""An actor that keeps less of a CPU busy waits for its environments: more actors than CPUs can act at once."""
_ACTORS_AHEAD = 1.1
"""Actors are never equally fast: together they are planned for this many times the env steps that the learner needs."""
_SAME = 0.98
"""More actors or environments must predict a faster run than this share of the fastest."""


@dataclass(frozen=True)
class Measured:
    """Speeds of actors and learner, each measured alone on this machine.

    acting: env steps/s of one actor, by its number of environments · learning: opt steps/s, sampling included, by the form
    of the opt step and the number of threads · opt_steps: the opt steps/s expected of the run · form: the form of these
    opt steps · actor_cpus: the CPUs that an actor keeps busy; less than 1 if its environments wait for something else.
    """

    acting: Mapping[int, float]
    learning: Mapping[tuple[str, int], float]
    opt_steps: float
    form: str = "eager"
    actor_cpus: float = 1.0

    @property
    def busy(self) -> float:
        """CPUs that one actor keeps busy, as it is planned: 1 unless it clearly waits, because 0.1 s are measured."""
        return max(self.actor_cpus, _LEAST) if self.actor_cpus < _WAITS else 1.0

    def env_steps(self, envs: int) -> float:
        """Env steps/s of one actor with this number of environments.

        Between those measured, the time of a step grows linearly: a fixed part of it is spent once, on the policy.
        """
        if envs in self.acting:
            return self.acting[envs]
        few, many = min(self.acting), max(self.acting)
        first_s, last_s = few / self.acting[few], many / self.acting[many]
        return envs / (first_s + (last_s - first_s) * (envs - few) / (many - few))


@dataclass(frozen=True)
class Throughput:
    """Predicted speed of training [1/s], which part limits it, and how many CPUs it keeps busy if there are enough."""

    env_steps: float
    opt_steps: float
    bound_by: str
    busy_cpus: float


def predict(config: TrainConfig, measured: Measured, cpus: int, ahead: float = 1.0) -> Throughput:
    """Predicted speed of training: that of the slower side of the ratio, or what the CPUs allow.

    A ratio that is not enforced is taken as 1. ahead: the actors are planned for this many times the env steps needed.
    """
    ratio = config.trainer.opt_interval or 1.0
    opt_s = 1 / measured.opt_steps + LOOP_S
    acting_s = ratio * ahead / measured.env_steps(envs_per_actor(config))  # per opt step, by one actor
    sides = {"acting": acting_s / n_actors(config), "learning": opt_s}
    acting_cpu_s = acting_s * measured.busy
    busy_cpus = (acting_cpu_s + opt_s * threads(config)) / max(sides.values())
    if actor_processes(config):
        sides["CPUs"] = (acting_cpu_s + opt_s * min(threads(config), cpus)) / cpus
    bound_by = max(sides, key=lambda side: sides[side])
    each_s = acting_s + opt_s if config.trainer.type == "sync" else sides[bound_by]
    return Throughput(ratio / each_s, 1 / each_s, bound_by, busy_cpus)


def duration(config: TrainConfig, measured: Measured, cpus: int) -> tuple[float, str]:
    """Estimated seconds of training, without evaluations and checkpoints, at most max_time; and which part limits them."""
    t, rates = config.trainer, predict(config, measured, cpus)
    ends = [] if t.max_time is None else [(t.max_time, "max_time")]
    n_acting = min(n_actors(config), cpus / measured.busy) if actor_processes(config) else n_actors(config)
    warmup_s = t.warmup_period / (measured.env_steps(envs_per_actor(config)) * n_acting)
    opt_steps = counts(config).opt_steps
    if opt_steps is not None:
        ends.append((warmup_s + opt_steps / rates.opt_steps, rates.bound_by))
    if t.opt_interval is None and t.max_env_steps is not None:
        ends.append((t.max_env_steps / rates.env_steps, rates.bound_by))
    return min(ends)


# -- what `auto` becomes ----------------------------------------------------


def most_actors(config: TrainConfig, cpus: int, busy: float = 1.0) -> int:
    """The most actors that `auto` may choose if each keeps this many CPUs busy; the given number if it is not `auto`."""
    if config.n_actors is not None or is_reproducible(config):
        return n_actors(config)
    here = min(int((cpus - 1) / busy), max(MOST_WAITING, cpus - 1))
    return max(n_actors(config), MOST_ON_CLUSTER if config.actor_manager.type == "ray" else here)


def env_counts(config: TrainConfig) -> tuple[int, ...]:
    """Numbers of environments per actor with which acting is to be measured; empty where it decides nothing."""
    if is_reproducible(config):
        return ()
    if config.actor_manager.envs_per_actor is None:
        return ENVS[0], ENVS[-1]
    return () if config.n_actors is not None else (envs_per_actor(config),)


def up_to(cpus: int) -> tuple[int, ...]:
    """Numbers of threads worth a measurement: 1, 2, 4, … and one per CPU."""
    return (*(2**i for i in range(cpus.bit_length()) if 2**i < cpus), cpus)


def decide(config: TrainConfig, measured: Measured | None, cpus: int) -> tuple[TrainConfig, str]:
    """The configuration with the numbers of actors and environments, of which one is `auto`, and why these, in one line.

    These are the fewest actors, with the fewest environments, for which the learner does not wait, or else the fastest
    choice that the CPUs allow. One CPU is left for the learner. measured: None if no measurement is needed or allowed; the
    smallest numbers are then chosen.
    """
    chosen = with_numbers(config, n_actors(config), envs_per_actor(config))
    if measured is not None:
        actors = range(n_actors(config), most_actors(config, cpus, measured.busy) + 1)
        envs = ENVS if config.actor_manager.envs_per_actor is None else (envs_per_actor(config),)
        options = [
            (predict(tried, measured, cpus, _ACTORS_AHEAD).opt_steps, tried)
            for numbers in itertools.product(actors, envs)
            if is_valid(tried := with_numbers(config, *numbers))
        ]
        fastest = max((rate for rate, _ in options), default=0.0)
        chosen = next((tried for rate, tried in options if rate >= _SAME * fastest), chosen)
    n, k = n_actors(chosen), envs_per_actor(chosen)
    if measured is None:
        why = "a reproducible run decides nothing by a measurement"
    else:
        needed = (config.trainer.opt_interval or 0) * measured.opt_steps
        why = (
            f"they can take {n * measured.env_steps(k):,.0f} env steps/s, "
            f"and the learner's {measured.opt_steps:,.0f} opt steps/s ({measured.form}) need {needed:,.0f}"
        )
    return chosen, f"n_actors={n} envs_per_actor={k}: {why}"


def recommended(config: TrainConfig, measured: Measured, cpus: int) -> TrainConfig:
    """The configuration with the numbers of actors and environments that are predicted to be fastest at this ratio.

    What follows from these numbers, such as the tolerance, is open again. Lockstep, which would fix them, is off.
    """
    config = reopen(config)
    manager = replace(config.actor_manager, envs_per_actor=None)
    trainer = replace(config.trainer, opt_interval=config.trainer.opt_interval or 1.0, lockstep=False)
    config = replace(config, n_actors=None, actor_manager=manager, trainer=trainer)
    return decide(config, measured, cpus)[0]


def with_numbers(config: TrainConfig, actors: int, envs: int) -> TrainConfig:
    """The configuration with these numbers of actors and of environments per actor."""
    manager = replace(config.actor_manager, envs_per_actor=envs)
    return replace(config, n_actors=actors, actor_manager=manager)
