"""Actors under an `ActorManager` of the test's own, and the proof that nothing of them is left."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest

from border_cli.actors.manager import ActorManager
from border_cli.actors.place import ActorSpec
from border_cli.config.schema import ActorManagerConfig
from border_cli.core.items import Chunk
from border_cli.runtime import forkserver
from tests.fakes import COUNTING_COLUMNS, LIGHT_PRELOAD, model
from tests.faults.audited import nothing_left
from tests.faults.processes import wait_until


@pytest.fixture
def audit() -> Iterator[None]:
    """Nothing may be left; a forkserver that is quickly there is enough."""
    forkserver.start_early(LIGHT_PRELOAD)
    with nothing_left():
        yield


@contextlib.contextmanager
def running(spec: ActorSpec, n_actors: int = 2, start: bool = True, **config: Any) -> Iterator[ActorManager]:
    """Actors none of which may be lost, unless the test says otherwise."""
    config = {"stop_timeout_s": 10.0, "ring_rows": 256, "restarts": 0, "min_actors": n_actors, **config}
    manager = ActorManager(spec, COUNTING_COLUMNS, n_actors, ActorManagerConfig(**config))
    try:
        if start:
            manager.start(model())
        yield manager
    finally:
        manager.stop()


def act(manager: ActorManager, credit: int) -> None:
    """Let every actor use its first credit, and leave its rows in its ring."""
    manager.grant([credit] * len(manager.pids()))
    wait_until(
        lambda: all(s.seconds > 0 and s.state == "waiting for credit" for s in manager.stats()),
        "the credit to be used",
    )


def env_steps_by_actor(chunks: list[Chunk]) -> dict[int, int]:
    counts: dict[int, int] = {}
    for chunk in chunks:
        counts[chunk.actor] = counts.get(chunk.actor, 0) + chunk.env_steps
    return counts
