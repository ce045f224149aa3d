"""Checks of what environments return: shapes, dtypes, bounds, finite numbers, and the form of the results."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import numpy as np

from border_cli.core.spaces import Array, EnvSpec, Obs, ObsLeaf, encode

_MAX_REWARD = 1e30
"""A larger reward counts as infinite, so that n-step sums in float32 stay finite."""
_FIRST_OBSERVATIONS, _CHECK_INTERVAL = 100, 1000
_LEAST_CHANGE = 1e-3
"""Smaller changes that float32 does not show count as noise."""
_logger = logging.getLogger(__name__)


class EnvDataError(Exception):
    """Environment `env_ix` of a group returned something outside its spaces, or a number that is not finite."""

    def __init__(self, message: str, env_ix: int = 0) -> None:
        super().__init__(message)
        self.env_ix = env_ix


class EnvApiError(EnvDataError):
    """The result of an environment does not have the form of gymnasium's API."""


class EnvChecker:
    """Checks and stores the observations of a group of environments of one kind, and counts their env steps.

    Shapes and dtypes are always checked. Bounds are checked in the first 100 observations of each environment and then
    in every 1000th; the first value outside gives a warning. A value outside is always an error if storing would change
    it, or if it names a category that does not exist.

    Args:
        space: gymnasium's space of the observations.

    Attributes:
        obs: (n_envs, ...) current observations, as stored.
        episodes: (n_envs) episodes that began.
        steps: (n_envs) env steps of the current episode.
    """

    def __init__(self, space: Any, spec: EnvSpec, n_envs: int) -> None:
        self.obs: Obs = spec.obs.zeros(n_envs)
        self.episodes = [0] * n_envs
        self.steps = [0] * n_envs
        self._all = list(range(n_envs))
        self._shared = False  # whether a caller holds the arrays of `obs`
        self._leaves = [_LeafChecker(leaf, space) for leaf in spec.obs.leaves]
        first = self._leaves[0]
        self._plain = first if len(self._leaves) == 1 and not (first.spec.path or first.always) else None
        floats = {name: bytearray(rows.size) for name, rows in self.obs.items() if rows.dtype.kind == "f"}
        self._finite_flags = {name: (flags, np.frombuffer(flags, bool)) for name, flags in floats.items()}
        self._observations = [0] * n_envs  # stored so far

    @property
    def env_steps(self) -> int:
        """Env steps of all environments. Each episode has one observation more than it has env steps."""
        return sum(self._observations) - sum(self.episodes)

    # -- observations ---------------------------------------------------

    def observe(self, env_ix: Sequence[int]) -> Obs:
        if (ix := list(env_ix)) == self._all:
            self._shared = True
            return dict(self.obs)
        return {name: rows[ix] for name, rows in self.obs.items()}

    def begin(self, env_ix: int) -> None:
        """Count an episode that is about to begin."""
        self.episodes[env_ix] += 1
        self.steps[env_ix] = 0

    def take_first(self, env_ix: int, observation: Any) -> None:
        """Store the first observation of an episode. Raises EnvDataError."""
        self.renew_arrays(whole=False)
        self._store(env_ix, observation)
        self.check_finite([env_ix])

    def take(self, env_ix: int, observation: Any) -> None:
        """Store the next observation of an episode, after `renew_arrays`. Raises EnvDataError."""
        self.steps[env_ix] += 1
        n = self._observations[env_ix]
        # Most are a plain array, and without a check of its bounds there is nothing to do but to convert its dtype.
        plain = self._plain
        if plain and n >= _FIRST_OBSERVATIONS and n % _CHECK_INTERVAL and plain.fits(observation):
            self._observations[env_ix] = n + 1
            self.obs[plain.spec.name][env_ix] = observation
        else:
            self._store(env_ix, observation)

    def renew_arrays(self, whole: bool) -> None:
        """Prepare for new observations: arrays that `observe` returned do not change. whole: every row is to be stored."""
        if self._shared:
            self.obs = {k: np.empty_like(rows) if whole else rows.copy() for k, rows in self.obs.items()}
            self._shared = False

    def _store(self, env_ix: int, observation: Any) -> None:
        n = self._observations[env_ix]
        self._observations[env_ix] = n + 1
        check_bounds = n < _FIRST_OBSERVATIONS or n % _CHECK_INTERVAL == 0
        try:
            for leaf in self._leaves:
                self.obs[leaf.spec.name][env_ix] = leaf.stored(observation, check_bounds)
        except EnvDataError as e:
            raise EnvDataError(f"{self._where(env_ix)}: {e}", env_ix) from None

    def _where(self, env_ix: int) -> str:
        return f"environment {env_ix}, episode {self.episodes[env_ix]}, env step {self.steps[env_ix]} of it"

    # -- finite numbers -------------------------------------------------

    def check_finite(self, env_ix: Sequence[int], reward: Array | None = None) -> None:
        """Raise EnvDataError if a number of these environments is not finite.

        env_ix: those whose observations were stored · reward: (k,) of their env steps; None for first observations.
        """
        finite = reward is None or all(-_MAX_REWARD <= value <= _MAX_REWARD for value in reward.tolist())
        for name, (flags, is_finite) in self._finite_flags.items():
            np.isfinite(self.obs[name].reshape(-1), is_finite)
            finite = finite and 0 not in flags  # a search in bytes takes a quarter of the time of `all`
        if finite:
            return
        for k, i in enumerate(env_ix):
            if problem := self._not_finite(i, 0.0 if reward is None else float(reward[k])):
                raise EnvDataError(f"{self._where(i)}: {problem}", i)

    def _not_finite(self, env_ix: int, reward: float) -> str:
        """Which number of this environment is not finite; empty if all are."""
        for name in self._finite_flags:
            row = self.obs[name][env_ix]
            if not np.isfinite(row).all():
                index = tuple(np.argwhere(~np.isfinite(row))[0])
                return f"observation {name}{_shown(index)} is {row[index]}"
        return "" if -_MAX_REWARD <= reward <= _MAX_REWARD else f"the reward is {reward}"


