"""Films of episodes as mp4 files: of a run while it trains, in a process of their own, and of `border-eval`."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from border_cli.core.errors import ResourceError, UsageError, first_line
from border_cli.core.protocols import ActingPolicy, Recorder, StopCheck
from border_cli.core.spaces import Array
from border_cli.core.types import Evaluation, ModelInfo
from border_cli.runtime.child import Child, ChildError, call
from border_cli.runtime.stopping import Deadline
from border_cli.training.evaluators import EpisodeRunner

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


@dataclass(eq=False)
class Films:
    """Films an episode every `interval` opt steps, with the model of that step, unless the last film is still being made.

    Args:
        make: importable by its path: make(*args, model, path) films an episode.
        should_stop: whether the run was asked to stop; then its end does not wait for a film.
    """

    interval: int
    folder: Path
    make: Callable[..., None]
    args: tuple[Any, ...]
    recorders: Sequence[Recorder]
    should_stop: StopCheck = lambda: False
    _film: _Film | None = field(default=None, init=False)

    def film(self, model: ModelInfo, env_steps: int) -> None:
        self.poll()
        if self._film is not None:
            _logger.info("the film of opt step %d is skipped: the last film is not ready", model.version)
            return
        path = self.folder / f"step-{model.version:09d}.mp4"
        try:
            child = Child("film", call, (self.make, (*self.args, model, path)))
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
            film.child.result()
            for recorder in self.recorders:
                recorder.video(film.path, film.opt_steps, film.env_steps)
        except (ChildError, ResourceError) as e:
            _logger.warning("no film of opt step %d: %s", film.opt_steps, first_line(e))
        finally:
            film.child.end()

    def close(self) -> None:
        """Wait for the film that is being made, END_S at most."""
        deadline = Deadline(END_S)
        while self._film is not None and not deadline.passed and not self.should_stop():
            self.poll(0.1)
        if (film := self._film) is not None:
            _logger.warning(
                "the film of opt step %d is lost: it was not ready at the end of the run", film.opt_steps
            )
            film.child.end()
            _unfinished(film.path).unlink(missing_ok=True)
            self._film = None


def film_episode(
    env: Any,
    policy: ActingPolicy,
    opt_steps: int,
    seed: int,
    path: Path,
    max_episode_steps: int,
    should_stop: StopCheck = lambda: False,
) -> Evaluation | None:
    """Film one episode: a frame before each env step, and one at the end.

    env: an `envs.group.GymEnv` that renders `rgb_array`; its first environment is filmed.

    Returns the episode, None if asked to stop meanwhile; then there is no file.
    Raises UsageError where the environment cannot draw, ResourceError where the file cannot be written.
    """
    fps = float(env.envs[0].metadata.get("render_fps") or 30)
    temporary, began = _unfinished(path), False
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with mp4_file(temporary, fps) as add:

            def tick() -> None:
                nonlocal began
                if began:  # the first call comes before the reset
                    add(_drawn(env))
                began = True

            runner = EpisodeRunner(env, max_episode_steps, should_stop)
            evaluation = runner.evaluate(policy, opt_steps, [seed], tick)
            if evaluation is not None:
                add(_drawn(env))
        if evaluation is not None:
            temporary.replace(path)
    except OSError as e:
        raise ResourceError(f"{path} cannot be written: {e.strerror or e}") from e
    finally:
        temporary.unlink(missing_ok=True)
    return evaluation


@contextmanager
def mp4_file(path: Path, fps: float) -> Iterator[Callable[[Array], None]]:
    """A function that adds a frame (height, width, 3) uint8 to an mp4 file. The file is complete at the end.

    An odd last row or column of a frame is left out: the format has none.
    """
    import av

    with av.open(str(path), "w", format="mp4") as container:
        stream = container.add_stream("libx264", rate=Fraction(fps).limit_denominator(1000))
        stream.codec_context.thread_count = 1  # a film is made beside a run

        def add(frame: Array) -> None:
            height, width = (side // 2 * 2 for side in frame.shape[:2])
            if not stream.codec_context.is_open:
                stream.height, stream.width, stream.pix_fmt = height, width, "yuv420p"
            frame = np.ascontiguousarray(frame[:height, :width])
            container.mux(stream.encode(av.VideoFrame.from_ndarray(frame)))

        yield add
        if stream.codec_context.is_open:
            container.mux(stream.encode(None))


def _drawn(env: Any) -> Array:
    """The environment as a picture (height, width, 3) uint8. Raises UsageError where it cannot draw one."""
    try:
        frame = np.asarray(env.envs[0].render())
    except Exception as e:
        raise UsageError(
            f"video: the environment cannot draw: {type(e).__name__}: {first_line(e)}",
            allowed="with the packages that it draws with; without a display, MuJoCo draws with MUJOCO_GL=egl in front",
        ) from e
    if np.ndim(frame) != 3 or frame.shape[2] != 3:
        raise UsageError(
            f"video: the environment draws frames of shape {np.shape(frame)}", allowed="(height, width, 3)"
        )
    return frame.astype(np.uint8, copy=False)


def _unfinished(path: Path) -> Path:
    """The file that becomes this film."""
    return path.with_name(f".{path.name}")
