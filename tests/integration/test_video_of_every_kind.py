"""`border-eval video=1` of each kind of environment: the film opens, and has a frame for each env step and one more."""

from __future__ import annotations

import json
from pathlib import Path

import av
import pytest

from border_cli.cli.eval import main
from tests.faults.amounts import sampled
from tests.real_runs import train as train_run

SMALL = ("trainer=sync", "trainer.max_opts=4", "trainer.eval_interval=4", "evaluator.episodes=1")
VALUES = ("agent=dqn", *SMALL)
ACTIONS = ("agent=sac", "agent.random_env_steps=10", *SMALL)
KINDS = {
    "classic control, pygame": ("env=cartpole", *VALUES),
    "toy text": ("env=gym", "env.id=FrozenLake-v1", *VALUES),
    "Box2D": ("env=lunarlander", *VALUES),
    "MuJoCo": ("env=hopper", *ACTIONS),
    "Atari": ("env=pong", "env.kwargs.max_num_frames_per_episode=400", "agent.channels=[4]", *VALUES),
    "ours": ("env=catch", "agent.channels=[4]", *VALUES),
}


@pytest.mark.parametrize("kind", sampled(list(KINDS), 3))
def test_video(kind: str, workplace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MUJOCO_GL", "egl")
    run = train_run(*(word for word in KINDS[kind] if "agent.hidden" not in word))
    assert main([str(run.path), "episodes=1", "video=1"]) == 0
    (film,) = (run.path / "eval").glob("*.mp4")
    (result,) = (run.path / "eval").glob("*.json")
    with av.open(str(film)) as container:
        frames = [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
    assert len(frames) == json.loads(result.read_text())["lengths"][0] + 1
    assert all(frame.std() > 0 for frame in frames)
