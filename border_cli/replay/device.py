"""Rows of the replay in the memory of the learner's device. Only this module of the replay imports torch."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from border_cli.core.spaces import Array
from border_cli.core.types import Column, Items
from border_cli.replay.streams import PackedRows, row_layout
from border_cli.runtime.tensors import to_device


class DeviceRows(PackedRows):
    """As `PackedRows`, with the same bytes per row, on a device.

    Rows are written by one copy for all columns, and a batch is gathered there by one operation. columns: name → (n, ...)
    tensor, a strided view of the rows.
    """

    def __init__(self, columns: Sequence[Column], n: int, device: torch.device) -> None:
        self.n = n
        self._device = device
        self._layout = row_layout(columns)
        self._whole: Tensor = torch.zeros((n, self._layout.itemsize), dtype=torch.uint8, device=device)
        self.columns = {column.name: self._view(column) for column in columns}

    def _view(self, column: Column) -> Tensor:
        dtype, offset = self._layout.fields[column.name][:2]  # type: ignore[index]
        element = torch.from_numpy(np.empty(0, dtype.base)).dtype
        return self._whole[:, offset : offset + dtype.itemsize].view(element).view(self.n, *column.shape)

    def write(self, where: slice, rows: Items) -> None:
        """As `PackedRows.write`. Columns may be tensors, all of them, which then never leave the device."""
        if isinstance(rows[next(iter(self.columns))], Tensor):
            for name, column in self.columns.items():
                column[where] = torch.as_tensor(rows[name])
            return
        packed = np.zeros(len(next(iter(rows.values()))), self._layout)
        for name in self.columns:
            packed[name] = rows[name]
        self._whole[where] = to_device(packed.view(np.uint8).reshape(len(packed), -1), self._device)

    def read(self, where: slice) -> Items:
        packed = self._whole[where].cpu().numpy().view(self._layout)[:, 0]
        return {name: np.ascontiguousarray(packed[name]) for name in self.columns}

    def take(self, ix: Array, into: PackedRows) -> None:
        torch.index_select(self._whole, 0, to_device(ix, self._device), out=into._whole)
