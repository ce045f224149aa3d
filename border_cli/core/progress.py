"""What a person watching a run sees: one snapshot of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

ENDED = ("done", "stopped", "failed")
"""Phases after which nothing comes."""


@dataclass
class Progress:
    """The state of a run at one moment.

    phase: "starting", "warm-up", "training", "evaluating", "saving", "stopping"; at the end "done", "stopped" (by a
    signal) or "failed". Rates, shares and the lag are over the recent past (about ten seconds), None before there is
    any. recent_returns: the last 100 training episodes, oldest first. evaluations: (opt steps, mean return) of each
    so far. best: the best of them.
    ratio_target, ratio_actual: env steps per opt step; None when free or before the first opt step.
    """

    phase: str = "starting"
    seconds: float = 0.0
    opt_steps: int = 0
    env_steps: int = 0
    max_opts: int | None = None
    max_env_steps: int | None = None
    max_time: float | None = None
    warmup_period: int = 0
    opt_steps_per_sec: float | None = None
    samples_per_sec: float | None = None
    ratio_target: float | None = None
    ratio_actual: float | None = None
    actors_blocked: float | None = None
    learner_blocked: float | None = None
    policy_lag_mean: float | None = None
    replay_size: int = 0
    replay_capacity: int = 0
    n_actors: int = 0
    actors_alive: int = 0
    asynchronous: bool = True
    recent_returns: list[float] = field(default_factory=list)
    evaluations: list[tuple[int, float]] = field(default_factory=list)
    best: tuple[int, float] | None = None


@dataclass(frozen=True)
class SweptJob:
    """One job of a sweep. settings: what was typed for it alone · score: of its best model, NaN if there is none."""

    number: int
    settings: str
    score: float
    exit_code: int
    run_dir: str


class View(Protocol):
    """Shows a run to a person."""

    def show(self, progress: Progress) -> None:
        """Cheap to call at any time: the view itself decides when to draw (live: 4 times a second at most; plain: when
        nothing was printed for 30 s).
        """

    def note(self, message: str) -> None:
        """One line that stays: a new best, a checkpoint, a warning."""

    def close(self) -> None:
        """Leave the terminal as it was found."""
