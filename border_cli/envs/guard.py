"""What environments give, checked before anybody learns from it: parts, shapes, dtypes, bounds, finite numbers."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol

import numpy as np

from border_cli.core.protocols import Env
from border_cli.core.spaces import Array, EnvSpec, Obs, ObsLeaf
from border_cli.core.state import count, flag, listed, require

ANY_REWARD = sys.float_info.max
"""The reward limit that only NaN and infinities exceed."""
_EVERY_STEP_UNTIL, _THEN_EVERY = 100, 1000
_DROPS_IN_A_ROW = 100
_logger = logging.getLogger(__name__)


class EnvDataError(Exception):
    """An environment gave what its spaces do not allow, or a number that is not finite.

    A failure of the environment, as any exception that it raises itself.
    """


class JudgedEnv(Env, Protocol):
    """Environments that count what they have judged, because how they judge depends on that."""

    def judged(self) -> dict[str, object]:
        """The counts, as JSON can hold them."""

    def judged_before(self, saved: Mapping[str, Any]) -> AbstractContextManager[None]:
        """Go on from saved counts. What is done inside was judged before: it counts nothing, and bounds are not checked.

        Raises ValueError for counts that do not fit.
        """


class EnvGuard:
    """Takes in the observations of a group of environments of one kind. obs: the present ones, as stored.

    space: of the observations · drop: env steps with numbers that are not finite are to be left out, instead of being
    an error · strict_bounds: an observation outside its space is an error in an environment's first 100 env steps ·
    reward_limit: rewards beyond ± this count as not finite. dropped: env steps left out so far.

    Shapes and dtypes are checked always. Bounds are checked in the first 100 env steps of an environment, then in every
    1000th; what is no error is told once; only where a value outside would be stored as
    another one, or name a category that does not exist, it is checked, and an error, always.
    """

    def __init__(
        self,
        space: Any,
        spec: EnvSpec,
        n_envs: int,
        *,
        drop: bool = False,
        strict_bounds: bool = True,
        reward_limit: float = ANY_REWARD,
    ) -> None:
        self.obs: Obs = spec.obs.zeros(n_envs)
        self.dropped = 0
        self._leaves = [_Leaf(leaf, _subspace(space, leaf)) for leaf in spec.obs.leaves]
        floats = [rows for rows in self.obs.values() if rows.dtype.kind == "f"]
        self._floats = [(rows.reshape(-1), bytearray(rows.size)) for rows in floats]
        self._is_finite = [np.frombuffer(flags, bool) for _, flags in self._floats]
        self._drop = drop
        self._strict_bounds = strict_bounds
        self._reward_limit = reward_limit
        self._episode = [0] * n_envs
        self._step = [0] * n_envs
        self._taken = [0] * n_envs
        self._in_a_row: dict[int, int] = {}
        self._again = False  # whether what is taken was judged before

    def state(self) -> dict[str, object]:
        """What the next observations are judged by, as JSON can hold it."""
        return {
            "taken": list(self._taken),
            "episodes": list(self._episode),
            "in_a_row": [self._in_a_row.get(i, 0) for i in range(len(self._taken))],
            "dropped": self.dropped,
            "told_dtype": [leaf.told_dtype for leaf in self._leaves],
            "told_bounds": [leaf.told_bounds for leaf in self._leaves],
        }

    @contextmanager
    def judged_before(self, saved: Mapping[str, Any]) -> Iterator[None]:
        """As of `JudgedEnv`."""
        self._load(saved)
        self._in_a_row = {}  # those of the present episodes come again
        self._again = True
        try:
            yield
        finally:
            self._again = False
        self._load(saved)

    def _load(self, saved: Mapping[str, Any]) -> None:
        require(saved, self.state(), "what was judged")
        lists = {
            name: [count(value, name) for value in listed(saved[name], name, len(self._taken))]
            for name in ("taken", "episodes", "in_a_row")
        }
        told = [
            [flag(value, name) for value in listed(saved[name], name, len(self._leaves))]
            for name in ("told_dtype", "told_bounds")
        ]
        self._taken, self._episode = lists["taken"], lists["episodes"]
        self._in_a_row = {i: n for i, n in enumerate(lists["in_a_row"]) if n}
        self.dropped = count(saved["dropped"], "dropped")
        for leaf, told_dtype, told_bounds in zip(self._leaves, *told, strict=True):
            leaf.told_dtype, leaf.told_bounds = told_dtype, told_bounds

    def begin(self, env_ix: int, observation: Any) -> bool:
        """Take the first observation of an episode; whether it can be used. Raises EnvDataError."""
        self._episode[env_ix] += 1
        self._step[env_ix] = 0
        self._store(env_ix, observation)
        return self.unusable([env_ix]) is None

    def take(self, env_ix: int, observation: Any) -> None:
        """Take the next observation of an episode. Raises EnvDataError."""
        self._step[env_ix] += 1
        self._store(env_ix, observation)

    def unusable(self, env_ix: Sequence[int], reward: Array | None = None) -> Array | None:
        """(k,) bool, env steps to be left out because a number is not finite; None if there are none.

        reward: (k,) of these environments, with the observations that were taken. Raises EnvDataError.
        """
        if self._all_finite() and (reward is None or self._within_limit(reward)):
            bad = None
        else:
            bad = np.array(
                [self._is_bad(i, 0.0 if reward is None else float(reward[k])) for k, i in enumerate(env_ix)]
            )
        if self._in_a_row and reward is not None:
            for k, i in enumerate(env_ix):
                if bad is None or not bad[k]:
                    self._in_a_row.pop(i, None)
        return bad if bad is not None and bad.any() else None

    def not_finite(self, env_ix: Sequence[int], reward: Array) -> Array:
        """(k,) bool: whose numbers are not finite. As of `unusable`, but nothing is done about it."""
        return np.array([bool(self._not_finite(i, float(reward[k]))) for k, i in enumerate(env_ix)])

    def _store(self, env_ix: int, observation: Any) -> None:
        n = self._taken[env_ix]
        self._taken[env_ix] = n + 1
        early = n < _EVERY_STEP_UNTIL and not self._again
        check_bounds = early or (n % _THEN_EVERY == 0 and not self._again)
        try:
            for leaf in self._leaves:
                self.obs[leaf.name][env_ix] = leaf.stored(
                    observation, check_bounds, early and self._strict_bounds
                )
        except EnvDataError as e:
            raise EnvDataError(f"{self._where(env_ix)}: {e}") from None

    def _all_finite(self) -> bool:
        """Whether every number is. The flags are looked through as bytes, in a quarter of the time of `all`."""
        for (rows, flags), is_finite in zip(self._floats, self._is_finite, strict=True):
            np.isfinite(rows, is_finite)
            if 0 in flags:
                return False
        return True

    def _within_limit(self, reward: Array) -> bool:
        limit = self._reward_limit
        return all(-limit <= value <= limit for value in reward.tolist())

    def _is_bad(self, env_ix: int, reward: float) -> bool:
        """Whether this environment's env step is to be left out. Raises EnvDataError where none may be."""
        problem = self._not_finite(env_ix, reward)
        if problem:
            self._leave_out(env_ix, problem)
        return bool(problem)

    def _not_finite(self, env_ix: int, reward: float) -> str:
        """Which number of this environment is not finite; empty if all are."""
        for name, rows in self.obs.items():
            if rows.dtype.kind == "f" and not np.isfinite(rows[env_ix]).all():
                index = np.argwhere(~np.isfinite(rows[env_ix]))[0]
                where = f"[{', '.join(map(str, index))}]" if len(index) else ""
                return f"observation {name}{where} is {rows[env_ix][tuple(index)]}"
        if -self._reward_limit <= reward <= self._reward_limit:
            return ""
        if np.isfinite(reward):
            return f"the reward is {reward:g}, beyond {self._reward_limit:.3g}: sums of such are infinite in float32"
        return f"the reward is {reward}"

    def _leave_out(self, env_ix: int, problem: str) -> None:
        where = f"{self._where(env_ix)}: {problem}"
        if not self._drop:
            raise EnvDataError(f"{where}; env.nonfinite=drop would end the episode before it")
        self.dropped += 1
        self._in_a_row[env_ix] = self._in_a_row.get(env_ix, 0) + 1
        if self._in_a_row[env_ix] >= _DROPS_IN_A_ROW:
            raise EnvDataError(f"{where}, and so it was {_DROPS_IN_A_ROW} times in a row")
        if self.dropped == 1:
            _logger.warning("%s: the episode ends before it, and so will others without a word", where)

    def _where(self, env_ix: int) -> str:
        return f"environment {env_ix}, episode {self._episode[env_ix]}, env step {self._step[env_ix]} of it"


