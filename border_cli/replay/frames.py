"""Frames that are stored once, though each is part of several stacked observations.

A row holds the newest frame of its observation. Those before it are the frames of the rows before it in the same stream,
back to the episode's first, which fills the stack where there is none before it. The rows of a stream lie apart, as other
streams come between: each slot knows the slot of the row before it. A row that was overwritten takes with it the few
that need its frame, and those are the next ones to be overwritten in their stream anyway.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from border_cli.core.errors import UnfitStateError
from border_cli.core.items import Items
from border_cli.core.spaces import Array, ObsLeaf
from border_cli.replay.drawing import NOBODY

BEFORE, AGE = "before", "age"
"""Columns of a saved row: how many rows earlier the one before it was pushed, 0 where there is none; its age."""
FRAME_LINK_BYTES = 4 + 4 + 1


class Frames:
    """columns: name → (slots, ...) frames, and nothing else of a row. leaves: those that are stacks."""

    def __init__(self, leaves: Sequence[ObsLeaf], slots: int) -> None:
        self.columns: Items = {leaf.name: np.zeros((slots, *leaf.row_shape), leaf.dtype) for leaf in leaves}
        self._leaves = list(leaves)
        self._depth = max(leaf.stack for leaf in leaves) - 1
        self._before = np.zeros(slots, np.int32)
        self._after = np.zeros(slots, np.int32)
        self._age = np.zeros(slots, np.uint8)
        self._newest: dict[tuple[int, int], int] = {}  # row of each stream that may go on

    def append(self, stream: tuple[int, int], rows: Array, slots: Array, age: Array, live_from: int) -> None:
        """Rows of a stream behind those that came before, in these slots. age: as of `item_columns`."""
        self._age[slots] = np.minimum(age, self._depth)
        before = np.empty_like(slots)
        before[1:] = slots[:-1]
        newest = self._newest.get(stream, -1)
        before[0] = newest % (len(self._age) - 1) + 1 if newest >= live_from else NOBODY
        before[age == 0] = NOBODY
        self._before[slots] = before
        self._after[slots] = NOBODY
        self._after[before] = slots
        self._after[NOBODY] = NOBODY
        self._newest[stream] = int(rows[-1])

    def forget(self, slots: Array) -> Array:
        """These are to be overwritten; they, and all slots whose stack needs a frame of them."""
        gone = [slots]
        needing = slots
        for distance in range(1, self._depth + 1):
            needing = self._after[needing]
            gone.append(needing[self._age[needing] >= distance])
        self._before[self._after[slots]] = NOBODY
        return np.setdiff1d(np.concatenate(gone), [NOBODY])

    def complete(self, slots: Array) -> Array:
        """(k,) bool: whether every frame of their stacks is there."""
        whole = np.ones(len(slots), bool)
        age, at = self._age[slots], slots
        for distance in range(1, self._depth + 1):
            at = self._before[at]
            whole &= (age < distance) | (at != NOBODY)
        return whole

    def empty(self, n: int) -> dict[str, Array]:
        """(n, k, ...) for `take`, by name."""
        return {leaf.name: np.zeros((n, *leaf.shape), leaf.dtype) for leaf in self._leaves}

    def take(self, slots: Array, into: dict[str, Array]) -> None:
        """The stacks of these slots, which are complete."""
        age = self._age[slots]
        stack = np.empty((len(slots), self._depth + 1), np.int64)
        at = stack[:, self._depth] = slots
        for distance in range(1, self._depth + 1):
            at = np.where(age >= distance, self._before[at], at)
            stack[:, self._depth - distance] = at
        for leaf in self._leaves:
            wanted = stack[:, -leaf.stack :]
            self.columns[leaf.name].take(wanted, axis=0, out=into[leaf.name], mode="clip")

    def break_streams(self, actor: int | None) -> None:
        """What comes of this actor, or of all, does not go on with what is there."""
        for key in [key for key in self._newest if actor is None or key[0] == actor]:
            del self._newest[key]

    # -- state ----------------------------------------------------------

    def links(self, slots: Array, capacity: int) -> Items:
        """Saved columns of these slots."""
        before = self._before[slots].astype(np.int64)
        distance = np.where(before == NOBODY, 0, (slots - before) % capacity)
        return {BEFORE: distance.astype(np.uint32), AGE: self._age[slots]}

    def load_links(self, slots: Array, rows: Array, arrays: Items, live_from: int, capacity: int) -> None:
        """The inverse, for the rows in these slots. Raises UnfitStateError. What is before `live_from` is not there."""
        distance, age = arrays[BEFORE].astype(np.int64), arrays[AGE]
        if age.max(initial=0) > self._depth or (distance > rows).any() or (distance[age == 0] > 0).any():
            raise UnfitStateError("a row of the saved replay is behind one that never came")
        there = (distance > 0) & (rows - distance >= live_from)
        self._age[slots] = age
        self._before[slots] = np.where(there, (rows - distance) % capacity + 1, NOBODY)

    def stream_arrays(self) -> dict[str, Array]:
        """(k, 2) actor and environment of every stream that may go on, and (k,) its newest row."""
        streams = sorted(self._newest)
        return {
            "newest_streams": np.array(streams, np.int64).reshape(-1, 2),
            "newest_rows": np.array([self._newest[stream] for stream in streams], np.int64),
        }

    def load_streams(self, arrays: dict[str, Array], rows: int, live_from: int, capacity: int) -> None:
        """The inverse, once all links are loaded. Raises UnfitStateError."""
        expected = self.stream_arrays()
        if not all(name in arrays and arrays[name].dtype == array.dtype for name, array in expected.items()):
            raise UnfitStateError("the saved replay does not say where its streams are")
        streams, newest = arrays["newest_streams"], arrays["newest_rows"]
        if streams.shape != (len(newest), 2) or streams.min(initial=0) < 0:
            raise UnfitStateError("the saved replay's streams do not fit together")
        if newest.min(initial=0) < 0 or newest.max(initial=-1) >= rows:
            raise UnfitStateError("a stream of the saved replay ends where nothing came")
        self._newest = {
            (int(actor), int(env)): int(row) for (actor, env), row in zip(streams, newest, strict=True)
        }
        live = np.arange(live_from, rows) % capacity + 1
        self._after[:] = NOBODY
        self._after[self._before[live]] = live
        self._after[NOBODY] = NOBODY
