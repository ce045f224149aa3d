"""Arrays on their way to the learner's device, and operations whose bits repeat there."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import torch
from torch import Tensor

from border_cli.core.spaces import Array


def to_device(array: Array, device: torch.device) -> Tensor:
    """An array as a tensor; on the CPU it shares memory. A copy to a GPU does not wait for the work before it."""
    tensor = torch.from_numpy(array)
    if device.type == "cuda":  # torch keeps the pinned memory until the copy is done
        return tensor.contiguous().pin_memory().to(device, non_blocking=True)
    return tensor.to(device)


def like(array: Array, other: Any) -> Any:
    """An array as it is if the other is one, else as a tensor on its device."""
    return array if isinstance(other, np.ndarray) else to_device(array, other.device)


def library_of(value: Any) -> Any:
    """Numpy for an array, torch for a tensor: functions that both have serve both."""
    return np if isinstance(value, np.ndarray) else torch


def repeat_bits_on_gpu(repeats: bool) -> None:
    """Set whether operations on a GPU add numbers in a fixed order, which takes longer.

    Where torch has no such form of an operation, it warns.
    """
    # torch demands this, and reads it before the first matrix product.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(repeats, warn_only=True)
    # That option finds bugs by writing each new tensor once more.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
