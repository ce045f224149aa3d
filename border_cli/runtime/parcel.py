"""An object on its way to a child that is being started, however large it is and whatever the child does."""

from __future__ import annotations

from multiprocessing import reduction
from typing import Any

import numpy as np

from border_cli.runtime.memory import Block


class Parcel:
    """`content` in memory that the child shares: nobody waits until it is read, as at the end of a full pipe.

    Passed to the child as an argument of its process. Raises ResourceError when the memory or a descriptor cannot be had.
    """

    def __init__(self, content: object, purpose: str) -> None:
        data = np.frombuffer(reduction.ForkingPickler.dumps(content), np.uint8)
        self._nbytes = len(data)
        self._block = Block(self._nbytes, purpose)
        self._block.array(0, (self._nbytes,), "uint8")[:] = data

    def open(self) -> Any:
        """The content, in the child. What it needs is imported now, and no sooner."""
        return reduction.ForkingPickler.loads(self._block.array(0, (self._nbytes,), "uint8").data)

    def close(self) -> None:
        """Give the descriptor back, once the child is started."""
        self._block.close()
