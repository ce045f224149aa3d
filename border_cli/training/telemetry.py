"""Telemetry of a run: metrics of each record interval, and the rates of the last seconds for the display."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Any

from border_cli.core.metrics import Mean, declare, percentile
from border_cli.core.progress import ENDED, Progress
from border_cli.core.state import State, check_like, number
from border_cli.core.types import ActorStat, Chunk, Evaluation, episode_infos, finished_episodes
from border_cli.runtime.machine import cpu_seconds
from border_cli.training.ratio_limiter import RatioLimiter

_WINDOW_S = 10.0
_LEAST_S = 2.0
"""Over a shorter time of training, the shares of waiting time say little."""
LONGEST_EPISODE, _SHORTEST_LIMIT = 30_000, 1_000
"""Env steps between which evaluation episodes are cut."""
_REFRESH_S = 0.25
_RECENT_EPISODES = 100
_OF_EPISODES = ("train/episode_return", "train/episode_length")
_MEANS = (*_OF_EPISODES, "time/opt_ms", "time/collect_ms", "time/save_ms")
_MAX_LAGS = 2**16
"""The most policy lags kept in one record interval, which lasts as long as the run if nothing is recorded."""


@dataclass
class _Sample:
    """Totals at one moment; times in seconds, those of actors summed over them. alive: actors running."""

    time: float
    opt_steps: int
    env_steps: int
    blocked_s: float
    excluded_s: float
    actors_blocked_s: float
    actors_s: float
    alive: int


class Telemetry:
    """Accumulates what the loop reports.

    Args:
        seconds_before: duration of the earlier launches of a resumed run [s].
        info_keys: names of the values in the episodes' info, as the columns of `episode_info` have them.

    Attributes:
        blocked_s: time that the learner has waited for experience in this launch [s].
        excluded_s: time of evaluating and saving, which counts neither as work nor as waiting [s].
        failed_saves: in this launch.
    """

    def __init__(
        self,
        limiter: RatioLimiter,
        progress: Progress,
        seconds_before: float = 0.0,
        info_keys: Sequence[str] = (),
    ) -> None:
        self.progress = progress
        self.blocked_s = self.excluded_s = 0.0
        self.failed_saves = 0
        self._longest = 0  # env steps of an episode
        self.episodes = 0
        self.limiter = limiter
        self._began = monotonic() - seconds_before
        self._infos = [f"env/{key}" for key in info_keys]
        for name in self._infos:
            declare(name, "info", f"mean of info[{name[4:]!r}] at the end of the episodes of the interval")
            declare(f"eval/{name[4:]}", "info", "the same of the evaluation's episodes")
        self._means = {name: Mean() for name in (*_MEANS, *self._infos)}
        self._interval_episodes = 0
        self._lags: deque[tuple[int, int]] = deque(maxlen=_MAX_LAGS)  # (lag, env steps) per chunk
        self._recent_lags: deque[tuple[int, int]] = deque(maxlen=1000)
        self._recent_returns: deque[float] = deque(maxlen=_RECENT_EPISODES)
        self._window: deque[_Sample] = deque()
        self._last = self._launch = self._sample([])
        self._training: tuple[_Sample, _Sample] | None = None  # first and last look while training
        self._next_refresh = self._cpu_due = 0.0

    @property
    def seconds(self) -> float:
        """Duration of the run, without the time between an interruption and its resumption."""
        return monotonic() - self._began

    @property
    def blocked(self) -> tuple[float | None, float | None]:
        """Shares of this launch's training time in which the actors and the learner waited; None if unknown."""
        if self._training is None:
            return None, None
        first, last = self._training
        rates = self._rates(first if first.time < last.time else self._launch, last)
        return rates.get("async/actors_blocked"), rates.get("async/learner_blocked")

    def state(self, reproducible: bool) -> dict[str, Any]:
        """Accumulated values since the last record, as JSON values, without durations.

        reproducible: policy lag is the same in every run of this seed, so it is included.
        """
        return {
            "episodes": self.episodes,
            "longest": self._longest,
            "interval_episodes": self._interval_episodes,
            "means": {name: self._means[name].state() for name in (*_OF_EPISODES, *self._infos)},
            "lags": [list(lag) for lag in self._lags] if reproducible else [],
            "recent_returns": list(self._recent_returns),
            "evaluations": [list(evaluation) for evaluation in self.progress.evaluations],
        }

    def load_state(self, state: dict[str, Any]) -> None:
        examples = {"lags": [[0, 1]], "recent_returns": [0.0], "evaluations": [[0, 0.0]]}
        check_like(State({}, state), State({}, self.state(False) | examples), "the telemetry")
        self.episodes, self._longest = state["episodes"], state["longest"]
        self._interval_episodes = state["interval_episodes"]
        for name, mean in state["means"].items():
            self._means[name].load_state(mean)
        self._lags.extend((lag, env_steps) for lag, env_steps in state["lags"])
        self._recent_returns.extend(number(value) for value in state["recent_returns"])
        self.progress.evaluations = [(step, number(mean)) for step, mean in state["evaluations"]]
        self._last = self._sample([])

    def chunk(self, chunk: Chunk) -> None:
        if chunk.env_steps:
            lag = (self.limiter.opt_steps - chunk.version, chunk.env_steps)
            self._lags.append(lag)
            self._recent_lags.append(lag)
        for episode_return, length in finished_episodes(chunk.items):
            self.episodes += 1
            self._interval_episodes += 1
            self._longest = max(self._longest, int(length))
            self._means["train/episode_return"].add(episode_return)
            self._means["train/episode_length"].add(length)
            self._recent_returns.append(episode_return)
        infos = episode_infos(chunk.items)
        for row in () if infos is None else infos.tolist():
            for name, value in zip(self._infos, row, strict=True):
                if not math.isnan(value):
                    self._means[name].add(value)

    @property
    def evaluation_limit(self) -> int:
        """Env steps at which an evaluation episode is cut: ten times those of the longest episode of training.

        A greedy policy may get stuck where an exploring policy does not.
        """
        return min(LONGEST_EPISODE, max(_SHORTEST_LIMIT, 10 * self._longest or self.limiter.env_steps))

    def took(self, name: str, seconds: float) -> None:
        """Add a duration to the metric `time/…_ms` of this name."""
        self._means[name].add(1e3 * seconds)

    def set_best(self, best: Evaluation | None, confirmed: bool = False) -> None:
        """Show the score of the best model. confirmed: it comes from fresh episodes."""
        self.progress.best = None if best is None else (best.opt_steps, best.mean)
        self.progress.best_confirmed = confirmed

    def evaluated(self, evaluation: Evaluation, best: Evaluation | None) -> None:
        """Show a regular evaluation, and the score of the best model after it."""
        self.progress.evaluations.append((evaluation.opt_steps, evaluation.mean))
        self.progress.eval_infos = evaluation.infos
        self.set_best(best)

    def interval_values(
        self, replay_size: int, capacity: int, actors: Sequence[ActorStat], agent: dict[str, float]
    ) -> dict[str, float]:
        """The metrics of the interval since the last call, by name. agent: those of the agent, which are included."""
        now = self._sample(actors)
        values = agent | {"train/episodes": float(self._interval_episodes)} | self._rates(self._last, now)
        self._interval_episodes = 0
        values["throughput/samples_total"] = self.limiter.env_steps
        if self.limiter.ratio is not None:
            values["throughput/samples_per_opt_step"] = self.limiter.ratio
        if self.progress.asynchronous:
            values["async/actors_alive"] = float(now.alive)
            values["async/restarts"] = float(sum(actor.restarts for actor in actors))
            if self._lags:
                values["async/policy_lag_mean"] = _mean(self._lags)
                values["async/policy_lag_p95"] = percentile(self._lags, 95)
        values |= {"replay/size": replay_size, "replay/fill": replay_size / capacity}
        if now.time >= self._cpu_due:
            values["time/cpu_s"] = cpu_seconds()
            self._cpu_due = now.time + 1.0  # to look at all processes takes some milliseconds
        for name, mean in self._means.items():
            if (value := mean.take()) is not None:
                values[name] = value
        if self.failed_saves:
            values["checkpoint/failed_saves"] = float(self.failed_saves)
        self._lags.clear()
        self._last = now
        return values

    def refresh_due(self) -> bool:
        return monotonic() >= self._next_refresh

    def refresh(self, phase: str, replay_size: int, actors: Sequence[ActorStat]) -> None:
        """Update `progress`. After the run has ended, no actor counts as alive."""
        now = self._sample(actors)
        self._next_refresh = now.time + _REFRESH_S
        if phase == "training" and now.opt_steps and self._training is None:
            self._window.clear()  # before the first opt step, both sides wait for other reasons
        self._window.append(now)
        while now.time - self._window[0].time > _WINDOW_S and len(self._window) > 2:
            self._window.popleft()
        if phase == "training" and now.opt_steps:
            self._training = (self._training[0] if self._training else now), now
        p = self.progress
        p.phase, p.seconds = phase, now.time - self._began
        p.opt_steps, p.env_steps = now.opt_steps, now.env_steps
        p.ratio_actual = self.limiter.ratio
        p.replay_size, p.actors_alive = replay_size, 0 if phase in ENDED else now.alive
        p.recent_returns = list(self._recent_returns)
        if self._recent_lags:
            p.policy_lag_mean = _mean(self._recent_lags)
        rates = self._rates(self._window[0], now)
        p.opt_steps_per_sec = rates.get("throughput/opt_steps_per_sec")
        p.samples_per_sec = rates.get("throughput/samples_per_sec")
        measured = self._training is not None and now.time - self._window[0].time >= _LEAST_S
        p.actors_blocked = rates.get("async/actors_blocked") if measured else None
        p.learner_blocked = rates.get("async/learner_blocked") if measured else None
        if phase in ENDED and p.seconds > 0:  # the last frame agrees with the tables below it
            p.actors_blocked, p.learner_blocked = self.blocked
            p.opt_steps_per_sec, p.samples_per_sec = p.opt_steps / p.seconds, p.env_steps / p.seconds

    def _sample(self, actors: Sequence[ActorStat]) -> _Sample:
        return _Sample(
            monotonic(),
            self.limiter.opt_steps,
            self.limiter.env_steps,
            self.blocked_s,
            self.excluded_s,
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
        if not self.progress.asynchronous:
            return rates
        # The time in which the learner evaluated or saved is left out: all actors that are alive wait for it then.
        excluded_s = now.excluded_s - before.excluded_s
        if (learner_s := seconds - excluded_s) > 0:
            rates["async/learner_blocked"] = _share(now.blocked_s - before.blocked_s, learner_s)
        excluded_s *= now.alive
        if (actors_s := now.actors_s - before.actors_s - excluded_s) > 0:
            blocked_s = now.actors_blocked_s - before.actors_blocked_s - excluded_s
            rates["async/actors_blocked"] = _share(blocked_s, actors_s)
        return rates


def _mean(lags: Iterable[tuple[int, int]]) -> float:
    """Mean policy lag over env steps."""
    return sum(lag * n for lag, n in lags) / sum(n for _, n in lags)


def _share(part: float, whole: float) -> float:
    return min(1.0, max(0.0, part / whole))
