"""Films of episodes: mp4 files, encoded frame by frame, and a small GIF for TensorBoard."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np

from border_cli.core.errors import ResourceError, UsageError, first_line
from border_cli.core.protocols import ActingPolicy, StopCheck
from border_cli.core.spaces import Array
from border_cli.core.types import Evaluation
from border_cli.training.evaluators import EpisodeRunner

if TYPE_CHECKING:
    from border_cli.envs.group import GymEnv

GIF_FRAMES, GIF_SIDE, GIF_RATE = 100, 160, 10
"""Most frames of a GIF, its longer side [pixels], and the most frames that it shows per second."""


class Mp4Writer:
    """Writes frames to an mp4 file, which is there when `close` returns. Raises UsageError without PyAV."""

    def __init__(self, path: Path, fps: float) -> None:
        av = import_av()
        self._path = path
        self._temporary = path.with_name(f".{path.name}")
        self._container = av.open(str(self._temporary), "w", format="mp4")
        self._stream = self._container.add_stream("libx264", rate=Fraction(fps).limit_denominator(1000))
        self._stream.codec_context.thread_count = 1  # a film is made beside a run
        self._frame_of = av.VideoFrame.from_ndarray
        self._is_empty = True

    def add(self, frame: Array) -> None:
        """Add a frame (height, width, 3) uint8. An odd last row or column is left out: the format has none."""
        height, width = (side // 2 * 2 for side in frame.shape[:2])
        if self._is_empty:
            self._stream.height, self._stream.width, self._stream.pix_fmt = height, width, "yuv420p"
            self._is_empty = False
        self._container.mux(self._stream.encode(self._frame_of(np.ascontiguousarray(frame[:height, :width]))))

    def close(self, complete: bool = True) -> None:
        """End the file; one that is not complete is removed."""
        try:
            if complete and not self._is_empty:
                self._container.mux(self._stream.encode(None))
            self._container.close()
            if complete and not self._is_empty:
                self._temporary.replace(self._path)
        finally:
            self._temporary.unlink(missing_ok=True)


class Thumbnails:
    """Small frames of an episode of unknown length, evenly spaced, at most GIF_FRAMES of them."""

    def __init__(self) -> None:
        self._frames: list[Array] = []
        self._every, self._n = 1, 0

    def add(self, frame: Array) -> None:
        """Take a frame (height, width, 3), if it is its turn."""
        if self._n % self._every == 0:
            step = max(1, -(-max(frame.shape[:2]) // GIF_SIDE))
            self._frames.append(
                frame[::step, ::step].copy()
            )  # an environment may draw into the same frame again
            if len(self._frames) > GIF_FRAMES:
                self._frames = self._frames[::2]
                self._every *= 2
        self._n += 1

    def gif(self) -> bytes:
        """The frames as a GIF."""
        av, file = import_av(), io.BytesIO()
        height, width = self._frames[0].shape[:2]
        with av.open(file, "w", format="gif") as container:
            stream = container.add_stream("gif", rate=min(GIF_RATE, len(self._frames)))
            stream.height, stream.width, stream.pix_fmt = height, width, "rgb8"
            for frame in self._frames:
                container.mux(stream.encode(av.VideoFrame.from_ndarray(frame)))
            container.mux(stream.encode(None))
        return file.getvalue()

    @property
    def size(self) -> tuple[int, int]:
        """Height and width."""
        height, width = self._frames[0].shape[:2]
        return height, width


def film(
    env: GymEnv,
    policy: ActingPolicy,
    opt_steps: int,
    seed: int,
    path: Path,
    max_episode_steps: int,
    should_stop: StopCheck = lambda: False,
    frame_sinks: Sequence[Callable[[Array], None]] = (),
) -> Evaluation | None:
    """Film one episode in the first environment, which renders `rgb_array`: a frame before each env step, and the last.

    frame_sinks: get each frame too. Returns the episode, None if asked to stop meanwhile; then there is no file.
    Raises UsageError where the environment cannot draw, ResourceError where the file cannot be written.
    """
    fps = float(env.envs[0].metadata.get("render_fps") or 30)
    began, done = False, False

    def add_frame() -> None:
        frame = _drawn(env)
        for take in (writer.add, *frame_sinks):
            take(frame)

    def tick() -> None:
        nonlocal began
        if began:  # the first call comes before the reset
            add_frame()
        began = True

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        writer = Mp4Writer(path, fps)
        with ExitStack() as stack:
            stack.callback(lambda: writer.close(done))
            evaluation = EpisodeRunner(env, max_episode_steps, should_stop).evaluate(
                policy, opt_steps, [seed], tick
            )
            if evaluation is not None:
                add_frame()
                done = True
    except OSError as e:
        raise ResourceError(f"{path} cannot be written: {e.strerror or e}") from e
    return evaluation


def _drawn(env: GymEnv) -> Array:
    try:
        frame = np.asarray(env.render())
    except Exception as e:
        hint = "without a display, MuJoCo draws with MUJOCO_GL=egl (or osmesa) in front of the command"
        if isinstance(e, gymnasium.error.DependencyNotInstalled):
            hint = "allowed: the package that the environment draws with"
        raise UsageError(
            f"video: the environment cannot draw: {type(e).__name__}: {first_line(e)}\n{hint}"
        ) from e
    if frame.ndim != 3 or frame.shape[2] != 3:
        raise UsageError(
            f"video: the environment draws frames of shape {frame.shape}", allowed="(height, width, 3)"
        )
    return frame.astype(np.uint8, copy=False)


def import_av() -> Any:
    """The package PyAV. Raises UsageError where it is not installed."""
    try:
        import av
    except ImportError as e:
        raise UsageError("video needs PyAV\ninstall it with: pip install 'border-cli[video]'") from e
    return av
