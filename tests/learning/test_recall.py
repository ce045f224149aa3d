"""A memory solves what cannot be solved without it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.amounts import times
from tests.real_runs import train

pytestmark = [pytest.mark.learning, pytest.mark.timeout(300)]
ARGS = (
    *(
        "agent=r2d2",
        "env=gym",
        "env.entry_point=tests.memory_envs:TMaze",
        "env.kwargs.length=5",
        "trainer=sync",
    ),
    *("trainer.opt_interval=4", "trainer.warmup_period=500"),
    *("trainer.eval_interval=100", "evaluator.episodes=20", "trainer.stop_return=1.0", "seed=0"),
    *("trainer.max_env_steps=12000", "recorder.tensorboard=false"),
)


WITH, WITHOUT = ("agent.sequence_length=8", "agent.burn_in=4"), ("agent.gru=null", "agent.batch_size=256")


@pytest.mark.parametrize("memory", [WITH, *times((), (WITHOUT,))], ids=lambda memory: memory[0])
def test_only_with_a_memory_the_sign_at_the_beginning_is_followed(
    workplace: Path, memory: tuple[str, ...]
) -> None:
    """Without one, a way is chosen blindly: right in half of the episodes."""
    best = train(*ARGS, *memory).summary["best_score"]["mean"]
    assert best == 1.0 if memory is WITH else best < 0.8
