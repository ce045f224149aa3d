"""DQN learns CartPole in a simulator of torch tensors, with the values of its preset."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from border_cli.cli.train import main
from tests.faults.amounts import FULL
from tests.real_runs import Run
from tests.warm import ROOT

SOLVED = 475.0 if FULL else 195.0
"""A random policy has about 22."""

pytestmark = [pytest.mark.learning, pytest.mark.timeout(300)]


def test_dqn_solves_cartpole_with_64_environments_at_once(workplace: Path) -> None:
    preset = yaml.safe_load((ROOT / "conf" / "preset" / "dqn_cartpole.yaml").read_text(encoding="utf-8"))
    values = [
        f"{group}.{key}={value}"
        for group in ("agent", "buffer", "trainer")
        for key, value in preset[group].items()
        if key != "warmup_period"
    ]
    simulator = (
        *("trainer=device", "env=simulator", "env.entry_point=tests.simulators:CartPole"),
        *("actor_manager.envs_per_actor=64", "trainer.warmup_period=1500", "seed=0"),
    )
    ends = (f"trainer.stop_return={SOLVED}", "evaluator.max_episode_steps=500")
    console = ("recorder.console=none", "recorder.tensorboard=false")
    assert main(["agent=dqn", "preset=none", *values, *simulator, *ends, *console]) == 0
    run = Run(Path("runs/latest").resolve())
    assert run.summary["ended_by"] == "stop_return", run.series("eval/return_mean")
    assert run.summary["best_score"]["mean"] >= SOLVED
    assert run.counts[1] <= (100_000 if FULL else 40_000)
