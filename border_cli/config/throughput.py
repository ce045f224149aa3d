"""How fast a run trains by arithmetic over measured speeds, and what `auto` becomes for actors and environments.

`border_cli.run.probes` measures the speeds; `plan=true` and border-bench show what follows from them.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from border_cli.config.budget import counts
from border_cli.config.resolve import envs_per_actor, is_reproducible, n_actors, reopen, threads
from border_cli.config.resources import actor_processes
from border_cli.config.schema import TrainConfig
from border_cli.config.validate import is_valid

LOOP_S = 35e-6
"""The learner's time per opt step for collecting, granting credit and records [s], beside what is measured. Measured."""


@dataclass(frozen=True)
class Speeds:
    """Measured alone on this machine.

    env_steps: per second, of one actor over all its environments · opt_steps: per second, sampling included.
    """

    env_steps: float
    opt_steps: float


@dataclass(frozen=True)
class Throughput:
    """Predicted speed of training, which part limits it, and the share of time that each side waits."""

    env_steps: float
    opt_steps: float
    bound_by: str
    actors_blocked: float
    learner_blocked: float


@dataclass(frozen=True)
class Measured:
    """Speeds by what `auto` may choose.

    acting: env steps/s of one actor, by its number of environments · learning: opt steps/s, with the fastest number of
    threads · compiled: whether these opt steps are compiled · compiling: whether they
    are eager and the run will compile them; then `speeds` counts them as faster.
    """

    acting: Mapping[int, float]
    learning: float
    compiled: bool = False
    compiling: bool = False

    @property
    def opt_steps_are(self) -> str:
        """What the opt steps are: measured as eager or compiled ones, or a guess about compiled ones."""
        if self.compiling:
            return f"compiled, taken as {COMPILED:g} times as fast as eager ones"
        return "compiled" if self.compiled else "eager"

    def speeds(self, envs: int) -> Speeds:
        """With this number of environments per actor, which need not have been measured."""
        opt_steps = self.learning * (COMPILED if self.compiling else 1)
        return Speeds(self._acting(envs), opt_steps)

    def _acting(self, envs: int) -> float:
        """The time of a step grows linearly with the environments: a fixed part is spent once, on the policy."""
        if envs in self.acting:
            return self.acting[envs]
        few, many = min(self.acting), max(self.acting)
        first_s, last_s = few / self.acting[few], many / self.acting[many]
        return envs / (first_s + (last_s - first_s) * (envs - few) / (many - few))


@dataclass(frozen=True)
class Bench:
    """What border-bench shows.

    ceilings: what each part can do alone, by its name: a rate [1/s] and what it counts · predicted: for the given
    configuration · opt_steps_are: compiled, captured or eager in the prediction · recommended: overrides that are
    predicted to train fastest, for the same ratio · recommended_opt_steps: per second with them.
    """

    ceilings: Mapping[str, tuple[float, str]]
    predicted: Throughput
    opt_steps_are: str
    recommended: Sequence[str]
    recommended_opt_steps: float


def predict(config: TrainConfig, speeds: Speeds, cpus: int) -> Throughput:
    """Predicted speed of training: that of the slower side of the ratio, or what the CPUs allow.

    A ratio that is not enforced is taken as 1.
    """
    ratio = config.trainer.opt_interval or 1.0
    opt_s = 1 / speeds.opt_steps + LOOP_S
    acting_s = ratio / speeds.env_steps  # per opt step, by one actor
    sides = {"acting": acting_s / n_actors(config), "learning": opt_s}
    slower_s = max(sides.values())
    waits = {side: 1 - each_s / slower_s for side, each_s in sides.items()}
    if actor_processes(config):
        sides["CPUs"] = (acting_s + opt_s * min(threads(config), cpus)) / cpus
    bound_by = max(sides, key=lambda side: sides[side])
    each_s = acting_s + opt_s if config.trainer.type == "sync" else sides[bound_by]
    return Throughput(ratio / each_s, 1 / each_s, bound_by, waits["acting"], waits["learning"])


