"""The state of a run: snapshots while it runs, and its result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from border_cli.core.errors import ExitCode
from border_cli.core.types import ActorStat, Evaluation

ENDED = ("done", "stopped", "failed")
"""The last phases of a run."""


@dataclass
class Progress:
    """The state of a run at one moment.

    phase: "starting", "warm-up", "compiling" (while the first opt step waits for it), "training", "evaluating", "saving",
    "stopping"; at the end "done", "stopped" (by a signal) or "failed". Rates, shares and the lag are over the recent past
    (about ten seconds), None before there is any. recent_returns: the last 100 training episodes, oldest first.
    evaluations: (opt steps, mean return) of each so far. best: the best of them. eval_infos: see `Evaluation`.
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
    eval_infos: dict[str, float] = field(default_factory=dict)
    best: tuple[int, float] | None = None
    best_confirmed: bool = False


@dataclass(frozen=True)
class RunResult:
    """How a run ended, and what it reached.

    Attributes:
        ended_by: the name of the budget, "stop_return", "sigint", "sigterm" or "error".
        best, last: the evaluation of the best and of the last model on the same episodes; None where there was none.
        start: score of the weights that the run started from, with `init_from`.
        best_confirmed: whether these were fresh episodes. If not, the best model was chosen by this score.
        opt_steps, env_steps, episodes, seconds: totals of training, those of earlier launches included.
        samples_per_opt_step: env steps after the warm-up per opt step; None before the first opt step.
        actors_blocked, learner_blocked: share of this launch that each side waited; None in sync or when unknown.
        bound: one sentence on what bounds the speed of the run.
        expected: the figure of the preset and whether the best model reached it; empty without one.
        exact: whether the run equals an uninterrupted one; None where runs cannot be repeated.
        dropped: records that could not be written, by file.
    """

    ended_by: str
    code: ExitCode = ExitCode.DONE
    error: str | None = None
    best: Evaluation | None = None
    last: Evaluation | None = None
    best_confirmed: bool = False
    start: float | None = None
    opt_steps: int = 0
    env_steps: int = 0
    episodes: int = 0
    seconds: float = 0.0
    samples_per_opt_step: float | None = None
    actors: Sequence[ActorStat] = ()
    actors_blocked: float | None = None
    learner_blocked: float | None = None
    bound: str = ""
    expected: str = ""
    exact: bool | None = None
    dropped: Mapping[str, int] = field(default_factory=dict)

    @property
    def samples_per_sec(self) -> float | None:
        """Env steps that entered the replay, per second of training; None before it began."""
        return self.env_steps / self.seconds if self.seconds > 0 else None

    @property
    def opt_steps_per_sec(self) -> float | None:
        """Opt steps per second of training; None before it began."""
        return self.opt_steps / self.seconds if self.seconds > 0 else None


@dataclass(frozen=True)
class JobProgress:
    """How far one run of a sweep is.

    Attributes:
        phase: as in `Progress`; before the run has started and after it has ended, the state of the job.
        seconds: duration of the run so far; None before it has started.
        fraction, eta_s: share of the budget that ends the run first, and the seconds until then; None while unknown.
        last, best: scores of the last and of the best model; None before there is one.
        last_at: opt step of the last model that was evaluated.
    """

    phase: str
    seconds: float | None = None
    fraction: float | None = None
    eta_s: float | None = None
    last: float | None = None
    last_at: int | None = None
    best: float | None = None


class View:
    """Shows a run to a person. This one shows nothing."""

    def show(self, progress: Progress) -> None:
        """Cheap to call at any time: the view itself decides when to draw (live: 4 times a second at most; plain: when
        nothing was printed for 25 s).
        """

    def note(self, message: str) -> None:
        """One line that stays: a new best, a checkpoint, a warning."""

    def close(self) -> None:
        """Leave the terminal as it was found."""
