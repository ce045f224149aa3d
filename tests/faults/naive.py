"""Negative controls: naive implementations that the same tests must find faulty."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
from safetensors import numpy as safetensors

from border_cli.core.spaces import Array

_BLOCK = 2**16


def save_in_place(path: Path, array: Array, tick: Callable[[], None]) -> None:
    """Overwrite the previous state in place. tick: called between two blocks."""
    data = safetensors.save({"array": array})
    with path.open("wb", buffering=0) as file:
        for start in range(0, len(data), _BLOCK):
            tick()
            file.write(data[start : start + _BLOCK])


def load_unverified(path: Path) -> dict[str, Array]:
    """Return the content without verification. Raises some exception if the format is broken."""
    loaded: dict[str, Array] = safetensors.load(path.read_bytes())
    return {name: np.array(array) for name, array in loaded.items()}