class _Leaf:
    """One leaf of the observation space: what it allows, and which of its warnings were given (told_dtype, told_bounds)."""

    def __init__(self, leaf: ObsLeaf, space: Any) -> None:
        self.name = leaf.name
        self._leaf = leaf
        self._space_dtype = np.dtype(space.dtype)
        self._stored_dtype = np.dtype(leaf.dtype)
        self._accepted = self._space_dtype
        self._low, self._high = _bounds(leaf, space)
        self._strict = self._stored_dtype.kind != "f" and (
            leaf.kind != "box" or not np.can_cast(self._space_dtype, self._stored_dtype, "safe")
        )
        self.told_dtype = self.told_bounds = False

    def stored(self, observation: Any, check_bounds: bool, is_error: bool) -> Array:
        """The leaf's value in an observation, as stored. Raises EnvDataError."""
        value = np.asarray(self._part(observation))
        if value.dtype is not self._accepted and value.dtype != self._accepted:
            self._judge_dtype(value.dtype)
        if value.shape != self._leaf.shape:
            raise EnvDataError(
                f"observation {self.name} has shape {value.shape}, its space says {self._leaf.shape}"
            )
        if self._strict or check_bounds:
            self._check_bounds(value, is_error)
        if self._leaf.start:
            value = value - np.asarray(self._leaf.start).reshape(self._leaf.shape)
        return value.astype(self._stored_dtype, copy=False)

    def _part(self, observation: Any) -> Any:
        try:
            for key in self._leaf.path:
                observation = observation[key]
        except (LookupError, TypeError) as e:
            raise EnvDataError(f"there is no observation {self.name}, and its space says there is") from e
        return observation

    def _judge_dtype(self, given: np.dtype[Any]) -> None:
        if not np.can_cast(given, self._space_dtype, "same_kind"):
            raise EnvDataError(
                f"observation {self.name} has dtype {given}, its space says {self._space_dtype}"
            )
        if not np.can_cast(given, self._space_dtype, "safe") and not self.told_dtype:
            _logger.warning(
                "observation %s has dtype %s, its space says %s: it is converted",
                self.name,
                given,
                self._space_dtype,
            )
            self.told_dtype = True
        self._accepted = given

    def _check_bounds(self, value: Array, is_error: bool) -> None:
        if self._stored_dtype.kind == "f":
            value = value.astype(self._stored_dtype, copy=False)  # rounded as the bounds are
        outside = ((value < self._low) | (value > self._high)) & np.isfinite(
            value
        )  # others are judged as such
        if not outside.any():
            return
        index = tuple(np.argwhere(outside)[0])
        low, high = (np.broadcast_to(bound, value.shape)[index] for bound in (self._low, self._high))
        where = f"[{', '.join(map(str, index))}]" if index else ""
        problem = f"observation {self.name}{where} is {value[index]}, its space says between {low} and {high}"
        if self._strict:
            raise EnvDataError(problem)
        if is_error:
            raise EnvDataError(f"{problem}; env.out_of_bounds=warn would only tell it")
        if not self.told_bounds:
            _logger.warning("%s; that is not told again", problem)
            self.told_bounds = True


def _subspace(space: Any, leaf: ObsLeaf) -> Any:
    for key in leaf.path:
        space = space.spaces[key]
    return space


def _bounds(leaf: ObsLeaf, space: Any) -> tuple[Array, Array]:
    if leaf.kind == "box":
        low, high = np.asarray(space.low), np.asarray(space.high)
        if np.dtype(leaf.dtype).kind == "f":
            with np.errstate(over="ignore"):  # a bound beyond float32 is none
                low, high = low.astype(leaf.dtype), high.astype(leaf.dtype)
        return low, high
    if leaf.kind == "multi_binary":
        return np.array(0), np.array(1)
    start = np.array(leaf.start).reshape(leaf.shape)
    return start, start + np.array(leaf.categories).reshape(leaf.shape) - 1
