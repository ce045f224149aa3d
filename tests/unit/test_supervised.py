"""What supervises a process: the restart budget, the heartbeat timeout, and the order of an actor's chunks."""

from __future__ import annotations

import math
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest

from border_cli.actors.manager import ActorHandle
from border_cli.actors.spec import StatusBlock
from border_cli.config.schema import ActorManagerConfig
from border_cli.core.types import Chunk, empty_items
from border_cli.runtime.supervision import HeartbeatMonitor, Limits, RestartBudget, restart_delay_s
from tests.fakes import COUNTING_COLUMNS

S = 10**9


@dataclass
class Clock:
    now_ns: int = 5 * S

    def sleep(self, seconds: float) -> None:
        self.now_ns += int(seconds * S)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("border_cli.runtime.supervision.monotonic_ns", lambda: clock.now_ns)
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


def test_a4_delays_double_from_1_s_up_to_30_s_and_reset_after_a_quiet_window(clock: Clock) -> None:
    config = ActorManagerConfig()
    assert (config.restarts, config.restart_window_s, config.restart_delay_s) == (5, 600.0, 1.0)
    budget = RestartBudget(2000, 600.0)
    delays = [restart_delay_s(number, 1.0) for _ in range(2000) if (number := budget.spend())]
    assert delays == [1.0, 2.0, 4.0, 8.0, 16.0] + [30.0] * 1995
    clock.sleep(600)
    assert budget.spend() == 1


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


@pytest.mark.parametrize(
    ("sequences", "message"),
    [((0, 1, 2), ""), ((1, 2), "actor 0: chunk 1 came, not 0"), ((0, 0, 1), "actor 0: chunk 0 came, not 1")],
    ids=["in order", "lost", "doubled"],
)
def test_a2_a_lost_or_repeated_chunk_is_an_error(sequences: tuple[int, ...], message: str) -> None:
    link: Any = SimpleNamespace(status=StatusBlock(1))
    actor = ActorHandle(0, link, Limits(1.0, 1.0, 1.0, 0, 1.0, 1.0))
    actor._pop_all = lambda: [Chunk(0, 0, n, 4, 0, empty_items(COUNTING_COLUMNS, 4)) for n in sequences]
    if message:
        with pytest.raises(RuntimeError, match=message):
            actor.collect()
    else:
        assert [chunk.sequence for chunk in actor.collect()] == [0, 1, 2]
        assert actor.stat().env_steps == 12
