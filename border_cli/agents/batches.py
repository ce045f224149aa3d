"""Batches of a replay buffer as tensors."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from border_cli.agents.encoding import to_tensors
from border_cli.core.protocols import Batch, ReplayBuffer
from border_cli.core.spaces import Array


@dataclass
class TensorBatch:
    """A batch as tensors; shapes as in `core.protocols.Batch`. weight: (B,) float32, None for a uniform one."""

    obs: dict[str, Tensor]
    action: Tensor
    reward: Tensor
    discount: Tensor
    terminated: Tensor
    next_obs: dict[str, Tensor]
    weight: Tensor | None = None


class Batches:
    """Takes batches of one size out of a replay buffer. last: the one taken last, None before the first."""

    def __init__(self, size: int, device: torch.device) -> None:
        self.last: Batch | None = None
        self._size = size
        self._device = device
        self._tensors: TensorBatch | None = None

    def next(self, buffer: ReplayBuffer) -> TensorBatch:
        """Sampled; on the CPU the tensors share the batch's memory, so a batch filled anew has its tensors already."""
        batch = buffer.batch(self._size, into=self.last)
        if self._tensors is None or batch is not self.last or self._device.type != "cpu":
            self.last, self._tensors = batch, self._to_tensors(batch)
        return self._tensors

    def columns(self) -> dict[str, Array]:
        """Copies of the columns of the last batch; none before the first."""
        batch = self.last
        if batch is None:
            return {}
        columns = batch.obs | {f"next_{name}": rows for name, rows in batch.next_obs.items()}
        for name in ("action", "reward", "discount", "terminated", "ix"):
            columns[name] = getattr(batch, name)
        return {name: rows.copy() for name, rows in columns.items()}

    def _to_tensors(self, batch: Batch) -> TensorBatch:
        def tensor(array: Array) -> Tensor:
            return torch.from_numpy(array).to(self._device)

        return TensorBatch(
            obs=to_tensors(batch.obs, self._device),
            action=tensor(batch.action),
            reward=tensor(batch.reward),
            discount=tensor(batch.discount),
            terminated=tensor(batch.terminated),
            next_obs=to_tensors(batch.next_obs, self._device),
            weight=None if batch.weight is None else tensor(batch.weight),
        )
