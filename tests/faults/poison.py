"""A plugin that puts NaN into batches.

The file `poison` in the run's working directory says into which: the first and the last, counted from 1.
"""

from __future__ import annotations

from pathlib import Path

from border_cli.core.protocols import Batch
from border_cli.replay.buffer import RowReplayBuffer

_first, _last = (int(word) for word in Path("poison").read_text(encoding="ascii").split())
_batch = RowReplayBuffer.batch
_taken = 0


def _poisoned_batch(self: RowReplayBuffer, size: int, into: Batch | None = None) -> Batch:
    global _taken
    _taken += 1
    batch = _batch(self, size, into)
    if _first <= _taken <= _last:
        batch.reward[0] = float("nan")
    return batch


RowReplayBuffer.batch = _poisoned_batch  # type: ignore[method-assign]
