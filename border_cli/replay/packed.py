"""Rows of named columns, the fields of each row side by side in memory."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from border_cli.core.items import Column, Items
from border_cli.core.spaces import Array


class PackedRows:
    """`n` rows of zeros. columns: name → (n, ...) array, a strided view into the rows.

    Sampled rows lie far apart, and small calls between opt steps find cold caches: one copy per row, of all its fields
    at once, costs a fraction of one per field.
    """

    def __init__(self, columns: Sequence[Column], n: int) -> None:
        self.n = n
        records = np.zeros(n, _layout(columns))
        self.columns: Items = {c.name: records[c.name] for c in columns}
        self._whole = records.view(
            f"V{records.itemsize}"
        )  # numpy copies opaque rows faster than structured ones

    @property
    def nbytes(self) -> int:
        """Bytes of all rows, alignment included."""
        return self._whole.nbytes

    def take(self, ix: Array, into: PackedRows) -> None:
        """Copy the rows `ix`, each within range, over those of `into`: same columns, len(ix) rows."""
        self._whole.take(ix, out=into._whole, mode="clip")  # "raise" would go through a buffer of its own


def row_bytes(columns: Sequence[Column]) -> int:
    """Bytes that one row takes, alignment included."""
    return _layout(columns).itemsize


def _layout(columns: Sequence[Column]) -> np.dtype[np.void]:
    return np.dtype([(c.name, c.dtype, c.shape) for c in columns], align=True)