class _LeafChecker:
    """Checks one leaf of the observations. always: every observation must be within the bounds."""

    def __init__(self, spec: ObsLeaf, space: Any) -> None:
        for key in spec.path:
            space = space.spaces[key]
        self.spec = spec
        self._declared = np.dtype(space.dtype)
        self._accepted = self._declared
        self._warned_of_dtype = self._warned_of_bounds = False
        self._rounded = spec.kind == "box" and not np.can_cast(self._declared, np.float32, "safe")
        self._before: Array | None = None  # the value whose precision was checked last
        self._coded = spec.kind == "box" and bool(spec.categories)
        self._float = np.dtype(spec.dtype).kind == "f"
        self.always = not self._float and (
            spec.kind != "box" or not np.can_cast(self._declared, spec.dtype, "safe")
        )
        start = np.reshape(spec.start, spec.shape) if spec.start else np.array(0)
        if spec.kind == "box":
            self._low, self._high = space.low, space.high
        elif spec.kind == "multi_binary":
            self._low, self._high = start, start + 1
        else:
            self._low, self._high = start, start + np.reshape(spec.categories, spec.shape) - 1
        if self._float:
            with np.errstate(over="ignore"):  # a bound beyond float32 is infinite
                self._low, self._high = self._low.astype(spec.dtype), self._high.astype(spec.dtype)

    def fits(self, value: Any) -> bool:
        """Whether this is an array of the expected shape and dtype."""
        return type(value) is np.ndarray and value.dtype == self._accepted and value.shape == self.spec.shape

    def stored(self, observation: Any, check_bounds: bool) -> Array:
        """The value of the leaf in an observation, as stored. Raises EnvDataError.

        check_bounds: check bounds even if a value outside can be stored.
        """
        spec = self.spec
        try:
            for key in spec.path:
                observation = observation[key]
        except (LookupError, TypeError) as e:
            raise EnvDataError(f"observation {spec.name} is missing, but its space has it") from e
        value = np.asarray(observation)
        if value.dtype is not self._accepted and value.dtype != self._accepted:
            problem = f"observation {spec.name} has dtype {value.dtype}, its space says {self._declared}"
            if not np.can_cast(value.dtype, self._declared, "same_kind"):
                raise EnvDataError(problem)
            if not np.can_cast(value.dtype, self._declared, "safe") and not self._warned_of_dtype:
                _logger.warning("%s: it is converted", problem)
                self._warned_of_dtype = True
            self._accepted = value.dtype
        if value.shape != spec.shape:
            raise EnvDataError(
                f"observation {spec.name} has shape {value.shape}, its space says {spec.shape}"
            )
        if self.always or check_bounds:
            self._check_bounds(value)
        return encode(spec, value)

    def _check_precision(self, value: Array) -> None:
        """Warn once if float32, which networks compute with, cannot tell two observations apart."""
        before, self._before = self._before, value
        if before is None:
            return
        with np.errstate(invalid="ignore", over="ignore"):
            is_same = value.astype(np.float32) == before.astype(np.float32)
            lost = np.argwhere(is_same & (np.abs(value - before) > _LEAST_CHANGE))
        if len(lost):
            index = tuple(lost[0])
            _logger.warning(
                "observation %s%s was %s and then %s, which are one number in float32, with which agents compute: "
                "a wrapper (env.wrappers) can subtract what is constant",
                *(self.spec.name, _shown(index), before[index], value[index]),
            )
            self._rounded = False

    def _check_categories(self, value: Array) -> None:
        """Warn once about a value that the coding by `env.categories` does not know."""
        by_channel = np.moveaxis(value, self.spec.channel_axis, -1)
        unknown = np.argwhere(by_channel >= np.array(self.spec.categories))
        if len(unknown):
            *_, channel = index = tuple(unknown[0])
            _logger.warning(
                "observation %s has %d in channel %d, which has %d categories (env.categories): it is coded as zeros; "
                "later ones are not reported",
                *(self.spec.name, by_channel[index], channel, self.spec.categories[channel]),
            )
            self._coded = False

    def _check_bounds(self, value: Array) -> None:
        if self._coded:
            self._check_categories(value)
        if self._rounded:
            self._check_precision(value.astype(np.float64))
        if self._float:
            value = value.astype(self.spec.dtype, copy=False)  # rounded as the bounds are
        outside = (value < self._low) | (value > self._high)
        outside &= np.isfinite(value)  # `EnvChecker.check_finite` deals with the others
        if not outside.any():
            return
        index = tuple(np.argwhere(outside)[0])
        low, high = (np.broadcast_to(bound, value.shape)[index] for bound in (self._low, self._high))
        name = f"{self.spec.name}{_shown(index)}"
        problem = f"observation {name} is {value[index]}, its space says between {low} and {high}"
        if self.always:
            raise EnvDataError(problem)
        if not self._warned_of_bounds:
            _logger.warning("%s; later ones are not reported", problem)
            self._warned_of_bounds = True


