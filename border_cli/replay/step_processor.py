"""Env steps to items: n-step transitions (Sutton, 1988; as in Rainbow, Hessel et al., 2018), n = 1 included.

For each environment the rows come out in stream order (see `border_cli.core.items`): the row of time t once the n-step
sum is known, at an episode's end the shorter ones, and last the final observation. A row's `discount` is γ^m with the
true number m of its steps; whether the value of the next observation counts is told by `terminated` alone.
"""

from __future__ import annotations

import sys
from collections import deque
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from border_cli.core.items import MAX_AGE, UNKNOWN_PRIORITY, Column, Items, empty_items, item_columns
from border_cli.core.protocols import Step
from border_cli.core.spaces import Array, EnvSpec, Obs
from border_cli.core.state import State, check_arrays, count, flag, number, require

_MAX_PRIORITY = float(np.finfo(np.float32).max)


def reward_limit(n_step: int, gamma: float, reward_clip: float | None = None) -> float:
    """Rewards within ± this have finite n-step sums in float32, in which rows are stored, whatever comes together."""
    limit = float(np.finfo(np.float32).max) / sum(gamma**k for k in range(n_step))
    return limit if reward_clip is None or reward_clip > limit else sys.float_info.max


@dataclass
class _Pending:
    """One env step that still waits for its n-step sum."""

    obs: tuple[Array, ...]
    action: Array
    reward: float
    taken: float = 0.0


@dataclass
class _Stream:
    """What one environment's stream carries: the waiting steps and the episode so far (raw rewards)."""

    waiting: deque[_Pending] = field(default_factory=deque)
    episode_return: float = 0.0
    length: int = 0
    last_obs: tuple[Array, ...] | None = None


@dataclass
class _Row:
    obs: tuple[Array, ...]
    env: int
    action: Array | None = None
    reward: float = 0.0
    span: int = 0
    terminated: bool = False
    episode_return: float = 0.0
    length: int = 0
    age: int = 0
    priority: float = UNKNOWN_PRIORITY


