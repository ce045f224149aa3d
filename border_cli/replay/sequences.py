"""Sequences of rows, for agents with a memory (as in R2D2, Kapturowski et al., 2019).

The rows t = 0, T, 2T, … of an episode are the first ones of sequences. A sequence has T rows to learn from, fewer at the
end of an episode, and before them `burn_in` rows, with which an agent brings its memory up to date. So every row is learned
from in exactly one sequence, also those at the beginning of an episode.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from border_cli.core.spaces import Array
from border_cli.core.types import Batch, Column
from border_cli.replay.buffer import PackedBatch, RowReplayBuffer
from border_cli.replay.streams import run_of


class SequenceReplayBuffer(RowReplayBuffer):
    """Samples sequences by their first rows. Its length, `ix` and priorities are those of sequences.

    A batch has L = burn_in + T + n observations per sequence: those before the first row, of T rows, and n more, of which
    targets are computed. Beyond the end of an episode its final observation is repeated.

    obs: (B, L, ...) · next_obs: empty · action: (B, T, ...) · reward, discount, terminated: (B, T), as of single rows ·
    extra, the agent's columns: (B, 2, ...), of the first observation and of the first row; and
        has_burn_in: (B,) bool, false at the beginning of an episode: the observations before the first row mean nothing.
        is_valid: (B, T) bool, whether the row is one of the episode.
        next: (B, T) int64, the place of the next observation of each row; the first row has the place 0.
    """

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._is_ready = np.zeros_like(self._is_complete)
        assert self._sequences is not None
        self._length, self._burn_in = self._sequences.length, self._sequences.burn_in
        self._batch_rows = self._burn_in + self._length + self._n

    def _newly_ready(self, rows: Array, slots: Array) -> Array:
        """First rows of sequences that are whole now, by their last row: the T-th one, or the last of an episode."""
        step, final = self._beside["step"], self._beside["final"]
        ends = slots[final[slots] & (step[slots] > 0)]
        whole = rows[step[rows] % self._length == self._length - 1]
        last = np.concatenate((whole, self._streams.before[ends]))
        last = last[self._is_complete[last]]
        run = run_of(self._streams.before, last, self._length - 1 if len(last) else 0)
        first = run[np.arange(len(last)), step[last] % self._length]
        return np.unique(first[self._is_complete[first] & ~self._is_ready[first]])

    def batch(self, size: int, into: Batch | None = None) -> Batch:
        first, batch = self._draw(size, into)
        column = first[:, None]
        step = self._beside["step"][first].astype(np.int64)
        reach = np.minimum(step, self._burn_in + self._depth)
        run = run_of(self._streams.before, first, self._burn_in + self._depth)
        has_burn_in = (step > 0) & (run[np.arange(size), reach] < self._streams.n)
        before = run[:, self._burn_in : 0 : -1]
        place = np.arange(self._length + self._n)
        rows = run_of(self._streams.after, first, len(place) - 1)
        final = self._beside["final"][rows]
        final[:, -1] = True  # without an end before it, this is the last observation that is needed
        final[:, :-1] |= rows[:, 1:] == self._streams.n  # behind a lost life there may be fewer rows yet
        end = final.argmax(1)[:, None]
        rows = np.where(place <= end, rows, np.take_along_axis(rows, end, 1))
        place = place[: self._length]
        is_valid = place < end
        transitions = self._transitions.take(rows[:, : self._length])
        transitions[~is_valid] = 0
        columns = {
            "reward": transitions["reward"],
            "discount": transitions["discount"],
            "terminated": transitions["discount"] == 0.0,
            "has_burn_in": has_burn_in,
            "is_valid": is_valid,
            "next": np.minimum(place + self._n, end),
        }
        batch.numbers.write(slice(None), columns)
        self._take(np.hstack((np.where(has_burn_in[:, None], before, column), rows)).ravel(), batch)
        return batch

    def _empty_batch(self, size: int) -> PackedBatch:
        data, columns = self._empty_rows(size, self._batch_rows)
        by_row = (self._length,)
        layout = (
            Column("reward", by_row, "float32"),
            Column("discount", by_row, "float32"),
            Column("terminated", by_row, "bool"),
            Column("is_valid", by_row, "bool"),
            Column("next", by_row, "int64"),
            Column("has_burn_in", (), "bool"),
        )
        numbers = self._make_rows(layout, size)
        parts = dict(numbers.columns)
        extra = {name: parts.pop(name) for name in ("has_burn_in", "is_valid", "next")}
        first = self._burn_in
        return PackedBatch(
            obs={name: columns[name] for name in self._obs},
            next_obs={},
            action=columns["action"][:, first : first + self._length],
            extra=extra | {n: columns[n][:, : first + 1 : max(first, 1)] for n in self._extra},
            **parts,
            ix=np.empty(0, np.int64),
            parts=data,
            numbers=numbers,
        )
