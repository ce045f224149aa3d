"""With goals in hindsight DQN learns to flip 10 bits to a random goal; without them it practically never sees a reward."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.real_runs import train

pytestmark = [pytest.mark.learning, pytest.mark.timeout(300)]


@pytest.mark.parametrize(("her", "least", "most"), [("future", 0.9, 1.0), ("none", 0.0, 0.1)])
def test_bits_are_flipped_to_the_goal_only_with_goals_in_hindsight(
    workplace: Path, her: str, least: float, most: float
) -> None:
    run = train(
        *("agent=dqn", "env=gym", "env.entry_point=tests.goal_envs:BitFlip", "env.kwargs.n=10"),
        *(f"buffer.her={her}", "env.info_keys=[is_success]", "trainer=sync", "trainer.max_opts=1500"),
        *("trainer.warmup_period=500", "trainer.eval_interval=1500", "evaluator.episodes=50"),
        *("agent.lr=4e-3", "agent.target_interval=50", "agent.hidden=[64,64]", "agent.batch_size=64"),
        *("agent.gamma=0.98", "agent.epsilon_env_steps=1000"),
    )
    assert least <= run.series("eval/is_success")[-1][1] <= most
