"""What an environment draws, kept frame by frame and written as a GIF."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from border_cli.core.errors import UsageError

if TYPE_CHECKING:
    from PIL.Image import Image

MAX_FRAMES = 1000
_MAX_SIDE = 320
_FRAME_MS = 33


class Film:
    """Takes a frame at each call of `shoot`, the first MAX_FRAMES of them.

    render: gives one frame, an array (height, width, 3) of uint8.
    Raises UsageError where the imaging library is not installed.
    """

    def __init__(self, render: Callable[[], Any]) -> None:
        try:
            from PIL.Image import fromarray
        except ImportError as e:
            raise UsageError("render=rgb_array needs Pillow\ninstall it with: pip install pillow") from e
        self._from_array = fromarray
        self._render = render
        self._frames: list[Image] = []

    def shoot(self) -> None:
        """Keep the present frame, small and with 256 colours, because a film is long."""
        if len(self._frames) >= MAX_FRAMES:
            return
        frame = self._from_array(self._render())
        frame.thumbnail((_MAX_SIDE, _MAX_SIDE))
        self._frames.append(frame.quantize())

    def save(self, path: Path) -> None:
        """Write the film. Raises OSError when it cannot be written, ValueError when it has no frame."""
        if not self._frames:
            raise ValueError("a film without a frame")
        first, *rest = self._frames
        first.save(path, format="GIF", save_all=True, append_images=rest, duration=_FRAME_MS, loop=0)
