"""Three discrete actions at once, each of which has to follow the observation."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.real_runs import train

pytestmark = [pytest.mark.learning, pytest.mark.timeout(300)]

SETTINGS = {"dqn": ["agent.epsilon_env_steps=2000"], "dsac": ["agent.target_entropy=0.1"]}


@pytest.mark.parametrize("agent", SETTINGS)
def test_an_agent_learns_all_of_them(agent: str, workplace: Path) -> None:
    run = train(
        *(f"agent={agent}", "env=gym", "env.entry_point=tests.unit.test_branches:Combination"),
        *("trainer=sync", "trainer.opt_interval=2", "seed=0"),
        *("agent.gamma=0.5", "agent.lr=1e-3", *SETTINGS[agent]),
        *("trainer.eval_interval=250", "evaluator.episodes=20", "trainer.stop_return=29"),
        *("trainer.max_env_steps=8000", "recorder.tensorboard=false"),
    )
    assert run.summary["best_score"]["mean"] >= 29.0  # of 30; random actions give about 7.8
