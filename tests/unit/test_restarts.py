"""The restart budget of actors, and the heartbeat timeout."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest

from border_cli.config.schema import ActorManagerConfig
from border_cli.runtime.supervised import MAX_DELAY_S, HeartbeatMonitor, RestartBudget

S = 10**9


@dataclass
class Clock:
    now_ns: int = 5 * S

    def monotonic_ns(self) -> int:
        return self.now_ns

    def sleep(self, seconds: float) -> None:
        self.now_ns += int(seconds * S)


@pytest.mark.parametrize(
    ("restarts", "window_s", "pauses_s", "granted"),
    [
        # each restart leaves the window separately
        (2, 10.0, [0, 4, 0, 5.9, 0.1, 0], [True, True, False, False, True, False]),
        (1, math.inf, [0, 1e6], [True, False]),
        (0, 10.0, [0], [False]),
    ],
)
def test_a4_the_number_of_restarts_within_the_window_is_limited(
    restarts: int, window_s: float, pauses_s: list[float], granted: list[bool]
) -> None:
    clock = Clock()
    budget = RestartBudget(restarts, window_s, clock)
    spent = []
    for pause_s in pauses_s:
        clock.sleep(pause_s)
        spent.append(budget.spend())
    assert spent == granted
    budget.reset()
    assert budget.spend() == (restarts > 0)


def test_a4_five_restarts_within_ten_minutes_after_1_to_30_s_are_the_default() -> None:
    config = ActorManagerConfig()
    assert (config.restarts, config.restart_window_s, config.restart_delay_s) == (5, 600.0, 1.0)
    assert MAX_DELAY_S == 30.0


def test_a4_delays_double_up_to_30_s_and_reset_after_a_quiet_window() -> None:
    clock = Clock()
    budget = RestartBudget(100, 600.0, clock)
    delays = [budget.delay_s(1.0) for _ in range(7) if budget.spend()]
    assert delays == [1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]
    clock.sleep(600)
    assert budget.spend()
    assert budget.delay_s(1.0) == 1.0


def test_a4_the_delay_is_defined_for_any_number_of_restarts() -> None:
    budget = RestartBudget(2000, math.inf, Clock())
    assert all(budget.spend() for _ in range(2000))
    assert budget.delay_s(0.01) == MAX_DELAY_S


@pytest.mark.parametrize(
    ("beats", "checks_s", "timed_out"),
    [
        ([1] * 11, [0.0] + [0.2] * 10, 10),
        ([0] * 7 + [1] * 7 + [2] * 7, [0.25] * 21, None),  # each heartbeat restarts the timeout
        ([1] * 5, [0.0] + [1000.0] * 4, 4),  # the learner itself was stopped, or wrote a long checkpoint
    ],
    ids=["silent", "alive", "not checked"],
)
def test_a_heartbeat_count_that_stays_equal_for_two_seconds_is_a_timeout(
    beats: list[int], checks_s: list[float], timed_out: int | None
) -> None:
    """timed_out: index of the check that reports the timeout."""
    clock = Clock()
    monitor = HeartbeatMonitor(clock)
    for check, (count, pause_s) in enumerate(zip(beats, checks_s, strict=True)):
        clock.sleep(pause_s)
        assert monitor.timed_out(count, 2.0) == (check == timed_out)