def duration(config: TrainConfig, speeds: Speeds, cpus: int) -> tuple[float, str]:
    """Estimated seconds of training, without evaluations and checkpoints, at most max_time; and which part limits them."""
    t, rates = config.trainer, predict(config, speeds, cpus)
    ends = [] if t.max_time is None else [(t.max_time, "max_time")]
    n_acting = min(n_actors(config), cpus) if actor_processes(config) else n_actors(config)
    warmup_s = t.warmup_period / (speeds.env_steps * n_acting)
    done = counts(config)
    if done.opt_steps is not None:
        ends.append((warmup_s + done.opt_steps / rates.opt_steps, rates.bound_by))
    if t.opt_interval is None and t.max_env_steps is not None:
        ends.append((t.max_env_steps / rates.env_steps, rates.bound_by))
    return min(ends)


ENVS = (1, 2, 4, 8, 16)
"""What `envs_per_actor=auto` may choose. The first and the last are measured."""
ACTORS_AHEAD = 1.1
"""Actors are never equally fast: as in the advice of the live view, they are to carry this much more than the mean."""
COMPILED = 2.0
"""Opt steps that the run will compile count as this much faster: measured are 1.3 to 5.9 times."""
MOST_ON_CLUSTER = 256
"""Actors on a cluster that `auto` may choose. Those for which it has no room wait for nodes."""
_SAME = 0.98
"""More actors or environments must predict a faster run than this share of the fastest."""


def most_actors(config: TrainConfig, cpus: int) -> int:
    """The largest number of actors that `auto` may choose; the given number where it is not `auto`."""
    if config.n_actors is not None or is_reproducible(config):
        return n_actors(config)
    most = MOST_ON_CLUSTER if config.actor_manager.type == "ray" else cpus - 1
    return max(n_actors(config), most)


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
    """The configuration with the numbers of actors and environments that were `auto`, and why these, in one line.

    The fewest actors, with the fewest environments, such that the learner does not wait for them, or else the fastest that
    the CPUs allow: one stays with the learner.

    Args:
        measured: None where no measurement may or need decide: then the smallest numbers are chosen.
    """
    chosen = with_numbers(config, n_actors(config), envs_per_actor(config))
    if measured is not None:
        actors = range(n_actors(config), most_actors(config, cpus) + 1)
        envs = ENVS if config.actor_manager.envs_per_actor is None else (envs_per_actor(config),)
        options = []
        for n, k in itertools.product(actors, envs):
            if is_valid(tried := with_numbers(config, n, k)):
                speeds = measured.speeds(k)
                ahead = replace(speeds, env_steps=speeds.env_steps / ACTORS_AHEAD)
                options.append((predict(tried, ahead, cpus).opt_steps, tried))
        fastest = max((rate for rate, _ in options), default=0.0)
        chosen = next((tried for rate, tried in options if rate >= _SAME * fastest), chosen)
    return chosen, _reason(config, chosen, measured)


def _reason(config: TrainConfig, chosen: TrainConfig, measured: Measured | None) -> str:
    """What was chosen, and why, in one line; empty where nothing was `auto`."""
    n, k = n_actors(chosen), envs_per_actor(chosen)
    if config.n_actors is not None and config.actor_manager.envs_per_actor is not None:
        return ""
    numbers = f"n_actors={n} envs_per_actor={k}"
    if measured is None:
        return f"{numbers}: a reproducible run decides nothing by a measurement"
    speeds = measured.speeds(k)
    return (
        f"{numbers}: they can take {n * speeds.env_steps:,.0f} env steps/s, "
        f"and the learner's {speeds.opt_steps:,.0f} {'compiled ' if measured.compiling else ''}opt steps/s need "
        f"{(config.trainer.opt_interval or 0) * speeds.opt_steps:,.0f}"
    )


def open_numbers(config: TrainConfig, opt_interval: float) -> TrainConfig:
    """The configuration with `auto` for actors and environments, and with this ratio.

    What follows from these numbers, such as the tolerance, is open again. Lockstep, which would fix them, is off.
    """
    config = reopen(config)
    return replace(
        config,
        n_actors=None,
        actor_manager=replace(config.actor_manager, envs_per_actor=None),
        trainer=replace(config.trainer, opt_interval=opt_interval, lockstep=False),
    )


def with_numbers(config: TrainConfig, actors: int, envs: int) -> TrainConfig:
    """The configuration with these numbers of actors and of environments per actor."""
    manager = replace(config.actor_manager, envs_per_actor=envs)
    return replace(config, n_actors=actors, actor_manager=manager)
