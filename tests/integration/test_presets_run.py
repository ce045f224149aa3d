"""Every shipped preset composes and runs (row I6)."""

from __future__ import annotations

from pathlib import Path

import pytest

from border_cli.cli.train import main
from border_cli.config.presets import shipped
from tests.faults.amounts import FULL, sampled
from tests.real_runs import Run

PRESETS = sorted(name for name in shipped() if not name.endswith("_mujoco"))  # no option of env has that name
GAMES = ("beamrider", "breakout", "mspacman", "qbert", "seaquest", "spaceinvaders", "atari")
"""Atari games other than Pong. They share one preset, so dqn_pong stands for all of them unless TEST_FULL=1."""
SLOW = (*GAMES, "c51_pong", "iqn_pong", "qrdqn_pong", "rainbow_pong", "btr_pong")
SHORT = [preset for preset in PRESETS if FULL or not preset.endswith(SLOW)]


@pytest.mark.parametrize("preset", sampled(SHORT, 20))
def test_i6_a_preset_composes_validates_and_runs_20_opt_steps(
    workplace: Path, capsys: pytest.CaptureFixture[str], preset: str
) -> None:
    agent, env, *variant = preset.split("_")
    if env in ("droq", "redq", "wide"):  # of any environment of MuJoCo
        env, variant = "hopper", [env]
    args = [
        f"agent={agent}",
        f"env={env}",
        *([f"preset={preset}"] if variant else []),
        *(["env.id=ALE/Freeway-v5"] if env == "atari" else []),
        "trainer=sync",
        "trainer.max_opts=20",
        "trainer.eval_interval=10",
    ]
    # The warm-up must provide a batch of any preset.
    args += ["trainer.warmup_period=600", "evaluator.episodes=1", "evaluator.max_episode_steps=20"]
    code = main([*args, "recorder.console=none"])
    assert code == 0, capsys.readouterr().err
    run = Run(Path("runs/latest").resolve())
    assert run.config.preset.name == preset
    assert run.counts[0] == 20
    assert run.steps("eval/return_mean") == [10, 20]
