"""DQN learns CartPole with its preset, with and without actors."""

from __future__ import annotations

from pathlib import Path

import pytest

from border_cli.cli.train import main
from tests.faults.amounts import FULL
from tests.real_runs import Run
from tests.trained import read_checkpoint

SOLVED = 475.0
WITHIN = 50_000  # [env steps] half of the preset's budget
ARGS = (
    "agent=dqn",
    "env=cartpole",
    f"trainer.stop_return={SOLVED}",
    "recorder.console=none",
    "recorder.tensorboard=false",
)

pytestmark = [pytest.mark.learning, pytest.mark.timeout(300)]


def train(workplace: Path, *args: str) -> Run:
    assert main([*ARGS, *args]) == 0
    return Run((workplace / "runs" / "latest").resolve())


def assert_solved(run: Run) -> None:
    """Check that the best model's score on fresh episodes ended the run within half of the preset's budget."""
    assert run.config.preset.name == "dqn_cartpole"
    assert run.config.trainer.max_env_steps == 2 * WITHIN
    assert run.counts[1] <= WITHIN
    summary = run.summary
    assert summary["ended_by"] == "stop_return", run.series("eval/return_mean")
    assert summary["best_score"]["mean"] >= SOLVED
    best = read_checkpoint(run.path / "best")
    assert best.score is not None
    assert len(best.score.returns) >= 20
    assert best.score.mean == summary["best_score"]["mean"]


def test_the_learner_that_acts_itself_solves_cartpole(workplace: Path) -> None:
    assert_solved(train(workplace, "trainer=sync", "seed=0"))


@pytest.mark.skipif(not FULL, reason="make test-full")
def test_a_learner_with_two_actors_solves_cartpole(workplace: Path) -> None:
    """Free-running actors are not reproducible, and a rare seed fails, so a second seed may try."""
    run = train(workplace, "n_actors=2", "seed=0")
    if run.summary["ended_by"] != "stop_return":
        run = train(workplace, "n_actors=2", "seed=1")
    assert_solved(run)
