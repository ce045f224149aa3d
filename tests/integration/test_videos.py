"""Films: of a run (`evaluator.video_interval`), made beside it, and of `border-eval video=1`."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import av
import numpy as np
import pytest

from border_cli.cli.eval import main
from border_cli.core.spaces import Array
from border_cli.core.types import ModelInfo
from border_cli.training.videos import Films
from tests.faults.amounts import sampled
from tests.faults.processes import wait_until
from tests.real_runs import train

CATCH = ("env=catch", "agent.channels=[4]", "env.kwargs.balls=1", "trainer=sync")
SHORT = ("trainer=sync", "trainer.max_opts=4", "trainer.eval_interval=4", "evaluator.episodes=1")
VALUES = ("agent=dqn", *SHORT)
ACTIONS = ("agent=sac", "agent.random_env_steps=10", *SHORT)
KINDS = {
    "classic control, pygame": ("env=cartpole", *VALUES),
    "toy text": ("env=gym", "env.id=FrozenLake-v1", *VALUES),
    "Box2D": ("env=lunarlander", *VALUES),
    "MuJoCo": ("env=hopper", *ACTIONS),
    "Atari": ("env=pong", "env.kwargs.max_num_frames_per_episode=400", "agent.channels=[4]", *VALUES),
    "ours": ("env=catch", "agent.channels=[4]", *VALUES),
}


def frames(path: Path) -> list[Array]:
    with av.open(str(path)) as container:
        return [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]


def test_a_film_of_a_run_has_a_whole_episode(workplace: Path) -> None:
    run = train(*CATCH, "trainer.max_opts=30", "trainer.eval_interval=20", "evaluator.video_interval=20")
    (film,) = (run.path / "videos").iterdir()
    assert film.name == "step-000000020.mp4"
    # with one ball all episodes are as long
    assert len(frames(film)) == run.series("eval/length_mean")[0][1] + 1
    assert run.summary["records_dropped"] == {}


def test_a_film_that_cannot_be_made_is_a_warning(workplace: Path) -> None:
    counting = ("env=gym", "env.entry_point=tests.counting:CountingEnv", "trainer=sync")
    run = train(*counting, "trainer.max_opts=20", "evaluator.video_interval=10")
    assert not list(run.path.glob("videos/*"))
    assert "no film of opt step 10: " in (run.path / "train.log").read_text()
    assert run.summary["status"] == "done"


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


@pytest.mark.parametrize("kind", sampled(list(KINDS), 6))
def test_border_eval_films_each_kind_of_environment(
    kind: str, workplace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The film opens, and has a frame for each env step and one more."""
    monkeypatch.setenv("MUJOCO_GL", "egl")
    run = train(*KINDS[kind])
    assert main([str(run.path), "episodes=1", "video=1"]) == 0
    (film,) = (run.path / "eval").glob("*.mp4")
    (result,) = (run.path / "eval").glob("*.json")
    pictures = frames(film)
    assert len(pictures) == json.loads(result.read_text())["lengths"][0] + 1
    assert all(np.std(picture) > 0 for picture in pictures)
