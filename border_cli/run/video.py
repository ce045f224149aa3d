"""Films of episodes: mp4 files, encoded frame by frame, and a small GIF for TensorBoard."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from fractions import Fraction
from math import ceil
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


@contextmanager
def mp4_file(path: Path, fps: float) -> Iterator[Callable[[Array], None]]:
    """A function that adds a frame (height, width, 3) uint8 to an mp4 file. The file is complete at the end.

    An odd last row or column of a frame is left out: the format has none. Raises UsageError without PyAV.
    """
    av = import_av()
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


def small_gif(path: Path) -> bytes:
    """A small version of a film: at most GIF_FRAMES of its frames, evenly spaced, as a GIF."""
    av, file = import_av(), io.BytesIO()
    with av.open(str(path)) as film, av.open(file, "w", format="gif") as small:
        source = film.streams.video[0]
        every, step = ceil(source.frames / GIF_FRAMES), ceil(max(source.width, source.height) / GIF_SIDE)
        width, height = ceil(source.width / step), ceil(source.height / step)
        stream = small.add_stream("gif", rate=min(GIF_RATE, source.frames))
        stream.width, stream.height, stream.pix_fmt = width, height, "rgb8"
        for i, frame in enumerate(film.decode(source)):
            if i % every == 0:
                pixels = frame.to_ndarray(width=width, height=height, format="rgb24")
                small.mux(stream.encode(av.VideoFrame.from_ndarray(pixels)))
        small.mux(stream.encode(None))
    return file.getvalue()


def film(
    env: GymEnv,
    policy: ActingPolicy,
    opt_steps: int,
    seed: int,
    path: Path,
    max_episode_steps: int,
    should_stop: StopCheck = lambda: False,
) -> Evaluation | None:
    """Film one episode in the first environment, which renders `rgb_array`: a frame before each env step, and the last.

    Returns the episode, None if asked to stop meanwhile; then there is no file.
    Raises UsageError where the environment cannot draw, ResourceError where the file cannot be written.
    """
    fps = float(env.envs[0].metadata.get("render_fps") or 30)
    temporary, began = path.with_name(f".{path.name}"), False
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
        with suppress(OSError):  # such as that it was renamed
            temporary.unlink()
    return evaluation


def _drawn(env: GymEnv) -> Array:
    try:
        frame = np.asarray(env.render())
    except Exception as e:
        allowed = "without a display, MuJoCo draws with MUJOCO_GL=egl (or osmesa) in front of the command"
        if isinstance(e, gymnasium.error.DependencyNotInstalled):
            allowed = "the package that the environment draws with"
        problem = f"video: the environment cannot draw: {type(e).__name__}: {first_line(e)}"
        raise UsageError(problem, allowed=allowed) from e
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
        raise UsageError("video needs PyAV", allowed="pip install 'border-cli[video]'") from e
    return av