class NStepProcessor:
    """Implements `core.protocols.StepProcessor`.

    gamma: discount per env step. reward_clip: each reward is clipped to ±reward_clip before the sum; the episode's
    return stays raw. needs_estimates: rows get the priority that the actor's own values give them (Horgan et al., 2018),
    for which each waits one env step longer, until the value of its next observation is known; of a truncated end that
    is taken for the value of the observation before it, which is the last one acted on.
    """

    def __init__(
        self,
        spec: EnvSpec,
        n_envs: int,
        n_step: int,
        gamma: float,
        reward_clip: float | None = None,
        needs_estimates: bool = False,
    ) -> None:
        self.needs_estimates = needs_estimates
        self._columns: tuple[Column, ...] = item_columns(spec, needs_estimates)
        self._obs_names = [leaf.name for leaf in spec.obs.leaves]
        self._stacked = [leaf.stack > 1 for leaf in spec.obs.leaves]
        self._has_age = any(self._stacked)
        self._action = spec.action
        self._n = n_step
        self._gamma = gamma
        self._clip = reward_clip
        self._streams = [_Stream() for _ in range(n_envs)]

    def process(self, step: Step) -> Items:
        """Rows that this env step completes; where it was dropped, those of `cut`."""
        rows: list[_Row] = []
        for k, env in enumerate(step.env_ix):
            if step.dropped is not None and step.dropped[k]:
                rows += self._cut(env)
                continue
            obs, next_obs = self._stored(step.obs, k), self._stored(step.next_obs, k)
            life_lost = step.boundary is not None and bool(step.boundary[k])
            terminated = bool(step.terminated[k]) or life_lost
            best, taken = _estimated(step, k)
            if self.needs_estimates and len(self._streams[env].waiting) == self._n:
                rows.append(self._oldest(env, terminated=False, next_value=best))
            self._advance(env, obs, step.action[k], float(step.reward[k]), next_obs, taken)
            if step.terminated[k] or step.truncated[k]:
                rows += self._end(env, next_obs, terminated, best)
            elif life_lost:
                rows += self._flush(env, True, best)
            elif not self.needs_estimates and len(self._streams[env].waiting) == self._n:
                rows.append(self._oldest(env, terminated=False))
        return self._pack(rows)

    def _stored(self, obs: Obs, k: int) -> tuple[Array, ...]:
        """What a row keeps of the observation in row k: of a stack the newest."""
        return tuple(
            obs[name][k][-1] if stacked else obs[name][k]
            for name, stacked in zip(self._obs_names, self._stacked, strict=True)
        )

    def cut(self, env_ix: int) -> Items:
        """End a broken stream: the last known observation closes it, and the step that led nowhere is dropped."""
        return self._pack(self._cut(env_ix))

    def _cut(self, env: int) -> list[_Row]:
        last_obs = self._streams[env].last_obs
        if last_obs is None:
            return []
        rows = self._end(env, last_obs, terminated=False)
        rows[-1].episode_return, rows[-1].length = 0.0, 0  # not an episode that may be reported
        return rows

    def state(self) -> State:
        """Per stream: the waiting steps as arrays (k, ...), the last observation, and the episode so far."""
        arrays: dict[str, Array] = {}
        values: dict[str, Any] = {}
        for i, stream in enumerate(self._streams):
            arrays |= {f"{i}/{name}": array for name, array in self._stream_arrays(stream).items()}
            values[str(i)] = {
                "episode_return": stream.episode_return,
                "length": stream.length,
                "waiting": len(stream.waiting),
                "begun": stream.last_obs is not None,
            }
        return State(arrays, values)

    def load_state(self, state: State) -> None:
        """Take over a saved state. Raises ValueError for one that does not fit."""
        require(state.values, map(str, range(len(self._streams))), "the step processor")
        self._streams = [self._stream(state, i) for i in range(len(self._streams))]

    def _stream_arrays(self, stream: _Stream) -> Items:
        """Columns of the waiting steps, and one row `last/…` for the observation they led to, if the stream has begun."""
        waiting = list(stream.waiting)
        columns = {c.name: c for c in self._columns}
        rows = empty_items(tuple(columns[name] for name in (*self._obs_names, "action")), len(waiting))
        for k, step in enumerate(waiting):
            for name, value in zip(self._obs_names, step.obs, strict=True):
                rows[name][k] = value
            rows["action"][k] = step.action
        rows["rewards"] = np.array([step.reward for step in waiting], np.float64)
        if self.needs_estimates:
            rows["taken"] = np.array([step.taken for step in waiting], np.float64)
        last = stream.last_obs or ()
        return rows | {
            f"last/{name}": np.asarray(value, columns[name].dtype)
            for name, value in zip(self._obs_names, last, strict=False)
        }

    def _stream(self, state: State, i: int) -> _Stream:
        values, prefix = state.values[str(i)], f"{i}/"
        require(values, ("episode_return", "length", "waiting", "begun"), "the step processor")
        arrays = {k.removeprefix(prefix): a for k, a in state.arrays.items() if k.startswith(prefix)}
        columns = {c.name: c for c in self._columns}
        n = count(values["waiting"], "steps that wait for their sum", self._n)
        expected: Items = {
            name: np.empty((n, *columns[name].shape), columns[name].dtype)
            for name in (*self._obs_names, "action")
        }
        expected["rewards"] = np.empty(n, np.float64)
        if self.needs_estimates:
            expected["taken"] = np.empty(n, np.float64)
        begun = flag(values["begun"], "begun")
        if begun:
            expected |= {
                f"last/{name}": np.empty(columns[name].shape, columns[name].dtype) for name in self._obs_names
            }
        check_arrays(arrays, expected, "the step processor")
        self._action.check(arrays["action"])
        taken = arrays.get("taken", np.zeros(n))
        waiting = deque(
            _Pending(
                tuple(arrays[name][k] for name in self._obs_names),
                arrays["action"][k],
                float(reward),
                float(taken[k]),
            )
            for k, reward in enumerate(arrays["rewards"])
        )
        last = tuple(arrays[f"last/{name}"] for name in self._obs_names) if begun else None
        episode_return = number(values["episode_return"], "the return of an episode")
        return _Stream(waiting, episode_return, count(values["length"], "the length of an episode"), last)

    def _advance(
        self,
        env: int,
        obs: tuple[Array, ...],
        action: Array,
        reward: float,
        next_obs: tuple[Array, ...],
        taken: float,
    ) -> None:
        stream = self._streams[env]
        stream.episode_return += reward
        stream.length += 1
        stream.last_obs = next_obs
        if self._clip is not None:
            reward = min(max(reward, -self._clip), self._clip)
        stream.waiting.append(_Pending(obs, action, reward, taken))

    def _oldest(self, env: int, terminated: bool, next_value: float | None = None) -> _Row:
        """Row of the oldest waiting step, over all steps that wait. next_value: of the observation after them."""
        waiting = self._streams[env].waiting
        age = self._streams[env].length - len(waiting)
        reward = 0.0
        for later in reversed(waiting):
            reward = later.reward + self._gamma * reward
        first = waiting.popleft()
        row = _Row(first.obs, env, first.action, reward, len(waiting) + 1, terminated, age=age)
        if next_value is not None:
            bootstrap = 0.0 if terminated else self._gamma**row.span * next_value
            priority = abs(reward + bootstrap - first.taken)
            if priority <= _MAX_PRIORITY:  # not of a state in which nothing is allowed, nor of NaN
                row.priority = priority
        return row

    def _flush(self, env: int, terminated: bool, next_value: float | None) -> list[_Row]:
        """Rows of all that waits, each over what has come."""
        rows = []
        while self._streams[env].waiting:
            rows.append(self._oldest(env, terminated, next_value))
        return rows

    def _end(
        self, env: int, final_obs: tuple[Array, ...], terminated: bool, next_value: float | None = None
    ) -> list[_Row]:
        stream = self._streams[env]
        rows = self._flush(env, terminated, next_value)
        episode_return, length = stream.episode_return, stream.length
        rows.append(_Row(final_obs, env, episode_return=episode_return, length=length, age=length))
        self._streams[env] = _Stream()
        return rows

    def _pack(self, rows: list[_Row]) -> Items:
        items = empty_items(self._columns, len(rows))
        for i, row in enumerate(rows):
            for name, value in zip(self._obs_names, row.obs, strict=True):
                items[name][i] = value
            if row.action is not None:
                items["action"][i] = row.action
        if rows:
            items["reward"][:] = [r.reward for r in rows]
            items["discount"][:] = [self._gamma**r.span for r in rows]
            items["terminated"][:] = [r.terminated for r in rows]
            items["span"][:] = [r.span for r in rows]
            items["env"][:] = [r.env for r in rows]
            items["episode_return"][:] = [r.episode_return for r in rows]
            items["episode_length"][:] = [r.length for r in rows]
            if self._has_age:
                items["age"][:] = [min(r.age, MAX_AGE) for r in rows]
            if self.needs_estimates:
                items["priority"][:] = [r.priority for r in rows]
        return items


def _estimated(step: Step, k: int) -> tuple[float | None, float]:
    """Value of the best action of row k, None where nobody knows, and of the one that was taken."""
    if step.estimates is None:
        return None, 0.0
    return float(step.estimates.best[k]), float(step.estimates.taken[k])


def stack_items(parts: list[Items]) -> Items:
    """Rows of several parts, one after the other. Raises ValueError when there are no parts."""
    if not parts:
        raise ValueError("nothing to stack")
    if len(parts) == 1:
        return parts[0]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
