"""Env steps to rows: n-step transitions (Sutton, 1988; as in Rainbow, Hessel et al., 2018), n = 1 included.

The row of env step t has the reward R = Σ_{k<m} γ^k·r_{t+k} and the discount γ^m, so that its target is
R + γ^m·V(s_{t+m}), where m = n, or fewer steps at the end of an episode. If `terminated`, the target is R alone.
The rows of each environment come in stream order (see `border_cli.core.types`): the row of step t once its sum is known,
at the end of an episode the shorter ones, and last the final observation.
"""

from __future__ import annotations

import sys
from collections import deque
from dataclasses import dataclass, field

import numpy as np

from border_cli.core.errors import IncompatibleStateError
from border_cli.core.spaces import Array, EnvSpec, Obs
from border_cli.core.state import State, check_like
from border_cli.core.types import (
    MAX_STEP_IN_EPISODE,
    PRIORITY,
    Q_ACTION,
    Q_MAX,
    UNKNOWN_PRIORITY,
    Column,
    Items,
    Step,
    empty_items,
    item_columns,
)

_MAX_PRIORITY = float(np.finfo(np.float32).max)


def reward_limit(n_step: int, gamma: float, reward_clip: float | None = None) -> float:
    """Rewards within ± this limit have finite n-step sums in float32, the dtype of stored rewards."""
    limit = float(np.finfo(np.float32).max) / sum(gamma**k for k in range(n_step))
    return limit if reward_clip is None or reward_clip > limit else sys.float_info.max


@dataclass
class _Row:
    """A row.

    kept: values of the columns `_kept`; of a final row those of the observation alone · reward: of the row's own env step
    while the row is pending, then the n-step sum · q_action: value of its action.
    """

    kept: tuple[Array, ...]
    env: int
    step_in_episode: int
    reward: float = 0.0
    q_action: float = 0.0
    n_steps: int = 0
    terminated: bool = False
    episode_return: float = 0.0
    episode_length: int = 0
    priority: float = UNKNOWN_PRIORITY


@dataclass
class _Stream:
    """One environment: pending rows, return and length of its episode so far, newest observation (empty before it)."""

    pending: deque[_Row] = field(default_factory=deque)
    episode_return: float = 0.0
    length: int = 0
    last_obs: tuple[Array, ...] = ()


