"""What bounds a run, and what would help: one line from one snapshot.

Who waits is not who is slow. Actors that wait for credit show a slow learner; a learner that waits for env
steps shows slow actors; when both wait, the hand-over between them is what costs.
"""

from __future__ import annotations

import math

from border_cli.core.progress import Progress
from border_cli.recorders import figures

WAITS = 0.2
"""Share of blocked time from which on a side counts as waiting; less is noise of chunks and scheduling."""
_HEADROOM = 1.1
"""Actors are never equally fast: a suggested number of them carries this much more than the mean asks for."""
_FURTHEST = 4
"""A measurement is not trusted to say more than this many times the present number of actors."""


def advice(progress: Progress, cores: int | None = None) -> str:
    """One line for a person. cores: processor cores of this machine, where known: they limit what it says."""
    if progress.phase == "starting":
        return _starting(progress)
    if progress.phase == "stopping":
        return "stopping: the last records and a checkpoint are written"
    if progress.phase == "warm-up":
        return _warm_up(progress)
    return _bound(progress, cores)


def _starting(p: Progress) -> str:
    who = (
        "the actors make their environments and load the first model"
        if p.asynchronous
        else "making environments"
    )
    return f"starting: {who}"


def _warm_up(p: Progress) -> str:
    left = p.warmup_period - p.env_steps
    if left <= 0:
        return "warm-up: the first opt step waits for a batch"
    time = f", about {figures.duration(math.ceil(left / p.samples_per_sec))}" if p.samples_per_sec else ""
    return f"warm-up: {figures.counted(left, 'env step')} to go before the first opt step{time}"


def _bound(p: Progress, cores: int | None) -> str:
    """Evaluations and checkpoints are short: meanwhile, what bounded the run before stays the answer."""
    if not p.asynchronous:
        return _sync()
    actors, learner = p.actors_blocked, p.learner_blocked
    if p.opt_steps == 0 or actors is None or learner is None or not math.isfinite(actors + learner):
        return "too early to say what bounds the run"
    if p.ratio_target is None:
        return _free_running(p)
    if actors >= WAITS and learner >= WAITS:
        return _hand_over(actors, learner)
    if actors >= WAITS:
        return _learner_bound(p, actors, cores)
    if learner >= WAITS:
        return _actor_bound(p, learner, cores)
    return (
        f"balanced: actors wait {figures.share(actors)}, the learner {figures.share(learner)} of the time; "
        "only faster hardware or cheaper steps on both sides would help"
    )


def _sync() -> str:
    return (
        "sync: acting and opt steps take turns in one thread; trainer=async lets them overlap, "
        "but the same seed no longer gives the same bits"
    )


def _free_running(p: Progress) -> str:
    ratio = p.ratio_actual
    if ratio is None:
        ratio = max(0, p.env_steps - p.warmup_period) / p.opt_steps
    held = figures.number(ratio)
    if ratio <= 0 or not math.isfinite(ratio):
        return "free-running: nothing holds env steps and opt steps together; trainer.opt_interval would"
    return (
        f"free-running: {held} env steps per opt step, and nothing holds that; "
        f"trainer.opt_interval={ratio:.2g} would make runs comparable"
    )


def _hand_over(actors: float, learner: float) -> str:
    return (
        f"hand-over-bound: the actors wait {figures.share(actors)} of the time and the learner "
        f"{figures.share(learner)}, each for the other; a larger trainer.ratio_tolerance lets them overlap"
    )


def _learner_bound(p: Progress, blocked: float, cores: int | None) -> str:
    """More actors would only wait more. Their idle time can be saved, or used for more env steps."""
    found = f"learner-bound: the actors wait {figures.share(blocked)} of the time"
    enough = max(1, math.ceil(p.n_actors * (1.0 - blocked) * _HEADROOM))
    if enough >= p.n_actors:
        return (
            f"{found}; a smaller agent.batch_size or another device speeds up the learner, "
            "a larger trainer.opt_interval asks less of it"
        )
    crowded = cores is not None and p.n_actors >= cores
    gain = "frees cores" if crowded else "would do"
    return (
        f"{found}; n_actors={enough} {gain}, a larger trainer.opt_interval uses all but learns less from each"
    )


def _actor_bound(p: Progress, blocked: float, cores: int | None) -> str:
    """The learner's idle time can be filled by more env steps, or by more opt steps on the same ones."""
    found = f"actor-bound: the learner waits {figures.share(blocked)} of the time"
    instead = "or a smaller trainer.opt_interval learns more from the same env steps"
    more = _actors_to_fill(p.n_actors, blocked, cores)
    if more > p.n_actors:
        return f"{found}; n_actors={more} would feed it better, {instead}"
    return f"{found} and every core has its actor; try actor_manager.envs_per_actor, {instead}"


def _actors_to_fill(n_actors: int, blocked: float, cores: int | None) -> int:
    """Actors that would keep the learner busy, one core left to the learner."""
    wanted = math.ceil(n_actors / max(1.0 - blocked, 1.0 / _FURTHEST))
    return wanted if cores is None else min(wanted, cores - 1)
