"""The pages of consecutive slots in which the rows of each stream lie, and the memory of the slots.

A stream is one environment of one actor. Its rows lie one after the other in pages of P slots, and each page knows the
page before and after it in its stream. So the row k places later in a stream is at slot + k, or in the next page; next
observations, n-step returns, stacks and sequences are this arithmetic, for whole arrays of slots at once.

All streams share the pages. A page that is full, or whose stream has ended, is closed. The page that was closed first is
used again first. A slow stream therefore keeps its newest rows.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from border_cli.core.errors import IncompatibleStateError
from border_cli.core.spaces import Array, ObsLeaf
from border_cli.core.types import Column, Items

_MAX_PAGE = 256
_PAGES_PER_STREAM = 16


def page_size(capacity: int, n_streams: int, reach: int) -> int:
    """Slots per page, a power of two: at least 16 pages per stream, where the capacity is that large.

    reach: how many rows the arithmetic goes ahead or back. A page is at least that long.
    """
    share = max(min(capacity // (_PAGES_PER_STREAM * max(n_streams, 1)), _MAX_PAGE), 1)
    return int(max(1 << (share.bit_length() - 1), 1 << (reach - 1).bit_length()))


def pages_for(capacity: int, n_streams: int, page: int) -> int:
    """Pages that hold `capacity` rows, although one page of each stream is not full, and another lacks a frame."""
    return -(-capacity // page) + 2 * max(n_streams, 1) + 1


_NO_PAGES = np.empty(0, np.int64)


class Streams:
    """The pages of all streams.

    Attributes:
        n_slots: slots of all pages. The page after the last one stands for "none": slots >= n_slots hold no row.
        fill: (pages + 1,) rows in each page.
        serial: (pages + 1,) number of the page's use, counted over all pages from 1; 0 if it was never used.
        used: pages that have been used; they come first.
    """

    def __init__(self, n_pages: int, page: int) -> None:
        self.page = page
        self.n_pages = self._none = n_pages
        self.n_slots = n_pages * page
        self._shift, self._mask = page.bit_length() - 1, page - 1
        self.fill = np.zeros(n_pages + 1, np.int64)
        self.serial = np.zeros(n_pages + 1, np.int64)
        self._next = np.full(n_pages + 1, n_pages)
        self._before = np.full(n_pages + 1, n_pages)
        # What to add to a slot beyond the end, or before the beginning, of each page to get to the page in its stream.
        self._to_next = np.zeros(n_pages + 1, np.int64)
        self._to_before = np.zeros(n_pages + 1, np.int64)
        self._measure(np.arange(n_pages + 1))
        self._queue = deque(range(n_pages))  # closed pages, the first to be used again in front
        self._newest: dict[int, Array] = {}  # actor → (n_envs,) page with the newest row of each environment
        self._stream_of: dict[int, tuple[int, int]] = {}  # the inverse: page → actor and environment
        self._uses = 0
        self.used = 0

    # -- arithmetic -----------------------------------------------------

    def ahead(self, slots: Array, k: Array | int) -> Array:
        """The slots of the rows 0 <= k <= P places later in the same streams. The shapes are broadcast."""
        there: Array = slots + k
        is_over = (there >> self._shift) != (slots >> self._shift)
        return self._moved(there, is_over, slots, self._to_next)

    def back(self, slots: Array, k: Array | int) -> Array:
        """The slots of the rows 0 <= k <= P places earlier in the same streams. The shapes are broadcast."""
        there: Array = slots - k
        is_under = (there >> self._shift) != (slots >> self._shift)
        return self._moved(there, is_under, slots, self._to_before)

    def _moved(self, there: Array, is_other: Array, slots: Array, distance: Array) -> Array:
        if is_other.any():
            there += is_other * distance.take(slots >> self._shift)
        return there

    def far_ahead(self, slots: Array, k: Array) -> Array:
        """As `ahead`, for any k >= 0 of the same shape, as far as there are rows."""
        while k.any():
            part = np.minimum(k, self.page)
            slots, k = self.ahead(slots, part), k - part
        return slots

    def rows_left(self, slots: Array, step: Array) -> Array:
        """How many rows follow these rows in their episodes, as far as they are there yet, the final observation included.

        step: of all slots, env steps of the episode before the row. A row k places later is of the same episode exactly
        if its step is larger by k. So the last one is found by steps of a page, and then by halves.
        """
        first = at = step[slots].astype(np.int64)
        k = self.page
        while k:
            later = self.ahead(slots, k)
            is_same = self.holds(later) & (step[later] == at + k)
            slots, at = np.where(is_same, later, slots), at + is_same * k
            if k < self.page or not is_same.any():
                k //= 2
        return at - first

    def holds(self, slots: Array) -> Array:
        """Whether there is a row in each of these slots."""
        filled: Array = (slots & self._mask) < self.fill[slots >> self._shift]
        return filled

    def slots_of(self, pages: Array) -> Array:
        """All slots of these pages."""
        return ((pages[:, None] << self._shift) + np.arange(self.page)).ravel()

    # -- placing --------------------------------------------------------

    def append(self, actor: int, env: int, n: int) -> slice | None:
        """The slots of the next n rows of one environment, if its open page has room for them."""
        newest = self._newest.get(actor)
        if newest is None or env >= len(newest) or newest[env] == self._none:
            return None
        page = int(newest[env])
        begin = int(self.fill[page])
        if begin + n > self.page:
            return None
        self.fill[page] = begin + n
        if begin + n == self.page:
            self._queue.append(page)
        first = (page << self._shift) + begin
        return slice(first, first + n)

    def fits(self, actor: int, env: Array) -> bool:
        """Whether the next rows of these environments, (k,), need no page that is open now."""
        return self._needed(actor, env) <= len(self._queue)

    def place(self, actor: int, env: Array) -> tuple[Array, Array, Array]:
        """Put rows at the ends of their streams. They must fit, or be a single row.

        Args:
            env: (k,) environment of each row, each environment's in stream order.

        Returns:
            (k,) their slots; the pages that are used again for them, whose rows are lost; and the pages that followed
            those in their streams.
        """
        needed = self._needed(actor, env)
        reused, followers = self._reuse(needed) if needed else (_NO_PAGES, _NO_PAGES)
        counts = np.bincount(env)
        n_envs = len(counts)
        newest = self._pages_of(actor, n_envs)
        order = np.argsort(env, kind="stable")
        rank = np.arange(len(env)) - (np.cumsum(counts) - counts).repeat(counts)
        # Place of each row, counted from the beginning of its stream's open page.
        open_rows = np.where(newest == self._none, self.page, self.fill[newest])
        place = rank + open_rows.repeat(counts)
        n_new = np.maximum(counts + open_rows - 1, 0) // self.page * (counts > 0)
        # (n_envs, most + 1): the open page of each environment, then its new pages in order.
        table = np.full((n_envs, int(n_new.max()) + 1), self._none)
        table[:, 0] = newest
        table[:, 1:][np.arange(table.shape[1] - 1) < n_new[:, None]] = reused
        for env_ix in n_new.nonzero()[0].tolist():
            self._continue(actor, env_ix, table[env_ix, : n_new[env_ix] + 1])
        slots = np.empty(len(env), np.int64)
        pages = table[np.arange(n_envs).repeat(counts), place >> self._shift]
        slots[order] = (pages << self._shift) + (place & self._mask)
        has_rows = counts.nonzero()[0]
        last = table[has_rows, n_new[has_rows]]
        ends = (open_rows + counts - 1)[has_rows] % self.page + 1
        self.fill[last] = ends
        self._newest[actor][has_rows] = last
        self._queue.extend(last[ends == self.page].tolist())
        return slots, reused, followers

    def _needed(self, actor: int, env: Array) -> int:
        """How many pages these rows need in addition to those that are open."""
        counts = np.bincount(env)
        newest = self._pages_of(actor, len(counts))
        room = np.where(newest == self._none, 0, self.page - self.fill[newest])
        return int((-(-np.maximum(counts - room, 0) // self.page)).sum())

    def _continue(self, actor: int, env: int, pages: Array) -> None:
        """Append pages[1:] to a stream whose newest page is pages[0]."""
        self._next[pages[:-1]] = pages[1:]
        self._before[pages[1:]] = pages[:-1]
        self._next[self._none] = self._none
        self._measure(pages)
        self._stream_of.pop(int(pages[0]), None)
        self._stream_of[int(pages[-1])] = actor, env
        closed = pages[:-1]
        closed = closed[
            (closed != self._none) & (self.fill[closed] < self.page)
        ]  # a full one is in the queue already
        self._queue.extend(closed.tolist())
        self.fill[closed] = self.page

    def _reuse(self, n: int) -> tuple[Array, Array]:
        """Take n pages for new rows; what they held is lost. Returns them and the pages that followed them.

        Where no page is closed, it is the open page that was begun first: no other page of its stream is left.
        """
        pages = []
        for _ in range(n):
            page = self._queue.popleft() if self._queue else min(self._stream_of, key=self.serial.__getitem__)
            stream = self._stream_of.pop(page, None)
            if stream is not None:  # it begins anew
                self._newest[stream[0]][stream[1]] = self._none
            pages.append(page)
        taken = np.array(pages, np.int64)
        followers, preceding = self._next[taken], self._before[taken]
        self._before[followers] = self._next[preceding] = self._none
        self._next[taken] = self._before[taken] = self._none
        self._measure(np.concatenate([taken, followers, preceding]))
        self.fill[taken] = 0
        self.serial[taken] = self._uses + np.arange(1, n + 1)
        self._uses += n
        self.used = max(self.used, max(pages) + 1)
        return taken, followers[followers != self._none]

    def _measure(self, pages: Array) -> None:
        """Set the distances of these pages to the next page and the page before, after those have changed."""
        self._to_next[pages] = (self._next[pages] - pages - 1) << self._shift
        self._to_before[pages] = (self._before[pages] - pages + 1) << self._shift

    def _pages_of(self, actor: int, n_envs: int) -> Array:
        """(n_envs,) view of the page with the newest row of each environment."""
        pages = self._newest.get(actor)
        if pages is None or len(pages) < n_envs:
            longer = np.full(n_envs, self._none)
            longer[: 0 if pages is None else len(pages)] = [] if pages is None else pages
            pages = self._newest[actor] = longer
        return pages[:n_envs]

    def end(self, actor: int | None = None) -> Array:
        """End the streams of this actor, or of all. Returns the slots of their newest rows."""
        actors = [actor] if actor is not None else list(self._newest)
        pages = np.concatenate([np.empty(0, np.int64), *(self._newest.pop(a, []) for a in actors)])
        pages = pages[pages != self._none].astype(np.int64)
        for page in pages.tolist():
            del self._stream_of[page]
        self._queue.extend(pages[self.fill[pages] < self.page].tolist())  # the others are closed already
        return np.asarray((pages << self._shift) + self.fill[pages] - 1)

    def is_open(self) -> Array:
        """(pages,) whether a page holds the newest row of a stream, which may get more rows or be ended."""
        is_open = np.zeros(self.n_pages, bool)
        is_open[list(self._stream_of)] = True
        return is_open

    # -- state ----------------------------------------------------------

    def arrays(self) -> dict[str, Array]:
        """Everything, as arrays. streams: (k, 3) page, actor and environment of the open pages."""
        streams = sorted((page, *stream) for page, stream in self._stream_of.items())
        return {
            "page_fill": self.fill[:-1].copy(),
            "page_serial": self.serial[:-1].copy(),
            "page_next": self._next[:-1].copy(),
            "queue": np.array(self._queue, np.int64),
            "streams": np.array(streams, np.int64).reshape(-1, 3),
        }

    def _is_in_order(self, after: Array, queue: Array) -> bool:
        """Whether each page is used again before the one after it in its stream."""
        turn = np.full(self.n_pages + 1, len(queue))
        turn[queue] = np.arange(len(queue))
        linked = (after != self._none).nonzero()[0]
        return bool((turn[linked] < turn[after[linked]]).all())

    def load(self, arrays: dict[str, Array]) -> None:
        """The inverse. Raises IncompatibleStateError if the pages contradict each other."""
        fill, serial, after = (arrays[f"page_{name}"] for name in ("fill", "serial", "next"))
        queue, streams = arrays["queue"], arrays["streams"]
        pages = np.arange(self.n_pages)
        open_pages = streams[:, 0] if streams.ndim == 2 and streams.shape[1] == 3 else np.array([-1])
        linked = after[after != self._none]
        waiting = np.concatenate([queue, open_pages])
        is_valid = (
            all(len(a) == self.n_pages for a in (fill, serial, after))
            and _within(fill, 0, self.page)
            and _within(serial, 0, np.iinfo(np.int64).max - self.n_pages)
            and _within(linked, 0, self.n_pages - 1)
            and len(np.unique(linked)) == len(linked)
            and bool((fill[after != self._none] == self.page).all())
            and bool((serial[linked] > serial[after != self._none]).all())
            and _within(waiting, 0, self.n_pages - 1)
            and np.array_equal(np.unique(waiting), pages)
            and len(np.unique(queue)) == len(queue)
            and len(np.unique(open_pages)) == len(open_pages)
            and _within(streams[:, 1:], 0, 2**20)
            and len(np.unique(streams[:, 1:], axis=0)) == len(streams)
            and bool((after[open_pages] == self._none).all())
            and bool(((fill > 0) == (serial > 0)).all())
            and len(np.unique(serial[serial > 0])) == np.count_nonzero(serial)
            # an open page has a row, and waits in the queue exactly if it is full
            and bool((fill[open_pages] > 0).all())
            and bool((np.isin(open_pages, queue) == (fill[open_pages] == self.page)).all())
            and self._is_in_order(after, queue)
        )
        if not is_valid:
            raise IncompatibleStateError("the pages of the saved replay contradict each other")
        self.fill[:-1], self.serial[:-1], self._next[:-1] = fill, serial, after
        self._before[:] = self._none
        self._before[after] = pages
        self._before[self._none] = self._none
        self._measure(np.arange(self.n_pages + 1))
        self._queue = deque(queue.tolist())
        self._newest.clear()
        self._stream_of.clear()
        for page, actor, env in streams.tolist():
            self._pages_of(actor, env + 1)
            self._newest[actor][env] = page
            self._stream_of[page] = actor, env
        self._uses = int(serial.max(initial=0))
        self.used = int((serial > 0).nonzero()[0].max(initial=-1)) + 1


def _within(values: Array, low: int, high: int) -> bool:
    return bool(values.min(initial=low) >= low and values.max(initial=high) <= high)


# -- memory --------------------------------------------------------


def row_layout(columns: Sequence[Column]) -> np.dtype[np.void]:
    """The dtype of one packed row, aligned."""
    return np.dtype([(c.name, c.dtype, c.shape) for c in columns], align=True)


class Rows(Protocol):
    """`n` rows with these columns, here or on a device."""

    n: int

    @property
    def columns(self) -> Mapping[str, Any]:
        """Name → (n, ...) array, or tensor on a device: a view of the rows."""

    def write(self, where: slice | Array, rows: Items) -> None:
        """Set the rows `where`. It takes only the own columns of `rows`."""

    def read(self, slots: Array) -> Items:
        """Copies of the rows `slots`, by column."""

    def take(self, ix: Array, into: Any) -> None:
        """Copy the rows `ix`, which must be in range, to the len(ix) rows of `into`, which has the same columns."""


class PackedRows:
    """`n` rows in the main memory, each of them contiguous. columns: name → (n, ...) array, a strided view of the rows.

    Sampled rows lie far apart in memory, so reading them takes the time of cache misses. Copying each row as a whole takes
    a fraction of the time of copying each column.
    """

    def __init__(self, columns: Sequence[Column], n: int) -> None:
        self.n = n
        records = np.zeros(n, row_layout(columns))
        self.columns: Items = {c.name: records[c.name] for c in columns}
        self._whole = records.view(f"V{records.itemsize}")  # numpy copies opaque rows faster

    def write(self, where: slice | Array, rows: Items) -> None:
        for name, column in self.columns.items():
            column[where] = rows[name]

    def read(self, slots: Array) -> Items:
        return {name: self.columns[name][slots] for name in self.columns}

    def take(self, ix: Array, into: PackedRows) -> None:
        self._whole.take(ix, out=into._whole, mode="clip")  # "raise" would copy through a buffer


MakeRows = Callable[[Sequence[Column], int], Rows]


def _frame(leaf: ObsLeaf) -> Column:
    """The column of the newest frames of a leaf."""
    return Column(leaf.name, leaf.row_shape, leaf.dtype)


class Stacks:
    """The frames of all slots, of which stacks are made. leaves: those of the observation that are stacks.

    A row has the newest frame of its observation. The frames before it are those of the rows before it in the same stream,
    back to the first of the episode, which is repeated to fill the stack.
    """

    def __init__(self, leaves: Sequence[ObsLeaf], slots: int, make_rows: MakeRows = PackedRows) -> None:
        self._leaves = list(leaves)
        self._make_rows = make_rows
        self._rows = {leaf.name: make_rows([_frame(leaf)], slots) for leaf in leaves}

    def write(self, where: slice | Array, rows: Items) -> None:
        """Set the frames of these slots."""
        for frames in self._rows.values():
            frames.write(where, rows)

    def read(self, slots: Array) -> Items:
        """Copies of the frames of these slots, by leaf."""
        return {name: frames.read(slots)[name] for name, frames in self._rows.items()}

    def empty(self, n: int) -> tuple[dict[str, Rows], dict[str, Any]]:
        """Memory for `take`, and its stacks (n, depth, ...) by leaf."""
        rows, stacks = dict[str, Rows](), dict[str, Any]()
        for leaf in self._leaves:
            rows[leaf.name] = self._make_rows([_frame(leaf)], n * leaf.stack)
            stacks[leaf.name] = rows[leaf.name].columns[leaf.name].reshape(n, *leaf.shape)
        return rows, stacks

    def take(self, slots: Array, into: dict[str, Rows]) -> None:
        """Copy stacks. slots: (n, depth) of their frames, the oldest first; a leaf takes as many as its stack has."""
        for leaf in self._leaves:
            self._rows[leaf.name].take(slots[:, -leaf.stack :].ravel(), into[leaf.name])
