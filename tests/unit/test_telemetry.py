"""Telemetry: shares of waiting time, and policy lag."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from border_cli.core.errors import IncompatibleStateError
from border_cli.core.progress import Progress
from border_cli.core.types import ActorStat, Chunk, empty_items
from border_cli.training import telemetry as metrics
from border_cli.training.telemetry import Telemetry
from tests.fakes import COUNTING_COLUMNS


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


def test_only_actors_that_are_alive_count_as_waiting(now: list[float]) -> None:
    """Two of eight actors are left. In 10 s they wait 3 s for an evaluation and 1 s for credit."""
    telemetry = make(n_actors=8)
    gone = [ActorStat(i, state="killed", seconds=50.0) for i in range(6)]
    two = [ActorStat(i, state="acting", seconds=50.0) for i in (6, 7)]
    telemetry.interval_values(0, 1, gone + two, {})
    now[0] += 10.0
    telemetry.excluded_s += 3.0
    two = [ActorStat(i, state="acting", seconds=60.0, blocked_seconds=4.0) for i in (6, 7)]
    values = telemetry.interval_values(0, 1, gone + two, {})
    assert values["async/actors_blocked"] == pytest.approx(1.0 / 7.0)


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
