"""The memory layout of rows: columns packed side by side, and frames, of which stacks are made.

A row holds the newest frame of its observation. The frames before it are those of the rows before it in the same stream,
back to the first of the episode, which is repeated to fill the stack.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from border_cli.core.spaces import Array, ObsLeaf
from border_cli.core.types import Column, Items


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

    def read(self, slots: Array) -> Items:
        """Copies of the rows `slots`, by column."""

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

    def read(self, slots: Array) -> Items:
        return {name: self.columns[name][slots] for name in self.columns}

    def take(self, ix: Array, into: PackedRows) -> None:
        self._whole.take(ix, out=into._whole, mode="clip")  # "raise" would copy through a buffer


MakeRows = Callable[[Sequence[Column], int], Rows]


def _frame(leaf: ObsLeaf) -> Column:
    """The column of the newest frames of a leaf."""
    return Column(leaf.name, leaf.row_shape, leaf.dtype)


class Stacks:
    """The frames of all slots, of which stacks are made. leaves: those of the observation that are stacks."""

    def __init__(self, leaves: Sequence[ObsLeaf], slots: int, make_rows: MakeRows = PackedRows) -> None:
        self._leaves = list(leaves)
        self._make_rows = make_rows
        self._rows = {leaf.name: make_rows([_frame(leaf)], slots) for leaf in leaves}

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
        """Copy stacks. slots: (n, depth) of their frames, the oldest first; a leaf takes as many as its stack has."""
        for leaf in self._leaves:
            self._rows[leaf.name].take(slots[:, -leaf.stack :].ravel(), into[leaf.name])
