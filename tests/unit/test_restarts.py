"""The restart budget of actors, and the heartbeat timeout."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest

from border_cli.config.schema import ActorManagerConfig
from border_cli.runtime.supervised import MAX_DELAY_S, HeartbeatMonitor, RestartBudget, restart_delay_s

S = 10**9


@dataclass
class Clock:
    now_ns: int = 5 * S

    def sleep(self, seconds: float) -> None:
        self.now_ns += int(seconds * S)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("border_cli.runtime.supervised.monotonic_ns", lambda: clock.now_ns)
    return clock


@pytest.mark.parametrize(
    ("restarts", "window_s", "pauses_s", "granted"),
    [
        # each restart leaves the window separately
        (2, 10.0, [0, 4, 0, 5.9, 0.1, 0], [1, 2, None, None, 2, None]),
        (1, math.inf, [0, 1e6], [1, None]),
        (0, 10.0, [0], [None]),
    ],
)
def test_a4_the_number_of_restarts_within_the_window_is_limited(
    clock: Clock, restarts: int, window_s: float, pauses_s: list[float], granted: list[int | None]
) -> None:
    budget = RestartBudget(restarts, window_s)
    spent = []
    for pause_s in pauses_s:
        clock.sleep(pause_s)
        spent.append(budget.spend())
    assert spent == granted
    budget.spent.clear()
    assert budget.spend() == (1 if restarts > 0 else None)


def test_a4_five_restarts_within_ten_minutes_after_1_to_30_s_are_the_default() -> None:
    config = ActorManagerConfig()
    assert (config.restarts, config.restart_window_s, config.restart_delay_s) == (5, 600.0, 1.0)
    assert MAX_DELAY_S == 30.0


def test_a4_delays_double_up_to_30_s_and_reset_after_a_quiet_window(clock: Clock) -> None:
    budget = RestartBudget(100, 600.0)
    delays = [restart_delay_s(number, 1.0) for _ in range(7) if (number := budget.spend())]
    assert delays == [1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]
    clock.sleep(600)
    number = budget.spend()
    assert number is not None
    assert restart_delay_s(number, 1.0) == 1.0


def test_a4_the_delay_is_defined_for_any_number_of_restarts() -> None:
    budget = RestartBudget(2000, math.inf)
    numbers = [budget.spend() for _ in range(2000)]
    assert numbers == list(range(1, 2001))
    assert restart_delay_s(2000, 0.01) == MAX_DELAY_S


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
    clock: Clock, beats: list[int], checks_s: list[float], timed_out: int | None
) -> None:
    """timed_out: index of the check that reports the timeout."""
    monitor = HeartbeatMonitor()
    for check, (count, pause_s) in enumerate(zip(beats, checks_s, strict=True)):
        clock.sleep(pause_s)
        assert monitor.timed_out(count, 2.0) == (check == timed_out)
