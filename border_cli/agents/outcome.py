"""What has come of the opt steps since the last record: sums of scalars, and how many were skipped."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass
class Outcome:
    """sums: (k,) sums of the scalars since they were last read, skipped opt steps left out ·
    skipped: opt steps skipped since then · skipped_in_a_row: until now; both scalar float32 tensors.
    """

    sums: Tensor
    skipped: Tensor
    skipped_in_a_row: Tensor

    @staticmethod
    def fresh(n_scalars: int, device: torch.device) -> Outcome:
        """Before the first opt step."""
        return Outcome(*(torch.zeros(shape, device=device) for shape in ((n_scalars,), (), ())))

    def take(self, scalars: Sequence[Tensor]) -> Tensor:
        """Count an opt step with these scalars; 1.0 where it has to be skipped, because one of them is not finite.

        That is decided on the device, so that nothing has to be read back for it.
        """
        values = torch.stack(list(scalars))
        # x - x is 0, or NaN for NaN and infinities; half of isfinite's time
        is_bad = (values - values).sum().isnan()
        skip = is_bad.float()
        self.sums.add_(torch.where(is_bad, 0.0, values))
        self.skipped.add_(skip)
        self.skipped_in_a_row.add_(skip).mul_(skip)
        return skip

    def read(self) -> tuple[list[float], int]:
        """The sums and the number of skipped opt steps, which begin anew."""
        sums, skipped = self.sums.tolist(), int(self.skipped.item())
        self.sums.zero_()
        self.skipped.zero_()
        return sums, skipped
