"""The ring of all rows, which rows follow each other in their streams, and the memory of the rows.

A stream is one environment of one actor. The rows of all streams lie in one ring, in the order in which they arrived, so
that the oldest row is overwritten first. Each row knows the slots of the rows before and after it in its stream; next
observations, n-step returns, stacks and sequences follow these links, for whole arrays of slots at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from border_cli.core.spaces import Array
from border_cli.core.types import Column, Items

ENV_BITS = 20
"""A stream is numbered by its actor, shifted by so many bits, plus its environment."""


class Streams:
    """The links between the rows in `n` slots.

    Attributes:
        before, after: (n + 1,) slots of the neighbours of each row in its stream. The slot n stands for "none".
        rows: how many rows have arrived so far.
    """

    def __init__(self, n: int) -> None:
        self.n, self.rows = n, 0
        self.before, self.after = np.full((2, n + 1), n)
        self._newest: dict[int, int] = {}  # number of the newest row of each stream, counted from 0

    @property
    def used(self) -> int:
        """Slots that hold a row; they come first."""
        return min(self.rows, self.n)

    def append(self, streams: Array) -> None:
        """Link the next rows, which must fit between the newest row and the last slot. streams: (k,) of each row."""
        k, none = len(streams), self.n
        numbers: Any = self.rows
        if k == 1:  # in a fifth of the time
            before: Any = self._newest.get(key := streams.item(), -none)
            self._newest[key] = numbers
        else:
            order = streams.argsort(kind="stable")
            begins = (np.diff(streams[order], prepend=-1) != 0).nonzero()[0]
            numbers = self.rows + order
            keys = streams[order[begins]].tolist()
            before = np.roll(numbers, 1)
            before[begins] = [self._newest.get(key, -none) for key in keys]
            self._newest.update(zip(keys, numbers[[*(begins[1:] - 1), -1]].tolist(), strict=True))
        self.rows += k
        before = np.where(before >= self.rows - none, before % none, none)  # "none" if it is overwritten
        slots = numbers % none
        self.before[self.after[slots]] = none
        self.before[slots], self.after[slots] = before, none
        self.after[before] = slots
        self.after[none] = none

    def newest(self, actor: int | None = None) -> Array:
        """(k,) slots of the newest rows of the streams of this actor, or of all, as far as they are there yet."""
        streams = [key for key in self._newest if actor is None or key >> ENV_BITS == actor]
        numbers = np.array([self._newest[key] for key in streams], np.int64)
        return numbers[numbers >= self.rows - self.n] % self.n

    def lap(self, slot: int) -> int:
        """How often the ring had begun anew when the row in this slot arrived; -1 if there is none."""
        return (self.rows - 1 - slot) // self.n


def run_of(links: Array, slots: Array, k: int) -> Array:
    """(B,) slots → (B, k + 1): they, and the next k rows by these links."""
    run = np.empty((k + 1, len(slots)), np.int64)
    run[0] = slots
    for i in range(k):
        links.take(run[i], out=run[i + 1], mode="clip")  # "raise" would copy through a buffer
    turned: Array = run.T
    return turned


# -- memory --------------------------------------------------------


def row_layout(columns: Sequence[Column]) -> np.dtype[np.void]:
    """The dtype of one packed row, aligned."""
    return np.dtype([(c.name, c.dtype, c.shape) for c in columns], align=True)


class PackedRows:
    """`n` rows in the main memory, each of them contiguous. columns: name → (n, ...) array, a strided view of the rows.

    Sampled rows lie far apart in memory, so reading them takes the time of cache misses. Copying each row as a whole takes
    a fraction of the time of copying each column.
    """

    def __init__(self, columns: Sequence[Column], n: int) -> None:
        self.n = n
        records = np.zeros(n, row_layout(columns))
        self.columns: dict[str, Any] = {c.name: records[c.name] for c in columns}
        self._whole: Any = records.view(f"V{records.itemsize}")  # numpy copies opaque rows faster

    def write(self, where: slice, rows: Items) -> None:
        """Set the rows `where`. It takes only the own columns of `rows`."""
        for name, column in self.columns.items():
            column[where] = rows[name]

    def read(self, where: slice) -> Items:
        """Copies of the rows `where`, by column."""
        return {name: np.array(column[where]) for name, column in self.columns.items()}

    def take(self, ix: Array, into: PackedRows) -> None:
        """Copy the rows `ix`, which must be in range, to the len(ix) rows of `into`, which has the same columns."""
        self._whole.take(ix, out=into._whole, mode="clip")  # "raise" would copy through a buffer


MakeRows = Callable[[Sequence[Column], int], PackedRows]
