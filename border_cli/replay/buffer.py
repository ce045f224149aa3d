"""The replay buffer: a ring over rows, and a way of drawing among them.

Every observation is stored once. A transition's next observation is another row of the same storage, which arrives
later in the same stream; until then the row cannot be sampled. The newest row of a ring is overwritten last, so a
row's next observation always outlives the row. Of stacked observations each row holds the newest, and leads to those
before it: see `border_cli.replay.frames`.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np

from border_cli.core.items import PRIORITY, UNKNOWN_PRIORITY, Column, Items, item_columns, stack_depth
from border_cli.core.protocols import Batch
from border_cli.core.spaces import Array, EnvSpec
from border_cli.core.state import Block, State, check_arrays, count, require
from border_cli.replay.blocks import block_name, block_ranges, rows_per_block
from border_cli.replay.drawing import NOBODY, Drawing
from border_cli.replay.frames import FRAME_LINK_BYTES, Frames
from border_cli.replay.packed import PackedRows, row_bytes

_STORED = ("action", "reward", "discount", "terminated")
_LINK = "link"
"""Column of a saved row: how many rows later its next observation was pushed, 0 where there is none."""


def row_buffer_bytes(capacity: int, spec: EnvSpec, with_priority: bool = False) -> int:
    """Bytes that a `RowReplayBuffer` takes once the ring is full, what draws from it left out."""
    slot = row_bytes(_packed_columns(spec, with_priority)) + np.dtype(np.int64).itemsize
    frames = sum(column.row_bytes for column in _frame_columns(spec))
    return (capacity + 1) * (slot + frames + (FRAME_LINK_BYTES if frames else 0))


@dataclass
class _Tail:
    """The newest rows of one stream, from the first that still waits for its next observation."""

    rows: Array
    span: Array


@dataclass(kw_only=True)
class _PackedBatch(Batch):
    """A batch whose arrays are columns of whole rows: those sampled, then those of their next observations.

    stacks: (2·size, k, ...) per leaf that is a stack.
    """

    both: PackedRows = field(repr=False)
    stacks: dict[str, Array] = field(repr=False, default_factory=dict)


class RowReplayBuffer:
    """Implements `core.protocols.ReplayBuffer`. capacity: rows, final observations included."""

    def __init__(self, capacity: int, spec: EnvSpec, drawing: Drawing, with_priority: bool = False) -> None:
        self.capacity = capacity
        self._action = spec.action
        self._packed = _packed_columns(spec, with_priority)
        self._with_priority = with_priority
        self._plain_obs = [leaf.name for leaf in spec.obs.leaves if leaf.stack == 1]
        self._data = PackedRows(self._packed, capacity + 1)
        self._columns = dict(self._data.columns)  # all that a row has, by name
        self._frames: Frames | None = None
        if stack_depth(spec) > 1:
            stacked = [leaf for leaf in spec.obs.leaves if leaf.stack > 1]
            self._frames = Frames(stacked, capacity + 1)
            self._columns |= self._frames.columns
        self._next = np.zeros(capacity + 1, np.int64)  # by slot; NOBODY where it cannot be sampled
        self._tails: dict[tuple[int, int], _Tail] = {}
        all_bytes = row_bytes(self._packed) + sum(c.row_bytes for c in _frame_columns(spec))
        self._block_rows = rows_per_block(capacity, all_bytes)
        self._rows = 0  # ever pushed
        self._ready = 0  # rows that can be sampled
        self._drawing = drawing

    def __len__(self) -> int:
        return self._ready

    def push(self, items: Items, actor: int = 0) -> None:
        """Append rows of one actor, each environment's in stream order."""
        for start in range(0, len(items["span"]), self.capacity):
            self._append({name: rows[start : start + self.capacity] for name, rows in items.items()}, actor)

    def batch(self, size: int, into: Batch | None = None) -> Batch:
        """A batch. Raises ValueError while fewer than `size` rows can be sampled."""
        if self._ready < size:
            raise ValueError(f"a batch of {size} from {self._ready} rows")
        reusable = isinstance(into, _PackedBatch) and into.both.n == 2 * size
        batch = cast("_PackedBatch", into) if reusable else self._empty_batch(size)
        slots, weight = self._drawing.draw(size, self._next, self._held, self._ready)
        if batch.weight is None or weight is None:
            batch.weight = weight
        else:
            batch.weight[...] = weight  # in place, as all of a batch: who holds its arrays sees the new ones
        both = slots.ravel()
        self._data.take(both, batch.both)
        if self._frames is not None:
            self._frames.take(both, batch.stacks)
        batch.ix = slots[0]
        return batch

    def update_priority(self, ix: Array, td_error: Array) -> None:
        """New priorities for sampled rows; where draws are uniform, only the lengths are checked."""
        if len(ix) != len(td_error):
            raise ValueError(f"{len(ix)} rows and {len(td_error)} errors")
        self._drawing.update(ix, td_error)

    def break_streams(self, actor: int | None = None) -> None:
        """The newest rows of this actor, or of all, get no next observation any more and are never sampled."""
        for key in [key for key in self._tails if actor is None or key[0] == actor]:
            del self._tails[key]
        if self._frames is not None:
            self._frames.break_streams(actor)

    def generator_state(self) -> dict[str, Any]:
        """State of what draws: with the same rows, the same batches come."""
        return self._drawing.generator_state()

    def load_generator_state(self, state: dict[str, Any]) -> None:
        """Sample on from a saved state."""
        self._drawing.load_generator_state(state, self._next, self._held, self._ready)

    @property
    def _held(self) -> int:
        """Rows that are there, in the slots 1 to so many."""
        return min(self._rows, self.capacity)

    @property
    def _live_from(self) -> int:
        """The oldest row that is there."""
        return max(0, self._rows - self.capacity)

    def state(self) -> State:
        """Rows by their number since the beginning, as columns with the distance of their next observations."""
        live_from = self._live_from
        tails = self._tail_arrays()
        waiting = tails["waiting_rows"]
        # A row that waited until it was overwritten keeps nothing open.
        waiting_from = int(waiting[waiting >= live_from].min(initial=self._rows))
        blocks = tuple(
            Block(
                block_name(first, self._block_rows),
                live_from <= first and last <= min(self._rows, waiting_from) and self._is_whole(first, last),
                functools.partial(self._read_rows, max(first, live_from), min(last, self._rows)),
            )
            for first, last in block_ranges(live_from, self._rows, self._block_rows)
        )
        values = {"capacity": self.capacity, "rows": self._rows}
        arrays = tails | self._drawing.priorities(self._slots(np.arange(live_from, self._rows)))
        if self._frames is not None:
            arrays |= self._frames.stream_arrays()
        return State(arrays, values, blocks)

    def load_state(self, state: State) -> None:
        """Take over a saved state; the generator comes after it. Raises ValueError for one that does not fit."""
        require(state.values, ("capacity", "rows"), "the replay")
        if count(state.values["capacity"], "the capacity") != self.capacity:
            raise ValueError(
                f"the replay holds {self.capacity} rows, the saved one {state.values['capacity']}"
            )
        self._rows, self._ready = count(state.values["rows"], "rows of the replay"), 0
        self._drawing.pushed()
        self._next[:] = NOBODY
        live_from = self._live_from
        ranges = list(block_ranges(live_from, self._rows, self._block_rows))
        names = [block_name(first, self._block_rows) for first, _ in ranges]
        if [block.name for block in state.blocks] != names:
            raise ValueError(f"the blocks of the saved replay are not those of its {self._rows} rows")
        for block, (first, last) in zip(state.blocks, ranges, strict=True):
            self._write_rows(max(first, live_from), min(last, self._rows), block.arrays())
        self._load_arrays(state.arrays)

    def _load_arrays(self, arrays: dict[str, Array]) -> None:
        """What is kept beside the rows, which are there: streams, what waits, and priorities of what can be sampled."""
        live_from = self._live_from
        live = self._slots(np.arange(live_from, self._rows))
        of_frames = {} if self._frames is None else self._frames.stream_arrays()
        of_drawing = self._drawing.priorities(live)
        others = of_frames.keys() | of_drawing.keys()
        self._load_tails({name: array for name, array in arrays.items() if name not in others})
        if self._frames is not None:
            self._frames.load_streams(arrays, self._rows, live_from, self.capacity)
            linked = live[self._next[live] != NOBODY]
            self._next[linked[~self._frames.complete(linked)]] = NOBODY
        ready = live[self._next[live] != NOBODY]
        self._ready = len(ready)
        self._drawing.added(ready)
        given = {name: arrays[name] for name in of_drawing if name in arrays}
        self._drawing.load_priorities(live, given)

    def _is_whole(self, first: int, last: int) -> bool:
        """Whether no row number first to last - 1 has lost a frame that was overwritten."""
        return self._frames is None or bool(self._frames.complete(self._slots(np.arange(first, last))).all())

    def _read_rows(self, first: int, last: int) -> dict[str, Array]:
        """Rows number first to last - 1, which are there, as columns."""
        slots = self._slots(np.arange(first, last))
        links = (self._next[slots] - slots) % self.capacity
        links[self._next[slots] == NOBODY] = 0
        rows = {name: column[slots] for name, column in self._columns.items()}
        if self._frames is not None:
            rows |= self._frames.links(slots, self.capacity)
        return rows | {_LINK: links.astype(np.uint32)}

    def _write_rows(self, first: int, last: int, arrays: dict[str, Array]) -> None:
        """The inverse of `_read_rows`. Raises ValueError for what does not fit, and for what leads nowhere."""
        rows = np.arange(first, last)
        slots = self._slots(rows)
        expected = {name: column[slots] for name, column in self._columns.items()}
        if self._frames is not None:
            expected |= self._frames.links(slots, self.capacity)
        check_arrays(arrays, expected | {_LINK: np.zeros(len(rows), np.uint32)}, "the replay")
        self._action.check(arrays["action"])
        for name, column in self._columns.items():
            column[slots] = arrays[name]
        if self._frames is not None:
            self._frames.load_links(slots, rows, arrays, self._live_from, self.capacity)
        links = arrays[_LINK].astype(np.int64)
        if (rows + links).max(initial=0) >= self._rows:
            raise ValueError("a row of the saved replay is linked to one that never came")
        self._next[slots] = np.where(links > 0, self._slots(rows + links), NOBODY)

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

    def _empty_batch(self, size: int) -> _PackedBatch:
        both = PackedRows(self._packed, 2 * size)
        stacks = {} if self._frames is None else self._frames.empty(2 * size)
        whole = {name: both.columns[name] for name in self._plain_obs} | stacks
        return _PackedBatch(
            obs={name: rows[:size] for name, rows in whole.items()},
            next_obs={name: rows[size:] for name, rows in whole.items()},
            **{name: both.columns[name][:size] for name in _STORED},
            ix=np.empty(0, np.int64),
            both=both,
            stacks=stacks,
        )

    def _append(self, items: Items, actor: int) -> None:
        self._drawing.pushed()
        rows = np.arange(self._rows, self._rows + len(items["span"]))
        where = self._place(rows)
        if rows[-1] >= self.capacity:
            self._make_room(rows)
        for name, column in self._columns.items():
            column[where] = items[name]
        self._rows += len(rows)
        env = items["env"]
        if env[env.argmin()] == env[env.argmax()]:  # an actor with one environment, or a short chunk
            self._follow((actor, int(env[0])), rows, items)
        else:
            for one in np.unique(env):
                mine = np.flatnonzero(env == one)
                self._follow(
                    (actor, int(one)),
                    rows[mine],
                    {name: items[name][mine] for name in _OF_STREAM & items.keys()},
                )

    def _make_room(self, rows: Array) -> None:
        """What lies where these rows will be is gone, and with it whatever needs a frame of it."""
        slots = self._slots(rows)
        if self._frames is not None:
            slots = self._frames.forget(slots)
        ready = slots[self._next[slots] != NOBODY]
        self._next[ready] = NOBODY
        self._ready -= len(ready)
        self._drawing.removed(ready)

    def _follow(self, stream: tuple[int, int], rows: Array, items: Items) -> None:
        """Rows of one stream, behind those that came of it before."""
        if self._frames is not None:
            self._frames.append(stream, rows, self._slots(rows), items["age"], self._live_from)
        self._link(stream, rows, items["span"])

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
        self._make_ready(self._slots(rows[linked]), self._slots(rows[targets]))
        if arrived < len(transitions):
            self._tails[stream] = _Tail(rows[transitions[arrived] :], span[transitions[arrived] :])
        else:
            self._tails.pop(stream, None)

    def _make_ready(self, slots: Array, next_slots: Array) -> None:
        """The next observations of these have come. A row that has lost a frame meanwhile stays out."""
        if self._frames is not None:
            whole = self._frames.complete(slots)
            slots, next_slots = slots[whole], next_slots[whole]
        self._next[slots] = next_slots
        self._ready += len(slots)
        self._drawing.added(slots)
        if self._with_priority:
            priority = self._columns[PRIORITY.name][slots]
            known = priority != UNKNOWN_PRIORITY
            self._drawing.update(slots[known], priority[known])


_OF_STREAM = {"span", "age"}


def _packed_columns(spec: EnvSpec, with_priority: bool) -> list[Column]:
    """What lies side by side in a row: all but frames. with_priority: what the actor thought of it, too."""
    plain = {leaf.name for leaf in spec.obs.leaves if leaf.stack == 1}
    names = plain | set(_STORED) | {PRIORITY.name}
    return [c for c in item_columns(spec, with_priority) if c.name in names]


def _frame_columns(spec: EnvSpec) -> list[Column]:
    stacked = {leaf.name for leaf in spec.obs.leaves if leaf.stack > 1}
    return [c for c in item_columns(spec) if c.name in stacked]
