"""Env steps to rows: n-step transitions (Sutton, 1988; as in Rainbow, Hessel et al., 2018), n = 1 included.

The row of env step t has the reward R = Σ_{k<m} γ^k·r_{t+k} and the discount γ^m, so that its target is
R + γ^m·V(s_{t+m}), where m = n, or fewer steps at the end of an episode. If `terminated`, the target is R alone.
The rows of each environment come in stream order (see `border_cli.core.types`): the row of step t once its sum is known,
at the end of an episode the shorter ones, and last the final observation.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from border_cli.core.errors import IncompatibleStateError
from border_cli.core.spaces import Array, EnvSpec, Obs
from border_cli.core.state import State, check_like
from border_cli.core.types import (
    EPISODE_INFO,
    MAX_STEP_IN_EPISODE,
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


_ROW = (
    "env",
    "step_in_episode",
    "reward",
    "n_steps",
    "terminated",
    "episode_return",
    "episode_length",
    "priority",
    EPISODE_INFO,
)


_Place = tuple[list[Array], int]
"""Where a row is: arrays with the columns `_kept` of several rows, and which of them is its own."""


@dataclass
class _Stream:
    """One environment.

    pending: place, step_in_episode, reward and value of the action of each env step whose row is not completed yet ·
    episode_return, length: of its episode so far · last: columns of the newest observations, and which is its own.
    """

    pending: deque[tuple[_Place, int, float, float]] = field(default_factory=deque)
    episode_return: float = 0.0
    length: int = 0
    last: tuple[list[Array], int] | None = None


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
        n_info: values of an episode's info that its final row has.
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
        n_info: int = 0,
    ) -> None:
        self.needs_extras = with_priority or bool(extra)
        self._columns = {c.name: c for c in item_columns(spec, with_priority, extra, n_info)}
        self._obs_names = [leaf.name for leaf in spec.obs.leaves]
        self._stacked = [(leaf.name, leaf.stack > 1) for leaf in spec.obs.leaves]
        self._extra_names = [c.name for c in extra]
        self._kept = [*self._obs_names, "action", *self._extra_names]
        self._with_priority = with_priority
        self._n = n_step
        self._gamma = gamma
        self._clip = reward_clip
        self._no_info = (0.0,) * n_info
        blank = self._named([name for name in self._kept if name not in self._obs_names])
        self._blank = empty_items(blank, 1).values()  # of a final row, which has the observation alone
        self._discounts = [gamma**m for m in range(n_step + 1)]
        self._streams = [_Stream() for _ in range(n_envs)]
        # Rows that are completed and not taken yet: place, and the values of `_ROW`. Tuples, because making an object
        # of a row takes longer than everything else that is done for it.
        self._rows: list[tuple[Any, ...]] = []

    def add(self, step: Step) -> None:
        extras = [step.extras[name] for name in self._extra_names]
        block = [*self._stored(step.obs), step.action, *extras]
        newest = self._stored(step.next_obs)
        # Lists, because reading one element of an array takes longer.
        rewards, terminated, truncated = (a.tolist() for a in (step.reward, step.terminated, step.truncated))
        estimates = self._with_priority and Q_MAX in step.extras
        q_max, q_action = (step.extras[name].tolist() if estimates else None for name in (Q_MAX, Q_ACTION))
        n, clip, with_priority = self._n, self._clip, self._with_priority
        for k, env in enumerate(step.env_ix):
            if step.dropped is not None and step.dropped[k]:
                self.cut(env)
                continue
            stream, reward = self._streams[env], rewards[k]
            next_value = q_max[k] if q_max else None
            pending = stream.pending
            if with_priority and len(pending) == n:
                self._complete(env, False, next_value)
            stream.episode_return += reward
            stream.last = newest, k
            if clip is not None:
                reward = min(max(reward, -clip), clip)
            pending.append(((block, k), stream.length, reward, q_action[k] if q_action else 0.0))
            stream.length += 1
            life_lost = step.life_lost is not None and bool(step.life_lost[k])
            if terminated[k] or truncated[k]:
                info = self._no_info if step.infos is None else tuple(step.infos[k].tolist())
                self._end(env, terminated[k] or life_lost, next_value, info)
            elif life_lost:
                self._complete_all(env, True, next_value)
            elif not with_priority and len(pending) == n:
                self._complete(env, False)

    def cut(self, env_ix: int) -> None:
        """See `StepProcessor`. The episode is not reported."""
        if self._streams[env_ix].length:
            self._end(env_ix, terminated=False, report=False)

    @property
    def n_rows(self) -> int:
        return len(self._rows)

    def take(self, into: Items | None = None) -> Items:
        items = empty_items(tuple(self._columns.values()), len(self._rows)) if into is None else into
        n = len(items["n_steps"])
        rows, self._rows = self._rows[:n], self._rows[n:]
        if not rows:
            return items
        places, *columns = zip(*rows, strict=True)
        self._copy(places, items)
        for name, values in zip(_ROW, columns, strict=True):
            if name in items:
                items[name][:] = values
        items["discount"][:] = [self._discounts[m] for m in columns[_ROW.index("n_steps")]]
        return items

    def _stored(self, obs: Obs) -> list[Array]:
        """The columns of observations (k, ...) that rows store: of stacks the newest frames."""
        return [obs[name][:, -1] if stacked else obs[name] for name, stacked in self._stacked]

    def _named(self, names: Sequence[str]) -> tuple[Column, ...]:
        return tuple(self._columns[name] for name in names)

    def _copy(self, places: Sequence[_Place], items: Items) -> None:
        """Copy the columns `_kept` of the rows at these places, neighbours together."""
        pieces: list[tuple[list[Array], int, int]] = []
        for block, k in places:
            last, first, end = pieces[-1] if pieces else (None, 0, 0)
            if last is block and end == k:
                pieces[-1] = block, first, k + 1
            else:
                pieces.append((block, k, k + 1))
        for i, name in enumerate(self._kept):
            parts = [block[i][first:end] for block, first, end in pieces]
            np.concatenate(parts, out=items[name], casting="unsafe")

    def _complete(self, env: int, terminated: bool, next_value: float | None = None) -> None:
        """Complete the oldest pending row, over the env steps of all pending rows.

        next_value: value of the observation after them, None if it is unknown.
        """
        pending = self._streams[env].pending
        m = len(pending)
        total = 0.0
        for _, _, reward, _ in reversed(pending):
            total = reward + self._gamma * total
        place, step_in_episode, _, q_action = pending.popleft()
        priority = UNKNOWN_PRIORITY
        if next_value is not None:
            error = abs(total + (0.0 if terminated else self._discounts[m] * next_value) - q_action)
            if error <= _MAX_PRIORITY:  # not for NaN or inf, as in a state without allowed actions
                priority = error
        self._rows.append(
            (
                *(place, env, min(step_in_episode, MAX_STEP_IN_EPISODE), total, m, terminated, 0.0, 0),
                *(priority, self._no_info),
            )
        )

    def _complete_all(self, env: int, terminated: bool, next_value: float | None) -> None:
        """Complete all pending rows, each over the remaining env steps."""
        while self._streams[env].pending:
            self._complete(env, terminated, next_value)

    def _end(
        self,
        env: int,
        terminated: bool,
        next_value: float | None = None,
        info: tuple[float, ...] | None = None,
        *,
        report: bool = True,
    ) -> None:
        """Complete all pending rows and add the final observation. The stream restarts. report: the episode counts."""
        self._complete_all(env, terminated, next_value)
        stream, self._streams[env] = self._streams[env], _Stream()
        place = [*self._newest(stream), *self._blank], 0
        episode = (stream.episode_return, stream.length) if report else (0.0, 0)
        length = min(stream.length, MAX_STEP_IN_EPISODE)
        info = self._no_info if info is None else info
        self._rows.append((place, env, length, 0.0, 0, False, *episode, UNKNOWN_PRIORITY, info))

    def _newest(self, stream: _Stream) -> list[Array]:
        """The stored columns (1, ...) of the newest observation of a stream; zeros before it."""
        if stream.last is None:
            return list(empty_items(self._named(self._obs_names), 1).values())
        newest, k = stream.last
        return [rows[k : k + 1] for rows in newest]

    def state(self) -> State:
        """Arrays of the pending rows of all streams, one stream after the other, and arrays with one row per stream."""
        pending = [row for stream in self._streams for row in stream.pending]
        arrays = empty_items(self._named(self._kept), len(pending))
        if pending:
            self._copy([row[0] for row in pending], arrays)
        newest = zip(*map(self._newest, self._streams), strict=True)
        arrays |= {
            f"last/{name}": np.concatenate(rows) for name, rows in zip(self._obs_names, newest, strict=True)
        }
        arrays["reward"] = np.array([row[2] for row in pending], np.float64)
        arrays[Q_ACTION] = np.array([row[3] for row in pending], np.float64)
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
        rewards, q_actions = arrays["reward"].tolist(), arrays[Q_ACTION].tolist()
        last = [arrays[f"last/{name}"] for name in self._obs_names]
        block = [arrays[name] for name in self._kept]
        self._streams, k = [], 0
        for env, (count, length) in enumerate(zip(counts, lengths, strict=True)):
            stream = _Stream(episode_return=float(arrays["stream/return"][env]), length=length)
            stream.last = (last, env) if length else None
            for step in range(length - count, length):
                stream.pending.append(((block, k), step, rewards[k], q_actions[k]))
                k += 1
            self._streams.append(stream)
