"""What the loop does with what it takes in, beyond inserting it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from border_cli.config.schema import TrainerConfig
from border_cli.core.items import Chunk, Items, empty_items
from border_cli.replay.limiter import RatioLimiter
from border_cli.trainers.loop import TrainingLoop
from tests.fakes import COUNTING_COLUMNS


class Buffer:
    """A replay without a row, of which it is noted what is done to it."""

    def __init__(self, calls: list[tuple[Any, ...]]) -> None:
        self._calls = calls

    def __len__(self) -> int:
        return 0

    def push(self, items: Items, actor: int) -> None:
        self._calls.append(("push", actor))

    def break_streams(self, actor: int) -> None:
        self._calls.append(("break", actor))


class Parts:
    """Everything the loop joins that has a say here; what is called is noted in order."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.arrived: list[Chunk] = []
        self.there = [True, True]
        self.batch_size = 0
        self.limiter = RatioLimiter(1.0, 0, 8, None, 2, 1)
        self.episodes = self.keeper = self.view = self.should_stop = None
        self.evaluator = SimpleNamespace(concurrent=False)
        self.recorder = SimpleNamespace(write=None)
        self.telemetry = SimpleNamespace(chunk=lambda _: None, collect_took=lambda _: None)
        self.source = SimpleNamespace(
            collect=lambda: self.arrived,
            present=lambda: self.there,
            announce=lambda _: None,
            grant=lambda credits: self.calls.append(("grant", *credits)),
        )
        self.buffer = Buffer(self.calls)


def chunk(actor: int, incarnation: int, rows: int = 1) -> Chunk:
    return Chunk(actor, incarnation, 0, 1, 0, empty_items(COUNTING_COLUMNS, rows))


def test_the_streams_of_an_actor_begin_anew_with_each_incarnation() -> None:
    parts = Parts()
    loop = TrainingLoop(TrainerConfig(), parts)  # type: ignore[arg-type]
    parts.arrived = [chunk(0, 0), chunk(1, 0), chunk(1, 1, rows=0), chunk(1, 1), chunk(0, 0), chunk(1, 3)]
    loop._insert()
    assert parts.calls == [
        ("push", 0),
        ("push", 1),
        ("break", 1),
        ("push", 1),
        ("push", 0),
        ("break", 1),
        ("push", 1),
    ]


def test_the_credit_of_one_that_left_is_taken_back_at_once_and_given_to_the_others() -> None:
    parts = Parts()
    loop = TrainingLoop(TrainerConfig(), parts)  # type: ignore[arg-type]
    loop._take_in()
    assert parts.calls == [("grant", 4, 4)]
    parts.there = [False, True]
    loop._take_in()
    assert parts.calls[1:] == [("break", 0), ("grant", 0, 4)]
    parts.there, parts.arrived = [True, True], [chunk(1, 0)]
    loop._take_in()
    assert parts.calls[3:] == [("push", 1), ("grant", 4, 4)]


def test_the_streams_of_one_that_left_are_broken_once_its_last_rows_are_in() -> None:
    """Whether or not it comes back: one that is given up would leave them open for ever."""
    parts = Parts()
    loop = TrainingLoop(TrainerConfig(), parts)  # type: ignore[arg-type]
    parts.there, parts.arrived = [False, True], [chunk(0, 0)]
    loop._take_in()
    parts.arrived = []
    loop._take_in()
    assert [call for call in parts.calls if call[0] != "grant"] == [("push", 0), ("break", 0)]


def test_b1_rows_that_were_lost_before_the_first_opt_step_are_replaced() -> None:
    """Or learner and actors would wait for each other for ever: 8 and 1 env steps were taken, and no row is left."""
    parts = Parts()
    parts.batch_size = 5
    loop = TrainingLoop(TrainerConfig(), parts)  # type: ignore[arg-type]
    for actor in (0, 1, 0):
        loop._take_in()
        parts.arrived = [
            Chunk(
                actor,
                0,
                0,
                parts.limiter.credits[actor] - parts.limiter._used[actor],
                0,
                empty_items(COUNTING_COLUMNS, 0),
            )
        ]
    loop._take_in()
    assert parts.limiter.env_steps == 9
    parts.arrived = []
    loop._take_in()
    assert sum(parts.limiter.credits) == 9 + 5


def test_what_was_collected_counts_though_it_cannot_be_kept() -> None:
    """The source counts it as well: a state with other counts than its actors' could never be gone on from."""
    parts = Parts()
    loop = TrainingLoop(TrainerConfig(), parts)  # type: ignore[arg-type]
    parts.buffer.push = fail  # type: ignore[method-assign]
    parts.arrived = [chunk(0, 0), chunk(1, 0), chunk(1, 0)]
    with pytest.raises(MemoryError):
        loop._insert()
    assert parts.limiter.env_steps == 3


def fail(*_: object) -> None:
    raise MemoryError
