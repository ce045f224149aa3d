"""The training loop: ingesting experience, opt steps that raise, shares of waiting time, policy lag."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

from border_cli.config.schema import TrainerConfig
from border_cli.core.errors import IncompatibleStateError
from border_cli.core.progress import Progress
from border_cli.core.types import ActorStat, Chunk, Items, empty_items
from border_cli.training import telemetry as metrics
from border_cli.training.choose_best import EvalSeeds
from border_cli.training.loop import AsyncTrainer, SyncTrainer
from border_cli.training.ratio_limiter import RatioLimiter
from border_cli.training.telemetry import Telemetry
from tests.fakes import COUNTING_COLUMNS


class Components:
    """The components of a loop with two actors and an empty replay. calls: calls of replay and actors, in order."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.arrived: list[Chunk] = []
        self.alive = [True, True]
        self.batch_size = 0
        self.limiter = RatioLimiter(1.0, 0, 8, None, 2, 1)
        self.checkpoints = self.view = self.should_stop = self.films = None
        self.eval_seeds = EvalSeeds(0, 20)
        self.evaluator = SimpleNamespace(concurrent=False)
        self.recorder = SimpleNamespace(write=None)
        self.telemetry = SimpleNamespace(chunk=lambda _: None, took=lambda *_: None)
        self.source = SimpleNamespace(
            collect=lambda: self.arrived,
            present=lambda: self.alive,
            grant=lambda credits, _: self.calls.append(("grant", *credits)),
        )
        self.buffer, self.n_rows = self, 0

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
    parts.alive, parts.arrived = [False, True], [chunk(0)]
    loop.ingest()
    assert parts.calls[1:] == [("push", 0), ("break", 0), ("grant", 1, 4)]
    parts.arrived = []
    loop.ingest()
    parts.alive, parts.arrived = [True, True], [chunk(1)]
    loop.ingest()
    assert [call for call in parts.calls[4:] if call[0] != "grant"] == [("push", 1)]
    assert parts.calls[-1] == ("grant", 5, 4)


def test_the_end_of_a_run_writes_a_best_model_that_could_not_be_written() -> None:
    parts: Any = Components()
    parts.source = parts.checkpoints = parts.view = parts.telemetry = MagicMock()
    with parts.loop():
        parts.checkpoints.save_unwritten_best.assert_not_called()
    parts.checkpoints.save_unwritten_best.assert_called_once_with()


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
    parts = Components()
    monkeypatch.setattr(parts, "push", MagicMock(side_effect=MemoryError))
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


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    seconds = [100.0]
    monkeypatch.setattr(metrics, "monotonic", lambda: seconds[0])
    return seconds


LIMITER: Any = SimpleNamespace(opt_steps=20, env_steps=0, ratio=None)


def make(seconds_before: float = 0.0, n_actors: int = 1) -> Telemetry:
    return Telemetry(LIMITER, Progress(n_actors=n_actors), seconds_before)


def test_the_waiting_shares_are_those_of_the_training_in_this_launch(now: list[float]) -> None:
    """In 10 s of training the learner waits 2 s and evaluates 5 s, and the actors wait 5 s for that and 1 s for credit."""
    telemetry = make(seconds_before=3600.0)
    telemetry.progress.asynchronous = True
    assert telemetry.blocked == (None, None)
    telemetry.blocked_s += 20.0  # for the actors' start
    now[0] += 30.0
    actors = [ActorStat(i, state="acting", seconds=10.0, blocked_seconds=9.0) for i in range(2)]
    telemetry.refresh("starting", 0, actors)
    telemetry.refresh("training", 0, actors)
    now[0] += 10.0
    telemetry.blocked_s += 2.0
    telemetry.excluded_s += 5.0
    later = [ActorStat(i, state="acting", seconds=20.0, blocked_seconds=15.0) for i in range(2)]
    telemetry.refresh("training", 0, later)
    now[0] += 50.0
    telemetry.excluded_s += 50.0  # the last evaluation
    telemetry.refresh(
        "done", 0, [ActorStat(i, state="done", seconds=20.0, blocked_seconds=15.0) for i in range(2)]
    )
    assert telemetry.blocked == (pytest.approx(1.0 / 5.0), pytest.approx(2.0 / 5.0))
    assert telemetry.seconds == 3690.0


def test_the_view_shows_waiting_after_two_seconds_of_training_without_the_warm_up(now: list[float]) -> None:
    """The learner waited all of the warm-up, and the actors for their first model; in training, neither side waits."""
    telemetry, shares = make(), []
    telemetry.progress.asynchronous = True
    for second, phase in enumerate(("starting", "warm-up", "training", "training", "training", "training")):
        now[0] += 1.0
        telemetry.blocked_s += float(phase != "training")
        actor = ActorStat(0, state="acting", seconds=float(second), blocked_seconds=min(float(second), 1.0))
        telemetry.refresh(phase, 0, [actor])
        shares.append((telemetry.progress.actors_blocked, telemetry.progress.learner_blocked))
    assert shares == [(None, None)] * 4 + [(0.0, 0.0)] * 2


def test_policy_lag_is_over_env_steps() -> None:
    """There are 64 env steps of a model of lag 0, one of lag 20, and a chunk without env steps."""
    telemetry = make()
    telemetry.progress.asynchronous = True
    for version, env_steps in ((20, 64), (0, 1), (10, 0)):
        telemetry.chunk(Chunk(0, 0, 0, env_steps, version, empty_items(COUNTING_COLUMNS, 0)))
    other = make()
    state = telemetry.state(reproducible=True)
    other.load_state(json.loads(json.dumps(state)))
    assert other.state(reproducible=True) == state
    with pytest.raises(IncompatibleStateError, match="the telemetry: lags is 'three'"):
        make().load_state(state | {"lags": [["three", 1]]})
    values = telemetry.interval_values(0, 1, [], {})
    assert values["async/policy_lag_mean"] == pytest.approx(20 / 65)
    assert values["async/policy_lag_p95"] == 0.0
