"""How the rows of a replay are divided into blocks, so that a checkpoint writes each row once or twice, not every time.

Rows are counted from the first that was ever pushed, and block k holds rows k·n to (k+1)·n - 1: the same rows whenever it
is written.
"""

from __future__ import annotations

from collections.abc import Iterator

_MIN_BYTES = 2**20
_MAX_BYTES = 64 * 2**20
_BLOCKS = 256
"""About so many blocks for a whole replay: what is not sealed and written every time is then little of it."""


def rows_per_block(capacity: int, row_bytes: int) -> int:
    """Rows of a block. It follows from the replay's shape alone, so that every checkpoint of a run has the same blocks."""
    nbytes = min(max(capacity * row_bytes // _BLOCKS, _MIN_BYTES), _MAX_BYTES)
    return max(1, nbytes // row_bytes)


def block_ranges(first: int, last: int, n: int) -> Iterator[tuple[int, int]]:
    """First row, and the one after the last, of each block that holds any of the rows first to last - 1."""
    for start in range(first - first % n, last, n):
        yield start, start + n


def block_name(first: int, n: int) -> str:
    """Name of the block that begins with this row."""
    return f"rows-{first // n:09d}"
