"""The ring: chunks are read as they were written, at any position in memory."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from border_cli.core.types import Chunk, Column
from border_cli.runtime.transport import Ring

COLUMNS = (Column("obs", (2,), "float32"), Column("n_steps", (), "int32"))


def push(ring: Ring, first: int, n: int, sequence: int = 0, env_steps: int = 0) -> int:
    """Push a chunk of up to n rows, numbered from `first`. Returns the number of rows that had room, -1 if none had."""
    items = ring.reserve(n)
    if items is None:
        return -1
    items["n_steps"][:] = number = np.arange(first, first + len(items["n_steps"]))
    items["obs"][:] = np.stack([number, -number], axis=1)
    ring.push(Chunk(3, 1, sequence, env_steps, 7, items))
    return len(number)


def test_a_chunk_is_read_once_and_unchanged() -> None:
    ring = Ring(COLUMNS, 8)
    assert push(ring, 10, 3, sequence=9, env_steps=4) == 3
    (chunk,) = ring.pop_all()
    assert (chunk.actor, chunk.incarnation, chunk.sequence) == (3, 1, 9)
    assert (chunk.env_steps, chunk.version, chunk.rows) == (4, 7, 3)
    dtypes = {name: column.dtype.name for name, column in chunk.items.items()}
    assert dtypes == {"obs": "float32", "n_steps": "int32"}
    assert chunk.items["obs"].tolist() == [[10, -10], [11, -11], [12, -12]]
    assert chunk.items["n_steps"].tolist() == [10, 11, 12]
    assert ring.pop_all() == []


def test_a_full_ring_accepts_no_rows_and_popped_rows_stay_until_the_next_pop() -> None:
    ring = Ring(COLUMNS, 8)
    assert [push(ring, 0, 5), push(ring, 4, 4), push(ring, 8, 1)] == [4, 4, -1]
    chunks = ring.pop_all()
    assert push(ring, 8, 1) == -1
    assert [chunk.items["n_steps"].tolist() for chunk in chunks] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert ring.pop_all() == []
    assert push(ring, 8, 9) == 4


def test_a_chunk_that_does_not_fit_at_the_end_starts_at_the_beginning() -> None:
    ring = Ring(COLUMNS, 8)
    assert [push(ring, 0, 3), push(ring, 3, 3)] == [3, 3]
    first, _ = ring.pop_all()
    assert push(ring, 6, 3) == -1  # the learner still holds the rows at the beginning
    assert (ring.pop_all(), push(ring, 6, 3)) == ([], 3)
    (chunk,) = ring.pop_all()
    assert chunk.items["n_steps"].tolist() == [6, 7, 8] == first.items["n_steps"].tolist()  # the same memory


def test_the_number_of_headers_limits_the_ring_too() -> None:
    ring = Ring(COLUMNS, 2)
    assert [push(ring, 0, 0, n, env_steps=2 + n) for n in range(3)] == [0, 0, -1]
    assert [(c.sequence, c.env_steps, c.rows) for c in ring.pop_all()] == [(0, 2, 0), (1, 3, 0)]
    assert (ring.pop_all(), push(ring, 0, 1, 2)) == ([], 1)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.one_of(st.integers(0, 7), st.none()), max_size=60))
def test_any_interleaving_keeps_every_row_in_order(actions: list[int | None]) -> None:
    """actions: a number pushes up to that many rows, None pops everything."""
    ring = Ring(COLUMNS, 7)
    pushed, popped, sequences, sequence = 0, list[int](), list[int](), 0
    for action in [*actions, None]:
        if action is None:
            for chunk in ring.pop_all():
                sequences.append(chunk.sequence)
                popped += chunk.items["n_steps"].tolist()
        elif (n := push(ring, pushed, action, sequence)) >= 0:
            pushed += n
            sequence += 1
    assert sequences == list(range(sequence))
    assert popped == list(range(pushed))
