"""What is measured while training: interval values for the records, and the recent past for the person watching."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Any

from border_cli.core.errors import UnfitStateError
from border_cli.core.items import Chunk, finished_episodes
from border_cli.core.progress import Progress
from border_cli.core.protocols import ActorStat, Evaluation
from border_cli.core.record import Mean, percentile
from border_cli.core.state import count, listed, number, require
from border_cli.replay.limiter import RatioLimiter

_WINDOW_S = 10.0
_REFRESH_S = 0.25
_RECENT_EPISODES = 100
_MOST_LAGS = 2**16
"""Of one interval; where nothing is ever recorded, it has no end."""


@dataclass
class _Sample:
    """Totals at one moment."""

    time: float
    opt_steps: int
    env_steps: int
    blocked_s: float
    excluded_s: float
    actors_blocked_s: float
    actors_s: float
    actors: int  # those alive


class Telemetry:
    """Takes notes for the loop. `progress` is one object, updated in place.

    limiter: the counts. seconds_before: how long the run took until it was interrupted, where it is resumed [s].
    """

    def __init__(self, limiter: RatioLimiter, progress: Progress, seconds_before: float = 0.0) -> None:
        self.progress = progress
        self._limiter = limiter
        self._launched = monotonic()
        self._began = self._launched - seconds_before
        self.blocked_s = 0.0
        self._excluded_s = 0.0
        self.episodes = 0
        self._returns, self._lengths, self._interval_episodes = Mean(), Mean(), 0
        self._opt_ms, self._collect_ms, self._save_ms = Mean(), Mean(), Mean()
        self._failed_saves = 0
        self._lags: deque[tuple[int, int]] = deque(maxlen=_MOST_LAGS)  # with the env steps of their chunks
        self._recent_lags: deque[tuple[int, int]] = deque(maxlen=1000)
        self._recent_returns: deque[float] = deque(maxlen=_RECENT_EPISODES)
        self._window: deque[_Sample] = deque()
        self._last = self._sample([])
        self._next_refresh = 0.0

    @property
    def seconds(self) -> float:
        """Since the run began, without the time between an interruption and going on."""
        return monotonic() - self._began

    @property
    def blocked_share(self) -> float:
        """How much of this launch the learner had nothing to do."""
        return _share(self.blocked_s, max(monotonic() - self._launched, 1e-9))

    def state(self, reproducible: bool) -> dict[str, Any]:
        """What was counted since the last record, as JSON values. Nothing of the clock.

        reproducible: policy lag is the same in every run of this seed, so it is told too.
        """
        return {
            "episodes": self.episodes,
            "interval_episodes": self._interval_episodes,
            "returns": self._returns.state(),
            "lengths": self._lengths.state(),
            "lags": [list(lag) for lag in self._lags] if reproducible else [],
            "recent_returns": list(self._recent_returns),
            "evaluations": [list(evaluation) for evaluation in self.progress.evaluations],
            "best": self.progress.best,
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Take over a saved state. Raises ValueError for one that does not fit."""
        require(state, self.state(reproducible=False), "the telemetry")
        self.episodes = count(state["episodes"], "episodes")
        self._interval_episodes = count(state["interval_episodes"], "interval_episodes")
        self._returns.load_state(state["returns"])
        self._lengths.load_state(state["lengths"])
        self._lags.extend(_lag(pair) for pair in listed(state["lags"], "lags"))
        returns = listed(state["recent_returns"], "recent_returns")
        self._recent_returns.extend(number(value, "a return") for value in returns)
        self.progress.evaluations = [_score(pair) for pair in listed(state["evaluations"], "evaluations")]
        self.progress.best = None if state["best"] is None else _score(state["best"])
        self._last = self._sample([])

    def chunk(self, chunk: Chunk) -> None:
        """A chunk enters the replay."""
        if chunk.env_steps:
            lag = (self._limiter.opt_steps - chunk.version, chunk.env_steps)
            self._lags.append(lag)
            self._recent_lags.append(lag)
        for episode in finished_episodes(chunk.items):
            self.episodes += 1
            self._interval_episodes += 1
            self._returns.add(episode.episode_return)
            self._lengths.add(episode.length)
            self._recent_returns.append(episode.episode_return)

    def opt_took(self, seconds: float) -> None:
        """One opt step, sampling included."""
        self._opt_ms.add(1e3 * seconds)

    def collect_took(self, seconds: float) -> None:
        """Taking in what had arrived, once."""
        self._collect_ms.add(1e3 * seconds)

    def waited(self, seconds: float) -> None:
        """The learner had nothing to do for so long."""
        self.blocked_s += seconds

    def excluded(self, seconds: float) -> None:
        """Time of evaluating and saving, which says nothing about who waits for whom."""
        self._excluded_s += seconds

    def saved(self, seconds: float) -> None:
        """A checkpoint was written."""
        self._save_ms.add(1e3 * seconds)
        self.excluded(seconds)

    def save_failed(self) -> None:
        """A checkpoint, or the best model, could not be written."""
        self._failed_saves += 1

    def know_best(self, best: Evaluation | None) -> None:
        """The evaluation of the best model; in a run that goes on, that of best/, which may be of after its checkpoint."""
        self.progress.best = None if best is None else (best.opt_steps, best.mean)

    def evaluated(self, evaluation: Evaluation, best: Evaluation | None) -> None:
        """A routine evaluation is known. best: the evaluation that counts, if it has brought a new best model."""
        self.progress.evaluations.append((evaluation.opt_steps, evaluation.mean))
        if best is not None:
            self.know_best(best)

    def interval_values(
        self,
        replay_size: int,
        capacity: int,
        actors: Sequence[ActorStat],
        alive: int,
        agent: dict[str, float],
    ) -> dict[str, float]:
        """Everything since the last call, by metric name."""
        now = self._sample(actors)
        values = dict(agent)
        values |= self._episode_values() | self._rates(self._last, now)
        values["throughput/samples_total"] = self._limiter.env_steps
        if self._limiter.ratio is not None:
            values["throughput/samples_per_opt_step"] = self._limiter.ratio
        if self.progress.asynchronous:
            values |= self._async_values(actors, alive)
        values |= {"replay/size": replay_size, "replay/fill": replay_size / capacity}
        for name, mean in (
            ("time/opt_ms", self._opt_ms.take()),
            ("time/collect_ms", self._collect_ms.take()),
            ("time/save_ms", self._save_ms.take()),
        ):
            if mean is not None:
                values[name] = mean
        if self._failed_saves:
            values["checkpoint/failed_saves"] = float(self._failed_saves)
        self._lags.clear()
        self._last = now
        return values

    def refresh_due(self) -> bool:
        """Whether `refresh` would change what is shown."""
        return monotonic() >= self._next_refresh

    def refresh(self, phase: str, replay_size: int, actors: Sequence[ActorStat], alive: int) -> None:
        """Bring `progress` up to date."""
        now = self._sample(actors)
        self._next_refresh = now.time + _REFRESH_S
        self._window.append(now)
        while now.time - self._window[0].time > _WINDOW_S and len(self._window) > 2:
            self._window.popleft()
        p = self.progress
        p.phase, p.seconds = phase, now.time - self._began
        p.opt_steps, p.env_steps = now.opt_steps, now.env_steps
        p.ratio_actual = self._limiter.ratio
        p.replay_size, p.actors_alive = replay_size, alive
        p.recent_returns = list(self._recent_returns)
        if self._recent_lags:
            p.policy_lag_mean = _mean(self._recent_lags)
        rates = self._rates(self._window[0], now)
        p.opt_steps_per_sec = rates.get("throughput/opt_steps_per_sec")
        p.samples_per_sec = rates.get("throughput/samples_per_sec")
        p.actors_blocked = rates.get("async/actors_blocked")
        p.learner_blocked = rates.get("async/learner_blocked")

    def _sample(self, actors: Sequence[ActorStat]) -> _Sample:
        return _Sample(
            monotonic(),
            self._limiter.opt_steps,
            self._limiter.env_steps,
            self.blocked_s,
            self._excluded_s,
            sum(a.blocked_seconds for a in actors),
            sum(a.seconds for a in actors),
            sum(a.alive for a in actors),
        )

    def _rates(self, before: _Sample, now: _Sample) -> dict[str, float]:
        seconds = now.time - before.time
        if seconds <= 0:
            return {}
        rates = {
            "throughput/opt_steps_per_sec": (now.opt_steps - before.opt_steps) / seconds,
            "throughput/samples_per_sec": (now.env_steps - before.env_steps) / seconds,
        }
        if self.progress.asynchronous:
            rates |= self._blocked_shares(before, now)
        return rates

    def _blocked_shares(self, before: _Sample, now: _Sample) -> dict[str, float]:
        """Shares of time waited, without the time in which the learner evaluated or saved: everybody waits then."""
        shares = {}
        excluded = now.excluded_s - before.excluded_s
        learner_s = now.time - before.time - excluded
        if learner_s > 0:
            shares["async/learner_blocked"] = _share(now.blocked_s - before.blocked_s, learner_s)
        everybody = excluded * now.actors
        actors_s = now.actors_s - before.actors_s - everybody
        if actors_s > 0:
            blocked = now.actors_blocked_s - before.actors_blocked_s - everybody
            shares["async/actors_blocked"] = _share(blocked, actors_s)
        return shares

    def _episode_values(self) -> dict[str, float]:
        values = {"train/episodes": float(self._interval_episodes)}
        self._interval_episodes = 0
        for name, mean in (
            ("train/episode_return", self._returns.take()),
            ("train/episode_length", self._lengths.take()),
        ):
            if mean is not None:
                values[name] = mean
        return values

    def _async_values(self, actors: Sequence[ActorStat], alive: int) -> dict[str, float]:
        restarts = sum(actor.restarts for actor in actors)
        values = {"async/actors_alive": float(alive), "async/restarts": float(restarts)}
        if self._lags:
            values["async/policy_lag_mean"] = _mean(self._lags)
            values["async/policy_lag_p95"] = percentile(self._lags, 95)
        return values


def _score(pair: Any) -> tuple[int, float]:
    """Opt step and mean of an evaluation, out of a saved state."""
    opt_steps, mean = listed(pair, "a score", 2)
    return count(opt_steps, "the opt step of a score"), number(mean, "a score")


def _lag(pair: Any) -> tuple[int, int]:
    """Policy lag and env steps of a chunk, out of a saved state. The first checkpoints had the lags alone."""
    if isinstance(pair, int):
        return count(pair, "a policy lag"), 1
    lag, env_steps = listed(pair, "a policy lag", 2)
    if count(env_steps, "env steps of a chunk") == 0:
        raise UnfitStateError("a policy lag is of no env step")
    return count(lag, "a policy lag"), env_steps


def _mean(lags: Iterable[tuple[int, int]]) -> float:
    """Over env steps."""
    return sum(lag * n for lag, n in lags) / sum(n for _, n in lags)


def _share(part: float, whole: float) -> float:
    return min(1.0, max(0.0, part / whole))
