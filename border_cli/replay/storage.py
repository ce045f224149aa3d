"""The memory layout of rows: columns packed side by side, and frames, of which stacks are made.

A row holds the newest frame of its observation. The frames before it are those of the rows before it in the same stream,
back to the first of the episode, which is repeated to fill the stack. Rows of different streams alternate, so each slot
has a link to the slot of the row before it. When a row is overwritten, the few rows that need its frame are lost as well;
they are the next ones of their stream to be overwritten anyway.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from border_cli.core.errors import IncompatibleStateError
from border_cli.core.spaces import Array, ObsLeaf
from border_cli.core.types import Column, Items
from border_cli.replay.samplers import EMPTY


def row_layout(columns: Sequence[Column]) -> np.dtype[np.void]:
    """The dtype of one packed row, aligned."""
    return np.dtype([(c.name, c.dtype, c.shape) for c in columns], align=True)


class Rows(Protocol):
    """`n` rows with these columns, here or on a device."""

    n: int

    @property
    def columns(self) -> Mapping[str, Any]:
        """Name → (n, ...) array, or tensor on a device: a view of the rows."""

    def write(self, where: slice | Array, rows: Items) -> None:
        """Set the rows `where`. It takes only the own columns of `rows`."""

    def read(self, slots: Array, names: Collection[str] = ()) -> Items:
        """Copies of these columns of the rows `slots`; of all columns if none is named."""

    def take(self, ix: Array, into: Any) -> None:
        """Copy the rows `ix`, which must be in range, to the len(ix) rows of `into`, which has the same columns."""


class PackedRows:
    """`n` rows in the main memory, each of them contiguous. columns: name → (n, ...) array, a strided view of the rows.

    Sampled rows lie far apart in memory, so reading them takes the time of cache misses. Copying each row as a whole takes
    a fraction of the time of copying each column.
    """

    def __init__(self, columns: Sequence[Column], n: int) -> None:
        self.n = n
        records = np.zeros(n, row_layout(columns))
        self.columns: Items = {c.name: records[c.name] for c in columns}
        self._whole = records.view(f"V{records.itemsize}")  # numpy copies opaque rows faster

    def write(self, where: slice | Array, rows: Items) -> None:
        for name, column in self.columns.items():
            column[where] = rows[name]

    def read(self, slots: Array, names: Collection[str] = ()) -> Items:
        return {name: self.columns[name][slots] for name in names or self.columns}

    def take(self, ix: Array, into: PackedRows) -> None:
        self._whole.take(ix, out=into._whole, mode="clip")  # "raise" would copy through a buffer


MakeRows = Callable[[Sequence[Column], int], Rows]


def _frame(leaf: ObsLeaf) -> Column:
    """The column of the newest frames of a leaf."""
    return Column(leaf.name, leaf.row_shape, leaf.dtype)


BEFORE, STEP_IN_EPISODE = "before", "step_in_episode"
"""Columns of a saved row: how many rows earlier the row before it was pushed, 0 if there is none; its step."""
FRAME_LINK_BYTES = 4 + 4 + 1
"""Bytes per slot beside the frames."""


class Frames:
    """The frames of all slots, and the links between rows that follow each other in a stream.

    Args:
        leaves: the leaves of the observation that are stacks.
        slots: number of slots, the empty slot 0 included.
        make_rows: makes the memory of the frames.
    """

    def __init__(self, leaves: Sequence[ObsLeaf], slots: int, make_rows: MakeRows = PackedRows) -> None:
        self._leaves = list(leaves)
        self._make_rows = make_rows
        self._rows = {leaf.name: make_rows([_frame(leaf)], slots) for leaf in leaves}
        self._depth = max(leaf.stack for leaf in leaves) - 1  # frames before the newest
        self._capacity = slots - 1
        self._before = np.zeros(slots, np.int32)
        self._after = np.zeros(slots, np.int32)
        self._step_in_episode = np.zeros(slots, np.uint8)
        self._newest: dict[tuple[int, int], int] = {}  # newest row of each stream that can continue

    def append(
        self, stream: tuple[int, int], rows: Array, slots: Array, step_in_episode: Array, first: int
    ) -> None:
        """Append rows to a stream.

        Args:
            stream: actor and environment.
            rows: (k,) their numbers.
            slots: (k,) their slots.
            step_in_episode: (k,) env steps of the episode before each of them.
            first: the oldest row that is not overwritten.
        """
        self._step_in_episode[slots] = np.minimum(step_in_episode, self._depth)
        before = np.empty_like(slots)
        before[1:] = slots[:-1]
        newest = self._newest.get(stream, -1)
        before[0] = newest % self._capacity + 1 if newest >= first else EMPTY
        before[step_in_episode == 0] = EMPTY
        self._before[slots] = before
        self._after[slots] = EMPTY
        self._after[before] = slots
        self._after[EMPTY] = EMPTY
        self._newest[stream] = int(rows[-1])

    def forget(self, slots: Array) -> Array:
        """Forget slots that are being overwritten. Returns them and all slots whose stack needs one of their frames."""
        lost, needing = [slots], slots
        for distance in range(1, self._depth + 1):
            needing = self._after[needing]
            lost.append(needing[self._step_in_episode[needing] >= distance])
        self._before[self._after[slots]] = EMPTY
        return np.setdiff1d(np.concatenate(lost), [EMPTY])

    def complete(self, slots: Array) -> Array:
        """(k,) bool: whether every frame of these slots' stacks is stored."""
        whole = np.ones(len(slots), bool)
        step_in_episode, at = self._step_in_episode[slots], slots
        for distance in range(1, self._depth + 1):
            at = self._before[at]
            whole &= (step_in_episode < distance) | (at != EMPTY)
        return whole

    def write(self, where: slice | Array, rows: Items) -> None:
        """Set the frames of these slots."""
        for frames in self._rows.values():
            frames.write(where, rows)

    def read(self, slots: Array) -> Items:
        """Copies of the frames of these slots, by leaf."""
        return {name: frames.read(slots)[name] for name, frames in self._rows.items()}

    def empty(self, n: int) -> tuple[dict[str, Rows], dict[str, Any]]:
        """Memory for `take`, and its stacks (n, depth, ...) by leaf."""
        rows, stacks = dict[str, Rows](), dict[str, Any]()
        for leaf in self._leaves:
            rows[leaf.name] = self._make_rows([_frame(leaf)], n * leaf.stack)
            stacks[leaf.name] = rows[leaf.name].columns[leaf.name].reshape(n, *leaf.shape)
        return rows, stacks

    def take(self, slots: Array, into: dict[str, Rows]) -> None:
        """Copy the stacks of these slots, which must be complete."""
        step_in_episode = self._step_in_episode[slots]
        stack = np.empty((len(slots), self._depth + 1), np.int64)  # slots of the frames, the oldest first
        at = stack[:, self._depth] = slots
        for distance in range(1, self._depth + 1):
            at = np.where(step_in_episode >= distance, self._before[at], at)
            stack[:, self._depth - distance] = at
        for leaf in self._leaves:
            self._rows[leaf.name].take(stack[:, -leaf.stack :].ravel(), into[leaf.name])

    def break_streams(self, actor: int | None) -> None:
        """The next rows of this actor, or of all, do not continue their streams."""
        for key in [key for key in self._newest if actor is None or key[0] == actor]:
            del self._newest[key]

    # -- state ----------------------------------------------------------

    def links(self, slots: Array) -> Items:
        """The links of these slots as saved columns."""
        before = self._before[slots].astype(np.int64)
        distance = np.where(before == EMPTY, 0, (slots - before) % self._capacity)
        return {BEFORE: distance.astype(np.uint32), STEP_IN_EPISODE: self._step_in_episode[slots]}

    def load_links(self, slots: Array, rows: Array, arrays: Items, first: int) -> None:
        """The inverse of `links`. Rows before `first` are overwritten."""
        distance = arrays[BEFORE].astype(np.int64)
        is_kept = (distance > 0) & (rows - distance >= first)
        self._step_in_episode[slots] = np.minimum(arrays[STEP_IN_EPISODE], self._depth)
        self._before[slots] = np.where(is_kept, (rows - distance) % self._capacity + 1, EMPTY)

    def stream_arrays(self) -> dict[str, Array]:
        """(k, 2) actor and environment of every stream that can continue, and (k,) its newest row."""
        streams = sorted(self._newest)
        return {
            "newest_streams": np.array(streams, np.int64).reshape(-1, 2),
            "newest_rows": np.array([self._newest[stream] for stream in streams], np.int64),
        }

    def load_streams(self, arrays: dict[str, Array], live: Array) -> None:
        """The inverse of `stream_arrays`, after `load_links` for the slots `live`, all that hold a row."""
        streams, newest = arrays["newest_streams"], arrays["newest_rows"]
        if len(streams) != len(newest):
            raise IncompatibleStateError("the newest rows of the saved replay are not those of its streams")
        self._newest = {
            (int(actor), int(env)): int(row) for (actor, env), row in zip(streams, newest, strict=True)
        }
        self._after[:] = EMPTY
        self._after[self._before[live]] = live
        self._after[EMPTY] = EMPTY
