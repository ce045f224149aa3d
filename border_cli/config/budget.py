"""What the budgets of a run allow: its numbers of env steps, opt steps, evaluations, checkpoints and records."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

from border_cli.config.schema import TrainConfig


@dataclass(frozen=True)
class Counts:
    """How often a run does something, each None where only its end will tell.

    limit: the budget that ends it · exact: whether no other budget and no score can end it before.
    """

    env_steps: int | None
    opt_steps: int | None
    evaluations: int | None
    checkpoints: int | None
    exact: bool
    limit: str


def counts(config: TrainConfig) -> Counts:
    """What the budgets allow."""
    t = config.trainer
    env_steps, opt_steps, limit = t.max_env_steps, t.max_opts, "max_time"
    if t.opt_interval is None:
        budgets = ("max_opts", "max_env_steps", "max_time")
        limit = " or ".join(name for name in budgets if getattr(t, name) is not None)
    else:
        # The decimal number that was typed: 0.1 has no exact binary form.
        interval = Fraction(str(t.opt_interval))
        by_env_steps = math.inf if env_steps is None else max(0, (env_steps - t.warmup_period) // interval)
        if opt_steps is not None and opt_steps < by_env_steps:
            env_steps, limit = t.warmup_period + math.ceil(interval * opt_steps), "max_opts"
        elif env_steps is not None:
            opt_steps, limit = int(by_env_steps), "max_env_steps"

    def times(interval: int | None) -> int | None:
        """How often something is done at an interval and at the end, unless both coincide."""
        if interval is None:
            return 0
        return None if opt_steps is None else math.ceil(opt_steps / interval)

    at_end = None if opt_steps is None else min(1, opt_steps)
    return Counts(
        env_steps,
        opt_steps,
        evaluations=times(t.eval_interval),
        checkpoints=at_end if t.save_interval is None else times(t.save_interval),
        exact=t.opt_interval is not None and t.max_time is None and t.stop_return is None,
        limit=limit,
    )
