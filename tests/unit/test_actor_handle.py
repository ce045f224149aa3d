"""The learner's handle of one actor."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from border_cli.actors.process import ActorHandle
from border_cli.actors.spec import StatusBlock
from border_cli.core.types import Chunk, empty_items
from border_cli.runtime.supervised import Limits
from tests.fakes import COUNTING_COLUMNS


def handle(*sequences: int) -> ActorHandle:
    """Return the handle of an actor whose ring has chunks with these sequence numbers."""
    shared: Any = SimpleNamespace(status=StatusBlock(1))
    limits = Limits(1.0, 1.0, 1.0, 0, 1.0, 1.0)
    actor, ring = ActorHandle(0, shared, limits), SimpleNamespace()
    ring.pop_all = lambda: [Chunk(0, 0, n, 4, 0, empty_items(COUNTING_COLUMNS, 4)) for n in sequences]
    actor._arriving = ring
    return actor


def test_a2_chunks_arrive_in_order() -> None:
    actor = handle(0, 1, 2)
    assert [chunk.sequence for chunk in actor.collect()] == [0, 1, 2]
    assert actor.stat().env_steps == 12


@pytest.mark.parametrize(
    ("sequences", "message"),
    [((1, 2), "actor 0: chunk 1 came, not 0"), ((0, 0, 1), "actor 0: chunk 0 came, not 1")],
    ids=["lost", "doubled"],
)
def test_a2_a_lost_or_repeated_chunk_is_an_error(sequences: tuple[int, ...], message: str) -> None:
    with pytest.raises(RuntimeError, match=message):
        handle(*sequences).collect()
