"""Films of episodes while a run trains, made in a process of their own."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from border_cli.core.errors import ResourceError, first_line
from border_cli.core.protocols import Recorder, StopCheck
from border_cli.core.types import ModelInfo
from border_cli.runtime.child import Child, ChildError, call
from border_cli.runtime.clock import Deadline

END_S = 60.0
"""How long the end of a run waits for a film that is being made [s]."""
_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Film:
    """A film that a child is making."""

    child: Child
    path: Path
    opt_steps: int
    env_steps: int


class Films:
    """Films an episode every `interval` opt steps, with the model of that step, unless the last film is still being made.

    Args:
        make: importable by its path: make(*args, model, path) films and returns a small version as a GIF.
        should_stop: whether the run was asked to stop; then its end does not wait for a film.
    """

    def __init__(
        self,
        interval: int,
        folder: Path,
        make: Callable[..., Any],
        args: tuple[Any, ...],
        recorders: Sequence[Recorder],
        should_stop: StopCheck = lambda: False,
    ) -> None:
        self.interval = interval
        self._folder = folder
        self._make, self._args = make, args
        self._recorders = recorders
        self._should_stop = should_stop
        self._film: _Film | None = None

    def film(self, model: ModelInfo, env_steps: int) -> None:
        """Begin a film of this model."""
        self.poll()
        if self._film is not None:
            _logger.info("the film of opt step %d is left out: the one before is not ready", model.version)
            return
        path = self._folder / f"step-{model.version:09d}.mp4"
        try:
            child = Child("film", call, (self._make, (*self._args, model, path)))
        except ResourceError as e:
            _logger.warning("no film of opt step %d: %s", model.version, first_line(e))
            return
        self._film = _Film(child, path, model.version, env_steps)

    def poll(self, timeout_s: float = 0.0) -> None:
        """Pass on a film that is ready."""
        film = self._film
        if film is None or not film.child.poll(timeout_s):
            return
        self._film = None
        try:
            gif = film.child.result()
            for recorder in self._recorders:
                recorder.video(film.path, gif, film.opt_steps, film.env_steps)
        except (ChildError, ResourceError) as e:
            _logger.warning("no film of opt step %d: %s", film.opt_steps, first_line(e))
        finally:
            film.child.end()

    def close(self) -> None:
        """Wait for the film that is being made, END_S at most."""
        deadline = Deadline(END_S)
        while self._film is not None and not deadline.passed and not self._should_stop():
            self.poll(0.1)
        if (film := self._film) is not None:
            _logger.warning(
                "the film of opt step %d is left out: it was not ready at the end", film.opt_steps
            )
            film.child.end()
            # What `border_cli.run.video` had written of it.
            film.path.with_name(f".{film.path.name}").unlink(missing_ok=True)
            self._film = None
