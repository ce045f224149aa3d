"""When an actor may be started again, and when its silence means that it must be."""

from __future__ import annotations

import multiprocessing
from dataclasses import dataclass
from types import SimpleNamespace

from border_cli.actors.news import News
from border_cli.config.schema import ActorManagerConfig
from border_cli.runtime.pulse import Pulse
from border_cli.runtime.restarts import MAX_DELAY_S, RestartBudget

S = 10**9


@dataclass
class Clock:
    now_ns: int = 5 * S

    def monotonic_ns(self) -> int:
        return self.now_ns

    def sleep(self, seconds: float) -> None:
        self.now_ns += int(seconds * S)


def test_a4_so_many_restarts_within_the_window_and_one_for_each_that_leaves_it() -> None:
    clock = Clock()
    budget = RestartBudget(2, 10.0, clock)
    assert budget.spend()
    clock.sleep(4)
    assert budget.spend()
    assert not budget.spend()
    clock.sleep(5.9)
    assert not budget.spend()
    clock.sleep(0.1)  # the first is ten seconds old
    assert budget.spend()
    assert (budget.spent, budget.spend()) == (2, False)


def test_a4_no_restart_at_all() -> None:
    assert not RestartBudget(0, 10.0).spend()


def test_a4_five_restarts_within_ten_minutes_after_1_to_30_s_are_the_default() -> None:
    config = ActorManagerConfig()
    assert (config.restarts, config.restart_window_s, config.restart_delay_s) == (5, 600.0, 1.0)
    assert MAX_DELAY_S == 30.0


def test_a4_waits_double_up_to_half_a_minute_and_begin_anew_after_a_quiet_window() -> None:
    clock = Clock()
    budget = RestartBudget(100, 600.0, clock)
    delays = []
    for _ in range(7):
        assert budget.spend()
        delays.append(budget.delay_s(1.0))
    assert delays == [1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]
    clock.sleep(600)
    assert budget.spend()
    assert budget.delay_s(1.0) == 1.0


def test_a_count_that_stands_still_is_silent_after_the_timeout() -> None:
    clock = Clock()
    pulse = Pulse(clock)
    assert not pulse.silent(1, 2.0)
    for _ in range(9):
        clock.sleep(0.2)
        assert not pulse.silent(1, 2.0)
    clock.sleep(0.2)
    assert pulse.silent(1, 2.0)


def test_every_sign_of_life_begins_the_wait_anew() -> None:
    clock = Clock()
    pulse = Pulse(clock)
    for count in range(5):
        for _ in range(7):
            clock.sleep(0.25)
            assert not pulse.silent(count, 2.0)


def test_who_did_not_look_has_not_heard_silence() -> None:
    """The learner was stopped, and the actors with it; or it wrote a long checkpoint."""
    clock = Clock()
    pulse = Pulse(clock)
    pulse.silent(1, 2.0)
    for _ in range(3):
        clock.sleep(1000)
        assert not pulse.silent(1, 2.0)
    clock.sleep(1000)
    assert pulse.silent(1, 2.0)


def test_descriptors_that_were_forgotten_can_be_given_out_again() -> None:
    """The system gives a new incarnation the numbers that the last one had."""
    ours, theirs = multiprocessing.Pipe()
    with ours, theirs:
        slot = SimpleNamespace(descriptors=[ours.fileno()], listen=lambda: True)
        news = News()
        for _ in range(2):
            news.watch(slot)  # type: ignore[arg-type]
            news.forget(slot)  # type: ignore[arg-type]
            news.forget(slot)  # type: ignore[arg-type] # nothing is watched any more: no error
        theirs.send("what nobody watches for")
        assert news.listen(0.0) == []
        news.close()
