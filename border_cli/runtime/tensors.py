"""Arrays on their way to the learner's device."""

from __future__ import annotations

import torch
from torch import Tensor

from border_cli.core.spaces import Array


def to_device(array: Array, device: torch.device) -> Tensor:
    """An array as a tensor; on the CPU it shares memory. A copy to a GPU does not wait for the work before it."""
    tensor = torch.from_numpy(array)
    if device.type == "cuda":  # torch keeps the pinned memory until the copy is done
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)
