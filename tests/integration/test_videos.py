"""`evaluator.video_interval`: films of a run, made beside it, and what the recorders get of them."""

from __future__ import annotations

import io
import threading
from pathlib import Path

import av
import numpy as np
import pytest
from PIL import Image, ImageSequence
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

from border_cli.core.types import ModelInfo
from border_cli.run.video import mp4_file, small_gif
from border_cli.training.films import Films
from tests.faults.processes import wait_until
from tests.real_runs import Run, train

SMALL = (
    "env=catch",
    "agent.channels=[4]",
    "env.kwargs.balls=1",
    "trainer=sync",
)


def frames(path: Path) -> int:
    with av.open(str(path)) as container:
        return sum(1 for _ in container.decode(video=0))


def images(run: Run) -> list[tuple[int, bytes]]:
    """Step and content of the images among TensorBoard's events."""
    (file,) = (run.path / "tensorboard").iterdir()
    values = [
        (event.step, value) for event in EventFileLoader(str(file)).Load() for value in event.summary.value
    ]
    return [(step, value.tensor.string_val[2]) for step, value in values if value.tag == "video/episode"]


def test_films_have_whole_episodes_and_tensorboard_has_them_too(workplace: Path) -> None:
    run = train(
        *SMALL,
        "trainer.max_opts=30",
        "trainer.eval_interval=20",
        "evaluator.video_interval=20",
        "recorder.tensorboard=true",
    )
    (film,) = (run.path / "videos").iterdir()
    assert film.name == "step-000000020.mp4"
    length = frames(film) - 1
    assert length == run.series("eval/length_mean")[0][1]  # with one ball all episodes are as long
    ((step, gif),) = images(run)
    assert step == run.counts[1] - 10  # env steps at opt step 20
    with Image.open(io.BytesIO(gif)) as image:
        assert image.format == "GIF"
        assert getattr(image, "n_frames", 1) == min(length + 1, 100)
    assert run.summary["records_dropped"] == {}


def test_a_small_version_of_frames_that_the_environment_draws_into_one_array(tmp_path: Path) -> None:
    frame = np.zeros((8, 8, 3), np.uint8)
    with mp4_file(tmp_path / "film.mp4", 30) as add:
        for level in (0, 100, 200):
            frame[:] = level
            add(frame)
    with Image.open(io.BytesIO(small_gif(tmp_path / "film.mp4"))) as image:
        found = [np.asarray(one.convert("L")).mean() for one in ImageSequence.Iterator(image)]
    assert found == pytest.approx([0, 100, 200], abs=40)  # rgb8 has few colours


def endless(folder: Path, model: ModelInfo, path: Path) -> None:
    path.with_name(f".{path.name}").touch()
    (folder / "began").touch()
    threading.Event().wait()


def test_a_film_that_is_not_ready_at_the_end_leaves_no_file(tmp_path: Path, full_forkserver: None) -> None:
    films = Films(1, tmp_path, endless, (tmp_path,), [], should_stop=lambda: True)
    films.film(ModelInfo(7, {}), 10)
    wait_until((tmp_path / "began").exists, "the film")
    films.close()
    assert [path.name for path in tmp_path.iterdir()] == ["began"]


def test_a_film_that_cannot_be_made_is_a_warning(workplace: Path) -> None:
    run = train(
        *(
            "env=gym",
            "env.entry_point=tests.counting:CountingEnv",
            "trainer=sync",
        ),
        *("trainer.max_opts=20", "evaluator.video_interval=10"),
    )
    assert not list(run.path.glob("videos/*"))
    assert "no film of opt step 10: " in (run.path / "train.log").read_text()
    assert run.summary["status"] == "done"
