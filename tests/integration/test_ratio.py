"""The ratio that real runs end up with, at the default tolerance."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.real_runs import train

OPT_STEPS = 10_000


@pytest.mark.parametrize(("target", "within"), [(0.5, 0.02), (1.0, 0.01), (4.0, 0.01)])
def test_the_actual_ratio_is_the_target(workplace: Path, target: float, within: float) -> None:
    run = train(
        "env=cartpole",
        "n_actors=2",
        "agent.hidden=[8]",
        f"trainer.opt_interval={target}",
        f"trainer.max_opts={OPT_STEPS}",
        "trainer.eval_interval=null",
        "trainer.save_interval=null",
    )
    opt_steps, env_steps = run.counts
    assert opt_steps == OPT_STEPS
    (at_the_end,) = [v for n, v in run.series("throughput/samples_per_opt_step") if n == OPT_STEPS][-1:]
    assert at_the_end == pytest.approx((env_steps - run.config.trainer.warmup_period) / opt_steps)
    assert at_the_end == pytest.approx(target, rel=within)
