"""Every metric, declared once: its unit, and whether it is a value of training or of the clock.

Clock metrics are what two runs with the same seed may differ in (and policy lag when actors run free).
`agent/<name>` metrics are declared by their agent through `declare`.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Metric:
    """name, unit, kind ("value" or "clock") and what it says."""

    name: str
    unit: str
    kind: str
    help: str


METRICS: dict[str, Metric] = {}


def declare(name: str, unit: str, help: str, kind: str = "value") -> None:
    """Add a metric. Declaring the same name with other words is an error."""
    metric = Metric(name, unit, kind, help)
    if METRICS.setdefault(name, metric) != metric:
        raise ValueError(f"metric {name!r} is declared twice")


def is_clock(name: str) -> bool:
    """Whether a metric may differ between two runs of the same seed."""
    return METRICS[name].kind == "clock"


declare("train/episode_return", "reward", "mean raw return of the episodes that ended in the interval")
declare("train/episode_length", "env steps", "mean length of the episodes that ended in the interval")
declare("train/episodes", "episodes", "episodes that ended in the interval")
declare("eval/return_mean", "reward", "mean return over the evaluation's episodes: the score")
declare("eval/return_std", "reward", "standard deviation over the evaluation's episodes")
declare("eval/return_min", "reward", "lowest return of the evaluation")
declare("eval/return_max", "reward", "highest return of the evaluation")
declare("eval/length_mean", "env steps", "mean episode length of the evaluation")
declare("eval/confirmed_mean", "reward", "mean return of a candidate for the best model over fresh episodes")
declare("eval/confirmed_std", "reward", "standard deviation over those episodes")
declare(
    "eval/skipped", "evaluations", "models not judged so far, as a newer one came before their turn", "clock"
)
declare(
    "agent/skipped_steps", "opt steps", "opt steps of the interval skipped for a loss or gradient not finite"
)
declare("throughput/samples_total", "env steps", "samples that entered the replay so far")
declare("throughput/samples_per_opt_step", "env steps", "actual ratio since the end of the warm-up")
declare("throughput/samples_per_sec", "env steps/s", "samples per second over the interval", "clock")
declare("throughput/opt_steps_per_sec", "opt steps/s", "opt steps per second over the interval", "clock")
declare(
    "async/policy_lag_mean",
    "opt steps",
    "mean age of the model that chose the actions, at insertion, over env steps",
    "clock",
)
declare("async/policy_lag_p95", "opt steps", "95th percentile of the same", "clock")
declare(
    "async/actors_blocked", "share", "share of the actors' time spent waiting for credit or room", "clock"
)
declare("async/learner_blocked", "share", "share of the learner's time spent waiting for env steps", "clock")
declare("async/actors_alive", "actors", "actors running")
declare("async/restarts", "restarts", "actors, and environments of theirs, started again so far")
declare("replay/size", "rows", "rows that can be sampled")
declare("replay/fill", "share", "rows that can be sampled, over the capacity")
declare("time/opt_ms", "ms", "mean time of one opt step, sampling included", "clock")
declare(
    "time/collect_ms", "ms", "mean time of looking for what has arrived and taking it in, each time", "clock"
)
declare("time/eval_ms", "ms", "time of the evaluation, confirming included", "clock")
declare("time/save_ms", "ms", "mean time of writing a checkpoint", "clock")
declare(
    "checkpoint/failed_saves",
    "saves",
    "saves of this launch that the disk refused, from the first on; a matter of the machine, not of the seed",
    "clock",
)
