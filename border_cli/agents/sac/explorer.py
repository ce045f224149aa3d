"""Noise that lasts for longer than an env step: Ornstein-Uhlenbeck noise, and state-dependent noise (gSDE).

Each environment has noise of its own, which begins anew with each episode.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from border_cli.core.errors import UnfitStateError
from border_cli.core.spaces import Array
from border_cli.core.state import count, listed, number, require

_DT = 0.01
_MAX_SEED = 2**63 - 1


class OrnsteinUhlenbeck:
    """Drifting noise (Uhlenbeck and Ornstein, 1930; as in Lillicrap et al., 2016) of `size` components."""

    def __init__(self, size: int, std: float, theta: float) -> None:
        self._size = size
        self._std = std
        self._theta = theta
        self._at: dict[int, Array] = {}

    def begin_episode(self, env_ix: int) -> None:
        """It starts from 0 again."""
        self._at.pop(env_ix, None)

    def sample(self, env_ix: Sequence[int], rng: np.random.Generator) -> Array:
        """(k, size) float64 for these environments, one env step later."""
        before = np.stack([self._at.get(i, np.zeros(self._size)) for i in env_ix])
        steps = rng.standard_normal(before.shape)
        after: Array = before - self._theta * _DT * before + self._std * np.sqrt(_DT) * steps
        self._at |= dict(zip(env_ix, after, strict=True))
        return after

    def state(self) -> dict[str, Any]:
        """Where each environment's is, as JSON values."""
        return {str(i): value.tolist() for i, value in sorted(self._at.items())}

    def load_state(self, state: Any) -> None:
        """Raises UnfitStateError for what does not fit."""
        require(state, (), "the noise")
        self._at = {
            _env(i): np.array([_finite(x) for x in listed(value, "noise", self._size)])
            for i, value in state.items()
        }


class StateDependentNoise:
    """Matrices of standard normal numbers (Raffin et al., 2021), kept as the seed they come from.

    interval: env steps after which an environment gets another one; None: only where an episode begins.
    """

    def __init__(self, shape: tuple[int, int], interval: int | None = None) -> None:
        self._shape = shape
        self._interval = interval
        self._seeds: dict[int, int] = {}
        self._uses: dict[int, int] = {}
        self._matrices: dict[int, Array] = {}

    def begin_episode(self, env_ix: int) -> None:
        """A new matrix when it is needed."""
        for kept in (self._seeds, self._uses, self._matrices):
            kept.pop(env_ix, None)

    def sample(self, env_ix: Sequence[int], rng: np.random.Generator) -> Array:
        """(k, *shape) float32 of these environments, for one env step."""
        return np.stack([self._matrix(i, rng) for i in env_ix])

    def state(self) -> dict[str, Any]:
        """The seed of each environment and how often its matrix was used, as JSON values."""
        return {str(i): [seed, self._uses[i]] for i, seed in sorted(self._seeds.items())}

    def load_state(self, state: Any) -> None:
        """Raises UnfitStateError for what does not fit."""
        require(state, (), "the noise")
        pairs = {_env(i): listed(pair, "noise", 2) for i, pair in state.items()}
        self._seeds = {i: count(seed, "a seed of noise", _MAX_SEED) for i, (seed, _) in pairs.items()}
        self._uses = {i: count(uses, "uses of noise") for i, (_, uses) in pairs.items()}
        self._matrices = {}

    def _matrix(self, env_ix: int, rng: np.random.Generator) -> Array:
        if self._uses.get(env_ix) == self._interval:
            self.begin_episode(env_ix)
        if env_ix not in self._seeds:
            self._seeds[env_ix] = int(rng.integers(0, _MAX_SEED))
            self._uses[env_ix] = 0
        if env_ix not in self._matrices:
            own = np.random.Generator(np.random.PCG64(self._seeds[env_ix]))
            self._matrices[env_ix] = own.standard_normal(self._shape, np.float32)
        self._uses[env_ix] += 1
        return self._matrices[env_ix]


LastingNoise = OrnsteinUhlenbeck | StateDependentNoise


def _env(name: str) -> int:
    if not name.isdecimal():
        raise UnfitStateError(f"{name[:20]!r} is no environment")
    return int(name)


def _finite(value: Any) -> float:
    found = number(value, "noise")
    if not np.isfinite(found):
        raise UnfitStateError("noise that is not finite")
    return found
