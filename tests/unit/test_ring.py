"""The ring: chunks come out as they went in, whatever the place in memory they had."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from border_cli.core.items import Column, Items
from border_cli.transport.ring import ChunkHeader, Ring

COLUMNS = (Column("obs", (2,), "float32"), Column("span", (), "int32"))


def rows(first: int, n: int) -> Items:
    """Rows numbered first, first + 1, …"""
    number = np.arange(first, first + n)
    return {
        "obs": np.stack([number, -number], axis=1).astype(np.float32),
        "span": number.astype(np.int32),
    }


def header(n: int, sequence: int = 0, env_steps: int = 0) -> ChunkHeader:
    return ChunkHeader(3, 1, sequence, env_steps, n, 7)


def test_chunk_comes_out_as_it_went_in() -> None:
    ring = Ring(COLUMNS, 8)
    assert ring.try_push(rows(10, 3), ChunkHeader(5, 2, 9, 4, 3, 11))
    (chunk,) = ring.pop_all()
    assert (chunk.actor, chunk.incarnation, chunk.sequence) == (5, 2, 9)
    assert (chunk.env_steps, chunk.version, chunk.rows) == (4, 11, 3)
    np.testing.assert_array_equal(chunk.items["obs"], [[10, -10], [11, -11], [12, -12]])
    np.testing.assert_array_equal(chunk.items["span"], [10, 11, 12])
    assert ring.pop_all() == []


def test_rows_wrap_around_the_end() -> None:
    ring = Ring(COLUMNS, 8)
    ring.try_push(rows(0, 6), header(6))
    ring.pop_all()
    assert ring.try_push(rows(6, 5), header(5))  # rows 6, 7 at the end, 8, 9, 10 at the start
    (chunk,) = ring.pop_all()
    np.testing.assert_array_equal(chunk.items["span"], [6, 7, 8, 9, 10])
    np.testing.assert_array_equal(chunk.items["obs"][:, 1], [-6, -7, -8, -9, -10])


def test_a_full_ring_takes_nothing_and_keeps_everything() -> None:
    ring = Ring(COLUMNS, 8)
    assert ring.try_push(rows(0, 5), header(5))
    assert not ring.try_push(rows(5, 4), header(4))
    assert ring.try_push(rows(5, 3), header(3))
    assert not ring.try_push(rows(8, 1), header(1))
    spans = [chunk.items["span"] for chunk in ring.pop_all()]
    np.testing.assert_array_equal(np.concatenate(spans), range(8))
    assert ring.try_push(rows(8, 8), header(8))


def test_header_slots_bound_the_ring_too() -> None:
    ring = Ring(COLUMNS, 8, slots=2)
    assert ring.try_push(rows(0, 0), header(0, 0, env_steps=2))
    assert ring.try_push(rows(0, 0), header(0, 1, env_steps=3))
    assert not ring.try_push(rows(0, 0), header(0, 2))
    assert [(c.sequence, c.env_steps, c.rows) for c in ring.pop_all()] == [(0, 2, 0), (1, 3, 0)]
    assert ring.try_push(rows(0, 1), header(1, 2))


def test_popped_rows_are_copies() -> None:
    ring = Ring(COLUMNS, 4)
    ring.try_push(rows(0, 4), header(4))
    (chunk,) = ring.pop_all()
    ring.try_push(rows(50, 4), header(4))
    np.testing.assert_array_equal(chunk.items["span"], [0, 1, 2, 3])


def test_rows_that_can_never_fit_are_an_error() -> None:
    with pytest.raises(ValueError, match="9 rows do not fit into a ring of 8"):
        Ring(COLUMNS, 8).try_push(rows(0, 9), header(9))


def test_another_dtype_is_an_error() -> None:
    items = rows(0, 2)
    items["span"] = items["span"].astype(np.int64)
    with pytest.raises(TypeError, match="int64"):
        Ring(COLUMNS, 8).try_push(items, header(2))


def test_another_number_of_rows_is_an_error() -> None:
    with pytest.raises(ValueError, match="2 rows, its header says 3"):
        Ring(COLUMNS, 8).try_push(rows(0, 2), header(3))


@settings(max_examples=100, deadline=None)
@given(st.lists(st.one_of(st.integers(0, 7), st.none()), max_size=60))
def test_any_interleaving_keeps_every_row_in_order(actions: list[int | None]) -> None:
    """A number pushes so many rows if there is room, None pops everything."""
    ring = Ring(COLUMNS, 7, slots=3)
    pushed, popped, sequence = 0, [], 0
    for action in [*actions, None]:
        if action is None:
            popped += ring.pop_all()
        elif ring.try_push(rows(pushed, action), header(action, sequence, env_steps=action)):
            pushed += action
            sequence += 1
    assert [chunk.sequence for chunk in popped] == list(range(sequence))
    assert sum(chunk.env_steps for chunk in popped) == pushed
    spans = [chunk.items["span"] for chunk in popped]
    np.testing.assert_array_equal(np.concatenate([np.empty(0), *spans]), range(pushed))
