"""A run in a terminal: one live area below whatever else is said."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from rich.console import Console, RenderableType
from rich.live import Live
from rich.text import Text

from border_cli.core.progress import Progress
from border_cli.recorders.frame import Room, frame
from border_cli.recorders.outlet import Outlet, printable

_ECHO = 2
"""Columns left free: a terminal writes ^C behind the last line, and where that wraps, the top line stands there twice."""
REDRAW_S = 0.25
"""Least time between two frames [s]."""


def is_live(console: Console) -> bool:
    """Whether this console can redraw a part of itself; if not, `PlainView` is the view to take."""
    return console.is_terminal and not console.is_dumb_terminal


class ScreenView:
    """A `View` that redraws the present state in place and prints notes above it.

    `close` leaves the last frame where it is. A terminal that goes away makes it silent; the run goes on.
    now: a clock in seconds that never goes back. cores: processor cores, for the advice.
    """

    def __init__(
        self,
        console: Console,
        title: str,
        now: Callable[[], float] = time.monotonic,
        cores: int | None = os.cpu_count(),
    ) -> None:
        self._console = console
        self._title = title
        self._now = now
        self._cores = cores
        self._outlet = Outlet(lambda: console.file)
        self._live = Live(console=console, auto_refresh=False, vertical_overflow="crop")
        self._latest: Progress | None = None
        self._due = now()

    def show(self, progress: Progress) -> None:
        """Draw, unless the last frame is younger than REDRAW_S: then this costs a look at the clock."""
        self._latest = progress
        if self._now() < self._due:
            return
        self._draw(progress)
        # Counted from the end of drawing: a slow terminal must not take all of the learner's time.
        self._due = self._now() + REDRAW_S

    def note(self, message: str) -> None:
        """Lines above the live area, which stay."""
        text = Text(printable(message, self._console.encoding))
        self._attempt(lambda: self._console.print(text, highlight=False))

    def close(self) -> None:
        """Draw the last state and give the terminal back. Closing again does nothing."""
        latest, self._latest = self._latest, None
        try:
            if latest is not None:
                self._draw(latest)
        finally:
            self._attempt(self._live.stop)

    def _draw(self, progress: Progress) -> None:
        if not self._outlet.open:
            return
        width, height = self._console.size
        room = Room(max(1, width - _ECHO), height, self._console.encoding)
        picture = frame(progress, self._title, room, self._cores)
        self._attempt(lambda: self._put(picture))

    def _put(self, picture: RenderableType) -> None:
        if not self._live.is_started:
            self._live.start()
            # rich hides the cursor, and a second Ctrl-C or a SIGKILL leaves no chance to show it again.
            self._console.show_cursor(True)
        self._live.update(picture, refresh=True)

    def _attempt(self, write: Callable[[], object]) -> None:
        """Write if there still is a terminal; once it turns out to be gone, stop the live area silently."""
        was_open = self._outlet.open
        self._outlet.attempt(write)
        if was_open and not self._outlet.open:
            self._console.quiet = True
            self._live.stop()  # gives back sys.stdout and sys.stderr, which it had taken
