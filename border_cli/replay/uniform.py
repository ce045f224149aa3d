"""The uniform replay buffer: a ring over rows, sampled uniformly with replacement.

Every observation is stored once. A transition's next observation is another row of the same storage, which arrives
later in the same stream; until then the row cannot be sampled. The newest row of a ring is overwritten last, so a
row's next observation always outlives the row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from border_cli.config.schema import BufferConfig
from border_cli.core.items import Column, Items, item_columns
from border_cli.core.protocols import Batch
from border_cli.core.spaces import Array, EnvSpec
from border_cli.runtime.seeding import REPLAY, generator

_STORED = ("action", "reward", "discount", "terminated")
_NOT_YET = -1


def make_buffer(config: BufferConfig, spec: EnvSpec, seed: int) -> UniformReplayBuffer:
    """The buffer that a configuration describes; `seed` is the run's."""
    return UniformReplayBuffer(config.capacity, spec, generator(seed, REPLAY))


def buffer_bytes(config: BufferConfig, spec: EnvSpec) -> int:
    """Bytes that `make_buffer` takes once the ring is full."""
    return config.capacity * (sum(c.row_bytes for c in _stored_columns(spec)) + np.dtype(np.int64).itemsize)


@dataclass
class _Tail:
    """The newest rows of one stream, from the first that still waits for its next observation."""

    rows: Array
    span: Array


class UniformReplayBuffer:
    """Implements `core.protocols.ReplayBuffer`. capacity: rows, final observations included."""

    def __init__(self, capacity: int, spec: EnvSpec, rng: np.random.Generator) -> None:
        self.capacity = capacity
        self._obs_names = [leaf.name for leaf in spec.obs.leaves]
        self._data = {c.name: np.zeros((capacity, *c.shape), c.dtype) for c in _stored_columns(spec)}
        self._next = np.full(capacity, _NOT_YET, np.int64)
        self._tails: dict[tuple[int, int], _Tail] = {}
        self._rows = 0  # ever pushed
        self._ready = 0  # rows whose next observation is there
        self._rng = rng

    def __len__(self) -> int:
        return self._ready

    def push(self, items: Items, actor: int = 0) -> None:
        """Append rows of one actor, each environment's in stream order."""
        for start in range(0, len(items["span"]), self.capacity):
            self._append({name: rows[start : start + self.capacity] for name, rows in items.items()}, actor)

    def batch(self, size: int) -> Batch:
        """A uniform batch. Raises ValueError while fewer than `size` rows can be sampled."""
        if self._ready < size:
            raise ValueError(f"a batch of {size} from {self._ready} rows")
        filled = min(self._rows, self.capacity)
        ix = self._rng.integers(0, filled, size)
        next_ix = self._next[ix]
        while (missing := np.flatnonzero(next_ix < 0)).size:  # final observations, and rows that still wait
            ix[missing] = self._rng.integers(0, filled, missing.size)
            next_ix[missing] = self._next[ix[missing]]
        data = self._data
        return Batch(
            obs={name: data[name].take(ix, axis=0) for name in self._obs_names},
            action=data["action"].take(ix, axis=0),
            reward=data["reward"].take(ix),
            discount=data["discount"].take(ix),
            terminated=data["terminated"].take(ix),
            next_obs={name: data[name].take(next_ix, axis=0) for name in self._obs_names},
            ix=ix,
        )

    def update_priority(self, ix: Array, td_error: Array) -> None:
        """Uniform sampling has no priorities; the lengths are checked all the same."""
        if len(ix) != len(td_error):
            raise ValueError(f"{len(ix)} rows and {len(td_error)} errors")

    def break_streams(self, actor: int) -> None:
        """The newest rows of this actor get no next observation any more and are never sampled."""
        for key in [key for key in self._tails if key[0] == actor]:
            del self._tails[key]

    def generator_state(self) -> dict[str, Any]:
        """State of the sampling generator, as JSON values."""
        return dict(self._rng.bit_generator.state)

    def _append(self, items: Items, actor: int) -> None:
        rows = self._rows + np.arange(len(items["span"]))
        slots = rows % self.capacity
        self._ready -= int(np.count_nonzero(self._next[slots] >= 0))
        self._next[slots] = _NOT_YET
        for name, column in self._data.items():
            column[slots] = items[name]
        self._rows += len(rows)
        env = items["env"]
        if (env == env[0]).all():  # an actor with one environment, or a short chunk
            self._link((actor, int(env[0])), rows, items["span"])
        else:
            for one in np.unique(env):
                mine = env == one
                self._link((actor, int(one)), rows[mine], items["span"][mine])

    def _link(self, stream: tuple[int, int], rows: Array, span: Array) -> None:
        """Give every row of the stream whose next observation has come its index."""
        tail = self._tails.get(stream)
        if tail is not None:
            rows, span = np.concatenate([tail.rows, rows]), np.concatenate([tail.span, span])
        target = np.arange(len(rows)) + span
        arrived = (span > 0) & (target < len(rows))
        linked = np.flatnonzero(arrived & (rows >= self._rows - self.capacity))
        self._next[rows[linked] % self.capacity] = rows[target[linked]] % self.capacity
        self._ready += len(linked)
        waiting = np.flatnonzero((span > 0) & ~arrived)
        if waiting.size:
            # Targets never fall along a stream, so from the first waiting row on none has been linked.
            self._tails[stream] = _Tail(rows[waiting[0] :], span[waiting[0] :])
        else:
            self._tails.pop(stream, None)


def _stored_columns(spec: EnvSpec) -> list[Column]:
    observations = {leaf.name for leaf in spec.obs.leaves}
    return [c for c in item_columns(spec) if c.name in observations or c.name in _STORED]
