"""Sums, and least values, over parts of a long row of numbers: trees with sixteen children to a node.

A tree of two children has four times the levels, and each level is a few calls of numpy whatever the batch. Inner nodes
are made anew from their children, never adjusted by differences: they follow from the leaves alone, bit for bit, so
that only those have to be saved, and no error adds up.
"""

from __future__ import annotations

import numpy as np

from border_cli.core.spaces import Array

_WIDTH = 16
_SHIFT = 4
_Ufunc = np.ufunc


class _WideTree:
    """n leaves of float64, all `empty` at first. leaves: (n,) view; to be changed by `set` alone."""

    def __init__(self, n: int, combine: _Ufunc, empty: float) -> None:
        self._combine = combine
        self._levels: list[Array] = []
        size = n
        while True:
            size = -(-size // _WIDTH)
            self._levels.append(np.full((size, _WIDTH), empty))
            if size == 1:
                break
        self.leaves = self._levels[0].reshape(-1)[:n]

    def set(self, ix: Array, values: Array | float) -> None:
        """Change these leaves. Of an index that comes twice the last value counts."""
        self._levels[0].reshape(-1)[ix] = values
        for below, above in zip(self._levels, self._levels[1:], strict=False):
            ix = ix >> _SHIFT
            above.reshape(-1)[ix] = self._combine.reduce(below[ix], axis=1)

    def set_all(self, values: Array) -> None:
        """Change all leaves."""
        self.leaves[...] = values
        for below, above in zip(self._levels, self._levels[1:], strict=False):
            above.reshape(-1)[: len(below)] = self._combine.reduce(below, axis=1)

    @property
    def root(self) -> float:
        """Over all leaves."""
        return float(self._combine.reduce(self._levels[-1][0]))


class SumTree(_WideTree):
    """Leaves that are 0 or more, and where in the row of their sums a number falls."""

    def __init__(self, n: int) -> None:
        super().__init__(n, np.add, 0.0)

    def find(self, mass: Array) -> Array:
        """(k,) in [0, root) → (k,) indices: of each the leaf up to which the sum first exceeds it.

        No leaf of 0 is ever found, as long as one is greater.
        """
        rest = mass.astype(np.float64)
        rows = np.arange(len(rest))
        ix = np.zeros(len(rest), np.int64)
        for level in reversed(self._levels):
            children = level[ix]
            sums = children.cumsum(1)
            child = (sums <= rest[:, None]).sum(1)
            child[child == _WIDTH] = _WIDTH - 1
            lost = children[rows, child] <= 0  # sums of sums are rounded in another order than these
            if lost.any():
                child[lost] = children[lost].argmax(1)
            rest -= sums[rows, child] - children[rows, child]
            np.maximum(rest, 0.0, out=rest)
            ix = ix * _WIDTH + child
        return ix


class MinTree(_WideTree):
    """Leaves whose least is wanted; infinity where there is nothing."""

    def __init__(self, n: int) -> None:
        super().__init__(n, np.minimum, np.inf)
