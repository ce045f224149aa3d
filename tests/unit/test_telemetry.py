"""What a person is told of rates and shares."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from border_cli.core.errors import UnfitStateError
from border_cli.core.items import Chunk, empty_items
from border_cli.core.progress import Progress
from border_cli.core.protocols import ActorStat, Evaluation
from border_cli.trainers import telemetry
from border_cli.trainers.telemetry import Telemetry
from tests.fakes import COUNTING_COLUMNS


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    seconds = [100.0]
    monkeypatch.setattr(telemetry, "monotonic", lambda: seconds[0])
    return seconds


def make(seconds_before: float = 0.0, n_actors: int = 1) -> Telemetry:
    limiter: Any = SimpleNamespace(opt_steps=0, env_steps=0, ratio=None)
    return Telemetry(limiter, Progress(n_actors=n_actors), seconds_before)


def test_the_share_that_the_learner_waited_is_of_this_launch(now: list[float]) -> None:
    told = make(seconds_before=3600.0)
    told.waited(5.0)
    now[0] += 10.0
    assert told.seconds == 3610.0
    assert told.blocked_share == 0.5


def test_actors_that_were_given_up_wait_for_nobody(now: list[float]) -> None:
    """Of eight, two are left; for 3 of 10 s everybody waits for an evaluation, and these two 1 s for credit beside it."""
    told = make(n_actors=8)
    gone = [ActorStat(i, state="killed", seconds=50.0) for i in range(6)]
    two = [ActorStat(i, state="acting", seconds=50.0) for i in (6, 7)]
    told.interval_values(0, 1, gone + two, 2, {})
    now[0] += 10.0
    told.excluded(3.0)
    two = [ActorStat(i, state="acting", seconds=60.0, blocked_seconds=4.0) for i in (6, 7)]
    values = told.interval_values(0, 1, gone + two, 2, {})
    assert values["async/actors_blocked"] == pytest.approx(1.0 / 7.0)


def test_policy_lag_is_over_env_steps() -> None:
    """64 env steps of a model 0 opt steps old, one of a model 20 old, and a part of a chunk that stands for none."""
    told = make()
    told.progress.asynchronous = True
    told._limiter.opt_steps = 20
    for version, env_steps in ((20, 64), (0, 1), (10, 0)):
        told.chunk(Chunk(0, 0, 0, env_steps, version, empty_items(COUNTING_COLUMNS, 0)))
    other = make()
    state = told.state(reproducible=True)
    other.load_state(json.loads(json.dumps(state)))
    assert other.state(reproducible=True) == state
    with pytest.raises(UnfitStateError, match="of no env step"):
        make().load_state(state | {"lags": [[3, 0]]})
    values = told.interval_values(0, 1, [], 1, {})
    assert values["async/policy_lag_mean"] == pytest.approx(20 / 65)
    assert values["async/policy_lag_p95"] == 0.0


def test_the_best_score_is_the_one_of_the_best_model() -> None:
    told = make()
    told.know_best(Evaluation(120, (3.0, 5.0), (1, 1)))
    assert told.progress.best == (120, 4.0)
    told.know_best(None)
    assert told.progress.best is None
