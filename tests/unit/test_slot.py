"""What the learner sees of one actor."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from border_cli.actors.board import Board
from border_cli.actors.slot import ActorSlot
from border_cli.core.items import Chunk, empty_items
from tests.fakes import COUNTING_COLUMNS


def seat(*sequences: int) -> ActorSlot:
    """A slot in whose ring there are chunks with these numbers."""
    shared: Any = SimpleNamespace(board=Board(1))
    slot, ring = ActorSlot(0, shared), SimpleNamespace()
    ring.pop_all = lambda: [Chunk(0, 0, n, 4, 0, empty_items(COUNTING_COLUMNS, 4)) for n in sequences]
    slot._ring = ring
    return slot


def test_a2_chunks_come_in_their_order() -> None:
    slot = seat(0, 1, 2)
    assert [chunk.sequence for chunk in slot.drain()] == [0, 1, 2]
    assert slot.stat().env_steps == 12


@pytest.mark.parametrize(
    ("sequences", "message"),
    [((1, 2), "actor 0: chunk 1 came, not 0"), ((0, 0, 1), "actor 0: chunk 0 came, not 1")],
    ids=["lost", "doubled"],
)
def test_a2_a_chunk_that_is_lost_or_comes_twice_is_a_defect(sequences: tuple[int, ...], message: str) -> None:
    with pytest.raises(RuntimeError, match=message):
        seat(*sequences).drain()
