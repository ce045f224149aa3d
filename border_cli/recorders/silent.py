"""The view that shows nothing."""

from __future__ import annotations

from border_cli.core.progress import Progress


class SilentView:
    """Implements `core.progress.View` for `recorder.console=none` and for use from Python."""

    def show(self, progress: Progress) -> None:
        """Nothing."""

    def note(self, message: str) -> None:
        """Nothing."""

    def close(self) -> None:
        """Nothing."""
