"""The ratio that real runs end up with, at the default tolerance."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.real_runs import train


@pytest.mark.parametrize(
    ("target", "opt_steps", "within"), [(0.5, 7000, 0.02), (1.0, 7000, 0.01), (4.0, 2000, 0.01)]
)
def test_the_actual_ratio_is_the_target(
    workplace: Path, target: float, opt_steps: int, within: float
) -> None:
    """opt_steps: so many that the 64 env steps by which acting may be ahead are less than `within` of all."""
    run = train(
        "env=cartpole",
        "n_actors=2",
        "agent.hidden=[8]",
        f"trainer.opt_interval={target}",
        f"trainer.max_opts={opt_steps}",
        "trainer.eval_interval=null",
        "trainer.save_interval=null",
    )
    done, env_steps = run.counts
    assert done == opt_steps
    (at_the_end,) = [v for n, v in run.series("throughput/samples_per_opt_step") if n == opt_steps][-1:]
    assert at_the_end == pytest.approx((env_steps - run.config.trainer.warmup_period) / opt_steps)
    assert at_the_end == pytest.approx(target, rel=within)
