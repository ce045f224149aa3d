"""The training loop: ingesting experience, and opt steps that raise."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from border_cli.config.schema import TrainerConfig
from border_cli.core.types import Chunk, Items, empty_items
from border_cli.training.best_model import EvalSeeds
from border_cli.training.loop import AsyncTrainer, SyncTrainer
from border_cli.training.ratio_limiter import RatioLimiter
from tests.fakes import COUNTING_COLUMNS


class Components:
    """The components of a loop with two actors and an empty replay. calls: calls of replay and actors, in order."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.arrived: list[Chunk] = []
        self.there = [True, True]
        self.batch_size = 0
        self.limiter = RatioLimiter(1.0, 0, 8, None, 2, 1)
        self.checkpoints = self.view = self.should_stop = self.films = None
        self.eval_seeds = EvalSeeds(0, 20)
        self.evaluator = SimpleNamespace(concurrent=False)
        self.recorder = SimpleNamespace(write=None)
        self.telemetry = SimpleNamespace(chunk=lambda _: None, took=lambda *_: None)
        self.source = SimpleNamespace(
            collect=lambda: self.arrived,
            present=lambda: self.there,
            announce=lambda _: None,
            grant=lambda credits: self.calls.append(("grant", *credits)),
        )
        self.buffer = self

    def __len__(self) -> int:
        return 0

    def push(self, items: Items, actor: int) -> None:
        self.calls.append(("push", actor))

    def break_streams(self, actor: int) -> None:
        self.calls.append(("break", actor))

    def loop(self) -> SyncTrainer:
        parts: Any = self
        return SyncTrainer(TrainerConfig(record_interval=None), parts)


def chunk(actor: int, incarnation: int = 0, rows: int = 1, env_steps: int = 1) -> Chunk:
    return Chunk(actor, incarnation, 0, env_steps, 0, empty_items(COUNTING_COLUMNS, rows))


def test_each_incarnation_starts_new_streams() -> None:
    parts = Components()
    parts.arrived = [chunk(0), chunk(1), chunk(1, 1, rows=0), chunk(1, 1), chunk(0), chunk(1, 3)]
    parts.loop().insert()
    assert parts.calls == [
        *(("push", 0), ("push", 1), ("break", 1), ("push", 1)),
        *(("push", 0), ("break", 1), ("push", 1)),
    ]


def test_actors_have_credit_before_anything_else_is_made() -> None:
    """`run` first makes the evaluator's environments or starts its process."""
    parts: Any = Components()
    parts.agent = SimpleNamespace(model_info=lambda: "model")
    parts.source.start = lambda model: parts.calls.append(("start", model))
    AsyncTrainer(TrainerConfig(), parts).start()
    assert parts.calls == [("start", "model"), ("grant", 4, 4)]


def test_a_lost_actor_loses_credit_and_streams_after_its_last_rows_arrived() -> None:
    """This happens whether or not it is restarted. Otherwise the streams of an actor that is given up would stay open."""
    parts = Components()
    loop = parts.loop()
    loop.ingest()
    assert parts.calls == [("grant", 4, 4)]
    parts.there, parts.arrived = [False, True], [chunk(0)]
    loop.ingest()
    assert parts.calls[1:] == [("push", 0), ("break", 0), ("grant", 1, 4)]
    parts.arrived = []
    loop.ingest()
    parts.there, parts.arrived = [True, True], [chunk(1)]
    loop.ingest()
    assert [call for call in parts.calls[4:] if call[0] != "grant"] == [("push", 1)]
    assert parts.calls[-1] == ("grant", 5, 4)


def test_b1_rows_lost_before_the_first_opt_step_are_replaced() -> None:
    """Otherwise learner and actors would wait for each other, because all 9 env steps were taken and no row is left."""
    parts = Components()
    parts.batch_size = 5
    loop, taken = parts.loop(), [0, 0]
    for actor in (0, 1, 0):
        loop.ingest()
        steps = parts.limiter.credits[actor] - taken[actor]
        taken[actor] += steps
        parts.arrived = [chunk(actor, rows=0, env_steps=steps)]
    loop.ingest()
    assert parts.limiter.env_steps == 9
    parts.arrived = []
    loop.ingest()
    assert sum(parts.limiter.credits) == 9 + 5


def test_collected_experience_counts_even_if_it_cannot_be_inserted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The actors count it too, and a saved state must have the same counts."""

    def fail(*_: object) -> None:
        raise MemoryError

    parts = Components()
    monkeypatch.setattr(parts, "push", fail)
    parts.arrived = [chunk(0), chunk(1), chunk(1)]
    with pytest.raises(MemoryError):
        parts.loop().insert()
    assert parts.limiter.env_steps == 3


@pytest.mark.parametrize(("counts_first", "opt_steps"), [(False, 1), (True, 2)])
def test_an_opt_step_that_raises_counts_if_the_agent_counted_it(counts_first: bool, opt_steps: int) -> None:
    class Agent:
        opt_steps = skipped_in_a_row = 0

        def opt(self, buffer: Any, record: bool = False) -> None:
            self.opt_steps += counts_first or self.opt_steps == 0
            if self.opt_steps == 2 or (self.opt_steps == 1 and parts.limiter.opt_steps == 1):
                raise RuntimeError("in the second opt step")

    parts: Any = Components()
    parts.agent = Agent()
    loop = parts.loop()
    loop.opt()
    with pytest.raises(RuntimeError):
        loop.opt()
    assert parts.limiter.opt_steps == parts.agent.opt_steps == opt_steps
