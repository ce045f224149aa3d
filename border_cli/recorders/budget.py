"""Which budget ends a run first, how much of it is used, and how long the rest takes."""

from __future__ import annotations

import math
from dataclasses import dataclass

from border_cli.core.progress import Progress


@dataclass(frozen=True)
class Budget:
    """One budget: `used` of `limit`, in `unit`.

    eta_s: seconds until it is used up, None while nobody can tell.
    """

    unit: str
    used: float
    limit: float
    eta_s: float | None

    @property
    def fraction(self) -> float:
        """Share of it that is used, between 0 and 1."""
        return min(1.0, max(0.0, self.used / self.limit)) if self.limit > 0 else 1.0


def first_to_end(progress: Progress) -> Budget | None:
    """The budget that will end the run, or None if there is none.

    The one with the least time left; while the rate of one of them is not known, the one that is used most.
    """
    budgets = _budgets(progress)
    if not budgets:
        return None
    times = [budget.eta_s for budget in budgets]
    if any(time is None for time in times):
        return max(budgets, key=lambda budget: budget.fraction)
    return min(budgets, key=lambda budget: math.inf if budget.eta_s is None else budget.eta_s)


def _budgets(p: Progress) -> list[Budget]:
    # In the warm-up actors run as fast as they can: what that rate promises does not hold for the run.
    settled = p.opt_steps > 0
    rows = (
        ("opt steps", p.opt_steps, p.max_opts, p.opt_steps_per_sec if settled else None),
        ("env steps", p.env_steps, p.max_env_steps, p.samples_per_sec if settled else None),
        ("s", p.seconds, p.max_time, 1.0),
    )
    return [
        Budget(unit, used, limit, _remaining_s(limit - used, per_sec))
        for unit, used, limit, per_sec in rows
        if limit is not None
    ]


def _remaining_s(left: float, per_sec: float | None) -> float | None:
    if left <= 0:
        return 0.0
    return left / per_sec if per_sec is not None and per_sec > 0 else None