def _shown(index: tuple[Any, ...]) -> str:
    return f"[{', '.join(map(str, index))}]" if index else ""


# -- the form of results ------------------------------------------------------


_STEP = {
    "reward": ("biuf", "one number"),
    "terminated": ("biu", "True or False"),
    "truncated": ("biu", "True or False"),
    "info": ("", "a dict"),
}
_RESET = {"info": _STEP["info"]}
"""What each part of a result has to be, after the observation: numpy's kinds of dtype, and what to call it."""


def checked(result: Any, method: str) -> Any:
    """The result of `reset` or `step`. Raises EnvApiError where it has other parts than gymnasium's API asks for."""
    match result:
        case _, float(), bool(), bool(), dict() if type(result) is tuple and method == "step":
            return result  # as most environments: the rest takes a microsecond
    parts = _STEP if method == "step" else _RESET
    if not isinstance(result, tuple) or len(result) != 1 + len(parts):
        form = f"{len(result)} values" if isinstance(result, tuple) else f"a {type(result).__name__}"
        raise EnvApiError(f"{method}() returns {form}, not ({', '.join(['observation', *parts])})")
    for (name, (kinds, what)), value in zip(parts.items(), result[1:], strict=True):
        if name == "info":
            is_right = isinstance(value, dict)
        elif type(value) is bool or ("f" in kinds and isinstance(value, float | int)):  # as most environments
            is_right = True
        else:
            is_right = not np.ndim(value) and np.asarray(value).dtype.kind in kinds
            is_right = is_right and ("f" in kinds or value in (0, 1))
        if not is_right:
            raise EnvApiError(f"{method}() returns {name} that is not {what}: {value!r:.60}")
    return result
