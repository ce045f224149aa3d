"""The uniform replay buffer: a ring over rows, sampled uniformly with replacement.

Every observation is stored once. A transition's next observation is another row of the same storage, which arrives
later in the same stream; until then the row cannot be sampled. The newest row of a ring is overwritten last, so a
row's next observation always outlives the row.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np

from border_cli.config.schema import BufferConfig
from border_cli.core.items import Column, Items, item_columns
from border_cli.core.protocols import Batch
from border_cli.core.spaces import Array, EnvSpec
from border_cli.core.state import Block, State, check_arrays, count, require
from border_cli.replay.blocks import block_name, block_ranges, rows_per_block
from border_cli.replay.packed import PackedRows, row_bytes
from border_cli.runtime.seeding import REPLAY, generator, restore

_STORED = ("action", "reward", "discount", "terminated")
_NOBODY = 0
"""The slot that never holds a row: as a next observation it says that there is none, or not yet."""
_LINK = "link"
"""Column of a saved row: how many rows later its next observation was pushed, 0 where there is none."""
_AHEAD = 8
"""Draws are made for so many batches at once, as far as nothing is pushed in between: then it makes no difference."""
_NO_DRAWS = np.empty((0, 2, 0), np.int64)


def make_buffer(config: BufferConfig, spec: EnvSpec, seed: int) -> UniformReplayBuffer:
    """The buffer that a configuration describes; `seed` is the run's."""
    return UniformReplayBuffer(config.capacity, spec, generator(seed, REPLAY))


def buffer_bytes(config: BufferConfig, spec: EnvSpec) -> int:
    """Bytes that `make_buffer` takes once the ring is full."""
    return (config.capacity + 1) * (row_bytes(_stored_columns(spec)) + np.dtype(np.int64).itemsize)


@dataclass
class _Tail:
    """The newest rows of one stream, from the first that still waits for its next observation."""

    rows: Array
    span: Array


@dataclass(kw_only=True)
class _PackedBatch(Batch):
    """A batch whose arrays are columns of whole rows: those sampled, then those of their next observations."""

    both: PackedRows = field(repr=False)


