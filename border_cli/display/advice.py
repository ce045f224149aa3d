"""What bounds a run, and what would help: one line from one snapshot.

Who waits is not who is slow. Actors that wait for credit show a slow learner; a learner that waits for env
steps shows slow actors; when both wait, the hand-over between them is what costs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from border_cli.core import format
from border_cli.core.progress import Progress


@dataclass(frozen=True)
class Budget:
    """One budget: `used` of `limit`, in `unit`. eta_s: seconds until it is used up and the last model evaluated, None while
    that is unknown.
    """

    unit: str
    used: float
    limit: float
    eta_s: float | None

    @property
    def fraction(self) -> float:
        """Share of it that is used, between 0 and 1."""
        return min(1.0, max(0.0, self.used / self.limit)) if self.limit > 0 else 1.0


def first_to_end(p: Progress) -> Budget | None:
    """The budget with the least time left, or None without one; the one used most while a rate is not known."""
    # Actors run as fast as they can in the warm-up, so rates from there say nothing about the rest of the run.
    known = p.opt_steps > 0
    budgets = []
    for unit, used, limit, per_sec in (
        ("opt steps", p.opt_steps, p.max_opts, p.opt_steps_per_sec if known else None),
        ("env steps", p.env_steps, p.max_env_steps, p.samples_per_sec if known else None),
        ("s", p.seconds, p.max_time, 1.0),
    ):
        if limit is not None:
            left = max(0.0, limit - used)
            eta_s = 0.0 if left == 0 else left / per_sec if per_sec else None
            if eta_s is not None and (left == 0 or p.last_evaluation_s is not None):
                eta_s = None if p.last_evaluation_s is None else eta_s + p.last_evaluation_s
            budgets.append(Budget(unit, used, limit, eta_s))
    if any(budget.eta_s is None for budget in budgets):
        return max(budgets, key=lambda budget: budget.fraction)
    return min(budgets, key=lambda budget: budget.eta_s or 0.0, default=None)


WAITS = 0.2
"""Share of blocked time from which on a side counts as waiting; less is noise of chunks and scheduling."""
_HEADROOM = 1.1
"""Actors are never equally fast: a suggested number of them carries this much more than the mean asks for."""
_FURTHEST = 4
"""A measurement is not trusted to say more than this many times the present number of actors."""


_PHASES = {
    "starting": "starting: making the environments; each actor loads the first model",
    "compiling": "compiling: the first opt step waits for its machine code, so that the same seed gives the same bits",
    "stopping": "stopping: writing the last records and a checkpoint",
}


def advice(p: Progress, cores: int | None = None) -> str:
    """One line for a person. cores: processor cores of this machine, where known; they limit the suggestions."""
    if p.phase in _PHASES:
        return _PHASES[p.phase]
    if p.phase == "warm-up":
        left = p.warmup_period - p.env_steps
        if left <= 0:
            return "warm-up: the first opt step waits for a batch"
        return f"warm-up: {format.counted(left, 'env step')} to go before the first opt step"
    # Evaluations and checkpoints are short: during them, what limited the run before stays the answer.
    if not p.asynchronous:
        return (
            "sync: acting and opt steps take turns in one thread; trainer=async lets them overlap, "
            "but the same seed no longer gives the same bits"
        )
    if p.opt_steps == 0 or p.actors_blocked is None or p.learner_blocked is None:
        return "not measured yet: what bounds the speed of the run"
    if p.ratio_target is None:
        return "ratio not enforced: trainer.opt_interval=<env steps per opt step> would make runs comparable"
    return _slower_side(p, p.actors_blocked, p.learner_blocked, cores)


def _slower_side(p: Progress, actors: float, learner: float, cores: int | None) -> str:
    """Which side limits the other, from the share of time that each is blocked, and what would help."""
    actors_wait, learner_waits = (f"{format.share(share)} of the time" for share in (actors, learner))
    if actors < WAITS and learner < WAITS:
        return (
            f"balanced: the actors wait {actors_wait}, the learner {learner_waits}; "
            "only faster hardware, or cheaper env steps and opt steps, would help"
        )
    if actors >= WAITS and learner >= WAITS:
        return (
            f"hand-over-bound: the actors wait {actors_wait}, the learner {learner_waits}; "
            "a larger trainer.ratio_tolerance lets both work at the same time"
        )
    if actors >= WAITS:  # more actors would only wait more
        enough = max(1, math.ceil(p.n_actors * (1.0 - actors) * _HEADROOM))
        if enough >= p.n_actors:
            return (
                f"well-chosen: n_actors={p.n_actors} is enough, with {actors_wait} to spare; a smaller "
                "agent.batch_size or another device makes opt steps faster, a larger trainer.opt_interval needs fewer"
            )
        return (
            f"learner-bound: the actors wait {actors_wait}; n_actors={enough} would be enough; "
            "a larger trainer.opt_interval uses more env steps, with fewer opt steps on each"
        )
    instead = "or a smaller trainer.opt_interval does more opt steps per env step"
    more = math.ceil(p.n_actors / max(1.0 - learner, 1.0 / _FURTHEST))
    more = more if cores is None else min(more, cores - 1)  # one core stays with the learner
    if more > p.n_actors:
        return (
            f"actor-bound: the learner waits {learner_waits}; n_actors={more} would keep it busy, {instead}"
        )
    return (
        f"actor-bound: the learner waits {learner_waits}, and learner and actors have every core; "
        f"try a larger actor_manager.envs_per_actor, {instead}"
    )