class NStepProcessor:
    """Implements `core.protocols.StepProcessor`.

    Args:
        n_step: env steps per transition.
        gamma: discount per env step.
        reward_clip: clip each reward to ± this before the sum. The episode's return stays raw.
        with_priority: give rows the absolute TD error by the actor's own values (Ape-X, Horgan et al., 2018). Rows then
            come one env step later, when the value of the next observation is known. At a truncated end the value of the
            last observation that was acted on is used instead.
        extra: columns of the agent. A row has those of its first env step.
    """

    def __init__(
        self,
        spec: EnvSpec,
        n_envs: int,
        n_step: int,
        gamma: float,
        reward_clip: float | None = None,
        with_priority: bool = False,
        extra: tuple[Column, ...] = (),
    ) -> None:
        self.needs_extras = with_priority or bool(extra)
        self._columns = {c.name: c for c in item_columns(spec, with_priority, extra)}
        self._obs_names = [leaf.name for leaf in spec.obs.leaves]
        self._stacked = [leaf.stack > 1 for leaf in spec.obs.leaves]
        self._extra_names = [c.name for c in extra]
        self._kept = [*self._obs_names, "action", *self._extra_names]
        self._with_priority = with_priority
        self._n = n_step
        self._gamma = gamma
        self._clip = reward_clip
        self._streams = [_Stream() for _ in range(n_envs)]
        self._rows: list[_Row] = []  # completed and not taken yet

    def add(self, step: Step) -> None:
        for k, env in enumerate(step.env_ix):
            if step.dropped is not None and step.dropped[k]:
                self.cut(env)
                continue
            stream = self._streams[env]
            q_max = q_action = None
            if self._with_priority and Q_MAX in step.extras:
                q_max, q_action = float(step.extras[Q_MAX][k]), float(step.extras[Q_ACTION][k])
            if self._with_priority and len(stream.pending) == self._n:
                self._complete(env, False, q_max)
            reward = float(step.reward[k])
            stream.episode_return += reward
            stream.last_obs = self._stored(step.next_obs, k)
            if self._clip is not None:
                reward = min(max(reward, -self._clip), self._clip)
            extras = (step.extras[name][k] for name in self._extra_names)
            kept = (*self._stored(step.obs, k), step.action[k], *extras)
            stream.pending.append(_Row(kept, env, stream.length, reward, q_action or 0.0))
            stream.length += 1
            life_lost = step.life_lost is not None and bool(step.life_lost[k])
            terminated = bool(step.terminated[k]) or life_lost
            if step.terminated[k] or step.truncated[k]:
                self._end(env, terminated, q_max)
            elif life_lost:
                self._complete_all(env, True, q_max)
            elif not self._with_priority and len(stream.pending) == self._n:
                self._complete(env, False)

    def cut(self, env_ix: int) -> None:
        """See `StepProcessor`. The episode is not reported."""
        if self._streams[env_ix].length:
            self._end(env_ix, terminated=False)
            self._rows[-1].episode_return, self._rows[-1].episode_length = 0.0, 0

    @property
    def n_rows(self) -> int:
        return len(self._rows)

    def take(self, into: Items | None = None) -> Items:
        items = empty_items(tuple(self._columns.values()), len(self._rows)) if into is None else into
        n = len(items["n_steps"])
        rows, self._rows = self._rows[:n], self._rows[n:]
        for k, name in enumerate(self._kept):
            column = items[name]
            for i, row in enumerate(rows):
                column[i] = row.kept[k] if k < len(row.kept) else 0  # a final row has the observation alone
        for name in ("reward", "terminated", "env", "n_steps", "episode_return", "episode_length"):
            items[name][:] = [getattr(row, name) for row in rows]
        items["discount"][:] = [self._gamma**row.n_steps for row in rows]
        if "step_in_episode" in items:
            items["step_in_episode"][:] = [min(row.step_in_episode, MAX_STEP_IN_EPISODE) for row in rows]
        if self._with_priority:
            items[PRIORITY.name][:] = [row.priority for row in rows]
        return items

    def _stored(self, obs: Obs, k: int) -> tuple[Array, ...]:
        """The columns of observation k that a row stores: of a stack the newest frame."""
        return tuple(
            obs[name][k][-1] if stacked else obs[name][k]
            for name, stacked in zip(self._obs_names, self._stacked, strict=True)
        )

    def _complete(self, env: int, terminated: bool, next_value: float | None = None) -> None:
        """Complete the oldest pending row, over the env steps of all pending rows.

        next_value: value of the observation after them, None if it is unknown.
        """
        pending = self._streams[env].pending
        m = len(pending)
        reward = 0.0
        for row in reversed(pending):
            reward = row.reward + self._gamma * reward
        row = pending.popleft()
        row.reward, row.n_steps, row.terminated = reward, m, terminated
        if next_value is not None:
            priority = abs(reward + (0.0 if terminated else self._gamma**m * next_value) - row.q_action)
            if priority <= _MAX_PRIORITY:  # not for NaN or inf, as in a state without allowed actions
                row.priority = priority
        self._rows.append(row)

    def _complete_all(self, env: int, terminated: bool, next_value: float | None) -> None:
        """Complete all pending rows, each over the remaining env steps."""
        while self._streams[env].pending:
            self._complete(env, terminated, next_value)

    def _end(self, env: int, terminated: bool, next_value: float | None = None) -> None:
        """Complete all pending rows and add the final observation. The stream restarts."""
        self._complete_all(env, terminated, next_value)
        stream, self._streams[env] = self._streams[env], _Stream()
        final = _Row(stream.last_obs, env, stream.length)
        final.episode_return, final.episode_length = stream.episode_return, stream.length
        self._rows.append(final)

    def state(self) -> State:
        """Arrays of the pending rows of all streams, one stream after the other, and arrays with one row per stream."""
        pending = [row for stream in self._streams for row in stream.pending]
        arrays = empty_items(tuple(self._columns[name] for name in self._kept), len(pending))
        last = empty_items(tuple(self._columns[name] for name in self._obs_names), len(self._streams))
        for k, row in enumerate(pending):
            for name, value in zip(self._kept, row.kept, strict=True):
                arrays[name][k] = value
        for i, stream in enumerate(self._streams):
            for name, value in zip(self._obs_names, stream.last_obs, strict=False):
                last[name][i] = value
        arrays |= {f"last/{name}": rows for name, rows in last.items()}
        arrays["reward"] = np.array([row.reward for row in pending], np.float64)
        arrays[Q_ACTION] = np.array([row.q_action for row in pending], np.float64)
        arrays["stream/pending"] = np.array([len(stream.pending) for stream in self._streams], np.int64)
        arrays["stream/length"] = np.array([stream.length for stream in self._streams], np.int64)
        arrays["stream/return"] = np.array([stream.episode_return for stream in self._streams], np.float64)
        return State(arrays)

    def load_state(self, state: State) -> None:
        growing = (*self._kept, "reward", Q_ACTION)
        check_like(state, self.state(), "the step processor", growing)
        arrays = state.arrays
        counts, lengths = arrays["stream/pending"].tolist(), arrays["stream/length"].tolist()
        if any(len(arrays[name]) != sum(counts) for name in growing) or min(counts) < 0:
            raise IncompatibleStateError(
                "the pending steps of the step processor are not those of its streams"
            )
        self._streams, k = [], 0
        for env, (count, length) in enumerate(zip(counts, lengths, strict=True)):
            last = tuple(arrays[f"last/{name}"][env] for name in self._obs_names) if length else ()
            stream = _Stream(deque(), float(arrays["stream/return"][env]), length, last)
            for step in range(length - count, length):
                kept = tuple(arrays[name][k] for name in self._kept)
                reward, q_action = float(arrays["reward"][k]), float(arrays[Q_ACTION][k])
                stream.pending.append(_Row(kept, env, step, reward, q_action))
                k += 1
            self._streams.append(stream)