class UniformReplayBuffer:
    """Implements `core.protocols.ReplayBuffer`. capacity: rows, final observations included."""

    def __init__(self, capacity: int, spec: EnvSpec, rng: np.random.Generator) -> None:
        self.capacity = capacity
        self._obs_names = [leaf.name for leaf in spec.obs.leaves]
        self._action = spec.action
        self._columns = _stored_columns(spec)
        self._data = PackedRows(self._columns, capacity + 1)
        self._next = np.zeros(capacity + 1, np.int64)  # by slot
        self._tails: dict[tuple[int, int], _Tail] = {}
        self._block_rows = rows_per_block(capacity, row_bytes(self._columns))
        self._rows = 0  # ever pushed
        self._ready = 0  # rows whose next observation is there
        self._rng = rng
        self._drawn: Array = _NO_DRAWS
        self._next_draw = 0
        self._before_draws: dict[str, Any] | None = None

    def __len__(self) -> int:
        return self._ready

    def push(self, items: Items, actor: int = 0) -> None:
        """Append rows of one actor, each environment's in stream order."""
        for start in range(0, len(items["span"]), self.capacity):
            self._append({name: rows[start : start + self.capacity] for name, rows in items.items()}, actor)

    def batch(self, size: int, into: Batch | None = None) -> Batch:
        """A uniform batch. Raises ValueError while fewer than `size` rows can be sampled."""
        if self._ready < size:
            raise ValueError(f"a batch of {size} from {self._ready} rows")
        reusable = isinstance(into, _PackedBatch) and into.both.n == 2 * size
        batch = cast("_PackedBatch", into) if reusable else self._empty_batch(size)
        slots = self._sample(size)
        self._data.take(slots.ravel(), batch.both)
        batch.ix = slots[0]
        return batch

    def update_priority(self, ix: Array, td_error: Array) -> None:
        """Uniform sampling has no priorities; the lengths are checked all the same."""
        if len(ix) != len(td_error):
            raise ValueError(f"{len(ix)} rows and {len(td_error)} errors")

    def break_streams(self, actor: int | None = None) -> None:
        """The newest rows of this actor, or of all, get no next observation any more and are never sampled."""
        for key in [key for key in self._tails if actor is None or key[0] == actor]:
            del self._tails[key]

    def generator_state(self) -> dict[str, Any]:
        """State of the sampling generator before the draws in use, and how many batches were taken from those.

        As JSON values. With the same rows, the same draws come from it again.
        """
        before = self._before_draws or dict(self._rng.bit_generator.state)
        return {"generator": before, "batch_size": self._drawn.shape[2], "batches_taken": self._next_draw}

    def load_generator_state(self, state: dict[str, Any]) -> None:
        """Sample on from a saved state: with the same rows, the same batches come."""
        require(state, ("generator", "batch_size", "batches_taken"), "the replay's generator")
        self._forget_draws()
        restore(self._rng, state["generator"])
        size, taken = (count(state[name], name) for name in ("batch_size", "batches_taken"))
        if taken and self._ready >= size > 0:
            self._sample(size)
            self._next_draw = count(taken, "batches_taken", len(self._drawn))

    def state(self) -> State:
        """Rows by their number since the beginning, as columns with the distance of their next observations."""
        live_from = max(0, self._rows - self.capacity)
        tails = self._tail_arrays()
        waiting = tails["waiting_rows"]
        # A row that waited until it was overwritten keeps nothing open.
        waiting_from = int(waiting[waiting >= live_from].min(initial=self._rows))
        blocks = tuple(
            Block(
                block_name(first, self._block_rows),
                live_from <= first and last <= min(self._rows, waiting_from),
                functools.partial(self._read_rows, max(first, live_from), min(last, self._rows)),
            )
            for first, last in block_ranges(live_from, self._rows, self._block_rows)
        )
        values = {"capacity": self.capacity, "rows": self._rows}
        return State(tails, values, blocks)

    def load_state(self, state: State) -> None:
        """Take over a saved state; the generator comes after it. Raises ValueError for one that does not fit."""
        require(state.values, ("capacity", "rows"), "the replay")
        if count(state.values["capacity"], "the capacity") != self.capacity:
            raise ValueError(
                f"the replay holds {self.capacity} rows, the saved one {state.values['capacity']}"
            )
        self._rows, self._ready = count(state.values["rows"], "rows of the replay"), 0
        self._forget_draws()
        self._next[:] = _NOBODY
        live_from = max(0, self._rows - self.capacity)
        ranges = list(block_ranges(live_from, self._rows, self._block_rows))
        names = [block_name(first, self._block_rows) for first, _ in ranges]
        if [block.name for block in state.blocks] != names:
            raise ValueError(f"the blocks of the saved replay are not those of its {self._rows} rows")
        for block, (first, last) in zip(state.blocks, ranges, strict=True):
            self._write_rows(max(first, live_from), min(last, self._rows), block.arrays())
        self._load_tails(state.arrays)

    def _read_rows(self, first: int, last: int) -> dict[str, Array]:
        """Rows number first to last - 1, which are there, as columns."""
        slots = self._slots(np.arange(first, last))
        links = (self._next[slots] - slots) % self.capacity
        links[self._next[slots] == _NOBODY] = 0
        rows = {name: column[slots] for name, column in self._data.columns.items()}
        return rows | {_LINK: links.astype(np.uint32)}

    def _write_rows(self, first: int, last: int, arrays: dict[str, Array]) -> None:
        """The inverse of `_read_rows`. Raises ValueError for what does not fit, and for what leads nowhere."""
        rows = np.arange(first, last)
        slots = self._slots(rows)
        columns = {name: column[slots] for name, column in self._data.columns.items()}
        check_arrays(arrays, columns | {_LINK: np.zeros(len(rows), np.uint32)}, "the replay")
        self._action.check(arrays["action"])
        for name, column in self._data.columns.items():
            column[slots] = arrays[name]
        links = arrays[_LINK].astype(np.int64)
        if (rows + links).max(initial=0) >= self._rows:
            raise ValueError("a row of the saved replay is linked to one that never came")
        self._next[slots] = np.where(links > 0, self._slots(rows + links), _NOBODY)
        self._ready += int(np.count_nonzero(links))

    def _tail_arrays(self) -> dict[str, Array]:
        """Streams in their order: (k, 2) actor and environment, (k,) how many rows wait, and those rows and spans."""
        tails = [self._tails[stream] for stream in sorted(self._tails)]
        none = np.empty(0, np.int64)
        return {
            "streams": np.array(sorted(self._tails), np.int64).reshape(-1, 2),
            "waiting": np.array([len(tail.rows) for tail in tails], np.int64),
            "waiting_rows": np.concatenate([none, *(tail.rows for tail in tails)]),
            "waiting_span": np.concatenate([none, *(tail.span for tail in tails)]).astype(np.int32),
        }

    def _load_tails(self, arrays: dict[str, Array]) -> None:
        expected = {name: array.dtype for name, array in self._tail_arrays().items()}
        if {name: array.dtype for name, array in arrays.items()} != expected:
            raise ValueError(f"the saved replay has {sorted(arrays)} for its streams, not {sorted(expected)}")
        streams, waiting = arrays["streams"], arrays["waiting"]
        rows, span = arrays["waiting_rows"], arrays["waiting_span"]
        if not (streams.shape == (len(waiting), 2) and rows.shape == span.shape == (waiting.sum(),)):
            raise ValueError("the saved replay's streams do not fit together")
        if streams.min(initial=0) < 0 or waiting.min(initial=1) < 1:
            raise ValueError("a stream of the saved replay is none, or waits for nothing")
        ends = np.cumsum(waiting)
        self._tails = {
            (int(actor), int(env)): _Tail(rows[end - n : end], span[end - n : end])
            for (actor, env), n, end in zip(streams, waiting, ends, strict=True)
        }
        for tail in self._tails.values():
            self._check_tail(tail)

    def _check_tail(self, tail: _Tail) -> None:
        """Raise ValueError unless these rows have come in this order, and no later one waits for an earlier row."""
        come = (np.diff(tail.rows) > 0).all() and tail.rows[0] >= 0 and tail.rows[-1] < self._rows
        spans = tail.span.min() >= 1 and tail.span.max() <= self.capacity
        if not (come and spans and (np.diff(np.arange(len(tail.rows)) + tail.span) >= 0).all()):
            raise ValueError("a stream of the saved replay waits for what cannot come")

    def _sample(self, size: int) -> Array:
        """(2, size) slots of rows and of their next observations. Drawn for several batches at once: see _AHEAD."""
        if self._drawn.shape[2] != size or self._next_draw == len(self._drawn):
            self._before_draws = dict(self._rng.bit_generator.state)
            self._drawn, self._next_draw = self._draw(size), 0
        sampled: Array = self._drawn[self._next_draw]
        self._next_draw += 1
        return sampled

    def _draw(self, size: int) -> Array:
        """(k, 2, size) slots for k >= 1 batches: those of uniform draws that can be sampled."""
        usable = np.empty((2, 0), np.int64)
        while usable.shape[1] < size:  # once, but for bad luck
            draws = self._rng.random(_AHEAD * size)
            # Off uniform by n/2^53, and a third of the time that `integers` takes.
            draws *= min(self._rows, self.capacity) + 1
            slots = draws.astype(np.int64)
            next_slots = self._next.take(slots)
            linked = next_slots.nonzero()[0]
            usable = np.concatenate((usable, (slots.take(linked), next_slots.take(linked))), axis=1)
        k = usable.shape[1] // size
        return np.ascontiguousarray(usable[:, : k * size].reshape(2, k, size).swapaxes(0, 1))

    def _forget_draws(self) -> None:
        """What is pushed can be drawn from then on."""
        self._drawn, self._next_draw, self._before_draws = _NO_DRAWS, 0, None

    def _empty_batch(self, size: int) -> _PackedBatch:
        both = PackedRows(self._columns, 2 * size)
        return _PackedBatch(
            obs={name: both.columns[name][:size] for name in self._obs_names},
            next_obs={name: both.columns[name][size:] for name in self._obs_names},
            **{name: both.columns[name][:size] for name in _STORED},
            ix=np.empty(0, np.int64),
            both=both,
        )

    def _append(self, items: Items, actor: int) -> None:
        self._forget_draws()
        rows = np.arange(self._rows, self._rows + len(items["span"]))
        where = self._place(rows)
        if rows[-1] >= self.capacity:
            self._ready -= int(np.count_nonzero(self._next[where]))
            self._next[where] = _NOBODY
        for name, column in self._data.columns.items():
            column[where] = items[name]
        self._rows += len(rows)
        env = items["env"]
        if env[env.argmin()] == env[env.argmax()]:  # an actor with one environment, or a short chunk
            self._link((actor, int(env[0])), rows, items["span"])
        else:
            for one in np.unique(env):
                mine = env == one
                self._link((actor, int(one)), rows[mine], items["span"][mine])

    def _place(self, rows: Array) -> slice | Array:
        """Slots of successive rows; without a turn of the ring between them a slice, which is much cheaper."""
        first, last = (int(row) % self.capacity + 1 for row in (rows[0], rows[-1]))
        return slice(first, last + 1) if first <= last else self._slots(rows)

    def _slots(self, rows: Array) -> Array:
        """Where in the ring these rows lie."""
        return rows % self.capacity + 1

    def _link(self, stream: tuple[int, int], rows: Array, span: Array) -> None:
        """Give every row of the stream whose next observation has come its index."""
        tail = self._tails.get(stream)
        if tail is not None:
            rows, span = np.concatenate([tail.rows, rows]), np.concatenate([tail.span, span])
        transitions = span.nonzero()[0]
        targets = transitions + span[transitions]
        arrived = int(targets.searchsorted(len(rows)))  # targets never fall along a stream
        linked, targets = transitions[:arrived], targets[:arrived]
        if rows[0] < self._rows - self.capacity:  # a row that waited so long that it is gone
            there = rows[linked] >= self._rows - self.capacity
            linked, targets = linked[there], targets[there]
        self._next[self._slots(rows[linked])] = self._slots(rows[targets])
        self._ready += len(linked)
        if arrived < len(transitions):
            self._tails[stream] = _Tail(rows[transitions[arrived] :], span[transitions[arrived] :])
        else:
            self._tails.pop(stream, None)


def _stored_columns(spec: EnvSpec) -> list[Column]:
    observations = {leaf.name for leaf in spec.obs.leaves}
    return [c for c in item_columns(spec) if c.name in observations or c.name in _STORED]
