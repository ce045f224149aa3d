"""Which budget ends a run first, and when."""

from __future__ import annotations

import pytest

from border_cli.core.progress import Progress
from border_cli.recorders.budget import Budget, first_to_end


def test_without_a_budget_there_is_none() -> None:
    assert first_to_end(Progress()) is None


def test_the_one_with_the_least_time_left() -> None:
    # opt steps: 5,000 left at 100/s = 50 s; env steps: 10,000 left at 400/s = 25 s; time: 40 s left
    p = Progress(
        seconds=60, opt_steps=5_000, env_steps=40_000, max_opts=10_000, max_env_steps=50_000, max_time=100
    )
    p.opt_steps_per_sec, p.samples_per_sec = 100.0, 400.0
    assert first_to_end(p) == Budget("env steps", 40_000, 50_000, 25.0)


def test_while_a_rate_is_unknown_the_one_that_is_used_most() -> None:
    p = Progress(seconds=10, env_steps=500, max_env_steps=1_000, max_time=100, samples_per_sec=50.0)
    assert first_to_end(p) == Budget("env steps", 500, 1_000, None)
    p.seconds = 80
    assert first_to_end(p) == Budget("s", 80, 100, 20)


def test_the_rate_of_the_warm_up_promises_nothing() -> None:
    p = Progress(env_steps=500, max_env_steps=1_000, samples_per_sec=50.0)
    budget = first_to_end(p)
    assert budget is not None and budget.eta_s is None


@pytest.mark.parametrize("per_sec", [0.0, None])
def test_nothing_moves(per_sec: float | None) -> None:
    p = Progress(opt_steps=1, max_opts=10, opt_steps_per_sec=per_sec)
    assert first_to_end(p) == Budget("opt steps", 1, 10, None)


@pytest.mark.parametrize(
    ("used", "limit", "fraction"), [(0, 10, 0.0), (5, 10, 0.5), (11, 10, 1.0), (1, 0, 1.0)]
)
def test_fraction(used: float, limit: float, fraction: float) -> None:
    assert Budget("s", used, limit, None).fraction == fraction


def test_a_budget_that_is_used_up_has_no_time_left() -> None:
    p = Progress(opt_steps=10, max_opts=10)
    assert first_to_end(p) == Budget("opt steps", 10, 10, 0.0)
