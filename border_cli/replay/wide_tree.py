"""Sums, and least values, over parts of a long row of numbers: wide trees without a tip.

A node has sixteen children, because each level costs a few calls of numpy whatever the batch, and the tree ends where
there are few enough nodes to go through them all. Inner nodes are made anew from their children, never adjusted by
differences: they follow from the leaves alone, bit for bit, so that only those have to be saved, and no error adds up.
"""

from __future__ import annotations

import numpy as np

from border_cli.core.spaces import Array

_WIDTH = 16
_SHIFT = 4
_MOST_ON_TOP = 8192
"""Their running sum costs less than another level would."""


class _WideTree:
    """n leaves of float64, all `empty` at first. leaves: (n,) view; to be changed by `set` alone."""

    def __init__(self, n: int, combine: np.ufunc, empty: float) -> None:
        self._combine = combine
        size = -(-n // _WIDTH)
        self._levels: list[Array] = [np.full((size, _WIDTH), empty)]  # of nodes with their children
        while size > _MOST_ON_TOP:
            size = -(-size // _WIDTH)
            self._levels.append(np.full((size, _WIDTH), empty))
        self._top = np.full(size, empty)
        self.leaves = self._levels[0].reshape(-1)[:n]

    def set(self, ix: Array, values: Array | float) -> None:
        """Change these leaves. Of an index that comes twice the last value counts."""
        self._levels[0].reshape(-1)[ix] = values
        for level, above in zip(self._levels, [*self._levels[1:], self._top], strict=True):
            ix = ix >> _SHIFT
            above.reshape(-1)[ix] = self._combine.reduce(level[ix], axis=1)


class SumTree(_WideTree):
    """Leaves that are 0 or more, and where in the row of their sums a number falls."""

    def __init__(self, n: int) -> None:
        super().__init__(n, np.add, 0.0)

    def find(self, share: Array) -> tuple[Array, float]:
        """(k,) in [0, 1) → (k,) indices: of each the leaf up to which the sum first exceeds that share of the total.

        And the total. No leaf of 0 is ever found, as long as one is greater.
        """
        sums = self._top.cumsum()
        total = float(sums[-1])
        rest = share * total
        ix = np.minimum(sums.searchsorted(rest, "right"), self._top.nonzero()[0][-1])
        rest = np.maximum(rest - (sums[ix] - self._top[ix]), 0.0)
        rows = np.arange(len(rest))
        for level in reversed(self._levels):
            children = level[ix]
            sums = children.cumsum(1)
            child = np.minimum((sums <= rest[:, None]).sum(1), _WIDTH - 1)
            lost = children[rows, child] <= 0  # sums of sums are rounded in another order than these
            if lost.any():
                child[lost] = _WIDTH - 1 - (children[lost, ::-1] > 0).argmax(1)  # the last that is something
            rest = np.maximum(rest - (sums[rows, child] - children[rows, child]), 0.0)
            ix = ix * _WIDTH + child
        return ix, total


class MinTree(_WideTree):
    """Leaves whose least is wanted; infinity where there is nothing."""

    def __init__(self, n: int) -> None:
        super().__init__(n, np.minimum, np.inf)

    @property
    def least(self) -> float:
        """Of all leaves."""
        return float(self._top.min())
