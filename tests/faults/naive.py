"""What not to do: the negative controls. What is shown of ours must not hold of these, or the tests show nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
from safetensors import numpy as safetensors

from border_cli.core.spaces import Array

_BLOCK = 2**16


def save_in_place(path: Path, array: Array, tick: Callable[[], None]) -> None:
    """Write the newest state over the one before it. tick: called between two blocks."""
    data = safetensors.save({"array": array})
    with path.open("wb", buffering=0) as file:
        for start in range(0, len(data), _BLOCK):
            tick()
            file.write(data[start : start + _BLOCK])


def load_unverified(path: Path) -> dict[str, Array]:
    """What is in the file, whatever that is. Raises an exception of some kind where the format itself is broken."""
    loaded: dict[str, Array] = safetensors.load(path.read_bytes())
    return {name: np.array(array) for name, array in loaded.items()}
