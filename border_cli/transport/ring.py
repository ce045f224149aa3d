"""The way of items from one actor to the learner: a bounded ring of chunks in shared memory.

One process pushes, one pops, and neither ever locks. A chunk is a header in one of a fixed number of slots
and rows in one array per column; the word `head` counts the chunks that are complete and is written last.
So a producer that dies in the middle of a push leaves nothing behind that could be read. Each incarnation
of an actor gets a new ring.

    words   | head | tail, rows_out |     head: chunks pushed · tail: chunks popped · rows_out: rows popped
    headers | slot 0 | slot 1 | …         written at head % slots
    columns | obs … | action … | …        each (capacity, *shape), written at rows_in % capacity
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from border_cli.core.items import Chunk, Column, Items
from border_cli.core.spaces import Array
from border_cli.runtime.memory import CACHE_LINE, WORD, Block, Layout, fence

HEADER_SLOTS = 1024


class ChunkHeader(NamedTuple):
    """What goes ahead of a chunk's rows (see `core.items.Chunk`)."""

    actor: int
    incarnation: int
    sequence: int
    env_steps: int
    rows: int
    version: int


_SLOT_WORDS = CACHE_LINE // WORD


class Ring:
    """Room for `capacity` rows in at most `slots` chunks.

    Made by the learner and passed to the actor's process as an argument. Raises ResourceError if the memory
    cannot be had.
    """

    def __init__(
        self,
        columns: tuple[Column, ...],
        capacity: int,
        slots: int = HEADER_SLOTS,
        block: Block | None = None,
    ) -> None:
        self.columns = columns
        self.capacity = capacity
        self._slots = slots
        size, (head, tail, headers, *offsets) = _places(columns, capacity, slots)
        self._block = block or Block(size, "an actor's ring")
        self._head_word = self._block.words(head, 1)
        self._tail_words = self._block.words(tail, 2)
        self._headers = self._block.words(headers, slots * _SLOT_WORDS)
        self._storage: dict[str, Array] = {
            column.name: self._block.array(offset, (capacity, *column.shape), column.dtype)
            for column, offset in zip(columns, offsets, strict=True)
        }
        self._chunks_in = self._rows_in = 0  # the producer's own counts
        self._chunks_out = self._rows_out = 0  # the consumer's own counts

    def __reduce__(self) -> tuple[Callable[..., Ring], tuple[Any, ...]]:
        return Ring, (self.columns, self.capacity, self._slots, self._block)

    def try_push(self, items: Items, header: ChunkHeader) -> bool:
        """Append one chunk, or change nothing and return False while there is no room.

        items: `header.rows` rows of exactly the ring's columns. Raises ValueError if they could never fit,
        TypeError if a dtype differs from its column's.
        """
        if header.rows > self.capacity:
            raise ValueError(f"{header.rows} rows do not fit into a ring of {self.capacity}")
        if not self._has_room(header.rows):
            return False
        self._write_rows(items, header.rows)
        start = self._chunks_in % self._slots * _SLOT_WORDS
        for i, value in enumerate(header):
            self._headers[start + i] = value
        self._chunks_in += 1
        self._rows_in += header.rows
        fence()
        self._head_word[0] = self._chunks_in
        return True

    def pop_all(self) -> list[Chunk]:
        """Copies of every chunk that is complete, oldest first; their room is free again."""
        head = self._head_word[0]
        if head == self._chunks_out:
            return []
        fence()
        chunks = []
        while self._chunks_out < head:
            chunks.append(self._read_chunk())
            fence()
            self._tail_words[1] = self._rows_out
            self._tail_words[0] = self._chunks_out
        return chunks

    def close(self) -> None:
        """Give the descriptor back; the ring works on, but can be passed to no further process."""
        self._block.close()

    def _has_room(self, rows: int) -> bool:
        """Whether a chunk fits. Room that is freed meanwhile may be missed, never the other way round."""
        chunks_out, rows_out = self._tail_words
        fence()
        return self._chunks_in - chunks_out < self._slots and self._rows_in - rows_out + rows <= self.capacity

    def _write_rows(self, items: Items, rows: int) -> None:
        for name, column in self._storage.items():
            values = items[name]
            if len(values) != rows:
                raise ValueError(f"column {name!r} has {len(values)} rows, its header says {rows}")
            done = 0
            for part in _spans(self._rows_in, rows, self.capacity):
                n = part.stop - part.start
                np.copyto(column[part], values[done : done + n], casting="equiv")
                done += n

    def _read_chunk(self) -> Chunk:
        start = self._chunks_out % self._slots * _SLOT_WORDS
        header = ChunkHeader(*self._headers[start : start + len(ChunkHeader._fields)])
        parts = list(_spans(self._rows_out, header.rows, self.capacity))
        items = {name: _copy(column, parts) for name, column in self._storage.items()}
        self._chunks_out += 1
        self._rows_out += header.rows
        return Chunk(
            header.actor, header.incarnation, header.sequence, header.env_steps, header.version, items
        )


def ring_bytes(columns: tuple[Column, ...], capacity: int, slots: int = HEADER_SLOTS) -> int:
    """Bytes of a ring, all of which are allocated when it is made."""
    return _places(columns, capacity, slots)[0]


def _places(columns: tuple[Column, ...], capacity: int, slots: int) -> tuple[int, list[int]]:
    """Size of a ring, and where in it lie head, tail, headers and each column."""
    layout = Layout()
    sizes = [WORD, 2 * WORD, slots * CACHE_LINE, *(capacity * column.row_bytes for column in columns)]
    offsets = [layout.reserve(nbytes) for nbytes in sizes]
    return layout.size, offsets


def _spans(position: int, rows: int, capacity: int) -> Iterator[slice]:
    """Where `rows` rows lie from row `position` of an endless stream: one slice, or two around the end."""
    start = position % capacity
    first = min(rows, capacity - start)
    yield slice(start, start + first)
    if first < rows:
        yield slice(0, rows - first)


def _copy(column: Array, parts: list[slice]) -> Array:
    if len(parts) == 1:
        own: Array = column[parts[0]].copy()
        return own
    return np.concatenate([column[part] for part in parts])
