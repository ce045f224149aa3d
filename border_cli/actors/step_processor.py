"""Env steps to rows of the replay: one row per env step, and one for the final observation of an episode."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from border_cli.core.spaces import Array, EnvSpec, Obs
from border_cli.core.state import State, check_like
from border_cli.core.types import (
    EPISODE_INFO,
    Column,
    Items,
    Step,
    empty_items,
    item_columns,
    obs_columns,
    stored_step,
)

_ROOM = 64
"""Rows that there is room for at first. The room grows to what an actor hands over at once."""
_OF_FINAL_ROWS = {"final", "episode_return", "episode_length", EPISODE_INFO}
"""Columns that are 0 in all other rows."""


class RowProcessor:
    """Implements `core.protocols.StepProcessor`. The rows of an env step come at once, those of all environments together.

    Args:
        extra: columns of the agent.
        n_info: values of an episode's info that its final row has.
    """

    def __init__(self, spec: EnvSpec, n_envs: int, extra: tuple[Column, ...] = (), n_info: int = 0) -> None:
        self.needs_extras = bool(extra)
        self.n_rows = 0
        self._columns = item_columns(spec, extra, n_info)
        self._rows = empty_items(self._columns, max(_ROOM, 2 * n_envs))
        self._stacked = [(leaf.name, leaf.stack > 1) for leaf in spec.obs.leaves]
        self._extra = [column.name for column in extra]
        self._n_envs = n_envs
        self._length = np.zeros(n_envs, np.int64)  # env steps of each environment's episode so far
        self._return = np.zeros(n_envs, np.float64)
        self._newest = empty_items(obs_columns(spec), n_envs)  # observation of each, as stored

    def add(self, step: Step) -> None:
        if step.dropped is not None and np.count_nonzero(step.dropped):
            for env in np.asarray(step.env_ix)[step.dropped].tolist():
                self.cut(env)
            step = step.selected(~step.dropped)
        n, newest, terminated = len(step.env_ix), self._stored(step.next_obs), step.terminated
        if step.life_lost is not None:
            terminated = terminated | step.life_lost
        columns = self._stored(step.obs) | {name: step.extras[name] for name in self._extra}
        columns |= {"action": step.action, "reward": step.reward, "terminated": terminated}
        # A slice is faster than an index array. Usually all environments take an env step.
        is_whole = n == self._n_envs and step.env_ix[0] == 0
        env_ix: slice | Array = slice(None) if is_whole else np.asarray(step.env_ix, np.int64)
        self._write(columns, step.env_ix, env_ix)
        self._length[env_ix] += 1
        self._return[env_ix] += step.reward
        for name, rows in newest.items():
            self._newest[name][env_ix] = rows
        if np.count_nonzero(step.terminated) or np.count_nonzero(step.truncated):
            over = step.terminated | step.truncated
            self._end(np.asarray(step.env_ix)[over], None if step.infos is None else step.infos[over])

    def cut(self, env_ix: int) -> None:
        """See `StepProcessor`. The episode is not reported."""
        if self._length[env_ix]:
            self._end(np.array([env_ix]), reported=False)

    def take(self, into: Items | None = None) -> Items:
        items = empty_items(self._columns, self.n_rows) if into is None else into
        before, n = self.n_rows, len(items["env"])
        for name, rows in self._rows.items():
            items[name][...] = rows[:n]
        self.n_rows = before - n
        if self.n_rows:
            for rows in self._rows.values():
                rows[: self.n_rows] = rows[n:before].copy()
        for name in _OF_FINAL_ROWS & self._rows.keys():
            self._rows[name][self.n_rows : before] = 0
        return items

    def _stored(self, obs: Obs) -> Obs:
        """Observations (k, ...) as rows store them: of stacks the newest frames."""
        return {name: obs[name][:, -1] if stacked else obs[name] for name, stacked in self._stacked}

    def _write(self, columns: Mapping[str, Any], env: Sequence[int] | Array, env_ix: slice | Array) -> None:
        """Append rows of these environments. The columns that are not given stay 0."""
        first, end = self.n_rows, self.n_rows + len(env)
        while end > len(self._rows["env"]):
            self._rows = {n: np.concatenate([rows, np.zeros_like(rows)]) for n, rows in self._rows.items()}
        rows = self._rows
        for name, values in columns.items():
            rows[name][first:end] = values
        rows["env"][first:end] = env
        rows["step"][first:end] = stored_step(self._length[env_ix])
        self.n_rows = end

    def _end(self, env_ix: Array, infos: Array | None = None, *, reported: bool = True) -> None:
        """Append the final observations of these environments, whose episodes begin anew. reported: they count."""
        columns: dict[str, Any] = dict.fromkeys(self._rows, 0)
        columns |= {name: rows[env_ix] for name, rows in self._newest.items()}
        columns["final"] = True
        if reported:
            columns |= {"episode_return": self._return[env_ix], "episode_length": self._length[env_ix]}
            if infos is not None:
                columns[EPISODE_INFO] = infos
        self._write(columns, env_ix, env_ix)
        self._length[env_ix], self._return[env_ix] = 0, 0.0
        for rows in self._newest.values():
            rows[env_ix] = 0

    def state(self) -> State:
        newest = {f"newest/{name}": rows.copy() for name, rows in self._newest.items()}
        return State(newest | {"length": self._length.copy(), "return": self._return.copy()})

    def load_state(self, state: State) -> None:
        check_like(state, self.state(), "the step processor")
        for name, rows in self._newest.items():
            rows[...] = state.arrays[f"newest/{name}"]
        self._length[:], self._return[:] = state.arrays["length"], state.arrays["return"]
