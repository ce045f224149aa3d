"""The replay buffer: rows by stream, and the transitions between them.

A row is one env step: observation, action, raw reward, `terminated`, and what the agent adds; or the final observation
of an episode. Every observation is stored once. `border_cli.replay.streams` says where the rows of a stream lie. The
transition of row t spans m env steps: n, or fewer where the episode ends before. Its reward is Σ_{k<m} γ^k·r_{t+k}, and
its next observation is row t + m (Sutton, 1988; as in Rainbow, Hessel et al., 2018). Sum, discount and the slot of row
t + m are computed once, before the first batch after row t + m has arrived: each row is sampled many times.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np

from border_cli.config.schema import BufferConfig
from border_cli.core.errors import IncompatibleStateError
from border_cli.core.spaces import Array, EnvSpec, Obs
from border_cli.core.state import Block, State, check_like
from border_cli.core.types import Batch, Column, Items, SequenceShape, obs_columns, stack_depth
from border_cli.replay.config import PrioritizedConfig
from border_cli.replay.goals import Hindsight, Outcome
from border_cli.replay.samplers import PrioritizedSampler, ReplaySampler, UniformSampler
from border_cli.replay.streams import (
    MakeRows,
    PackedRows,
    Rows,
    Stacks,
    Streams,
    page_size,
    pages_for,
    row_layout,
)
from border_cli.runtime.seeding import REPLAY, generator, restore

_BESIDE = (
    Column("reward", (), "float32"),
    Column("terminated", (), "bool"),
    Column("final", (), "bool"),
    Column("step", (), "uint16"),
)
"""Columns that are not packed in rows but stored one by one, in the main memory, because the arithmetic needs them."""
_NUMBERS = (
    Column("reward", (), "float32"),
    Column("discount", (), "float32"),
    Column("terminated", (), "bool"),
)
_TRANSITION = np.dtype([("reward", np.float32), ("discount", np.float32), ("then", np.int64)])
"""Of a row that can be sampled: Σ γ^k·r, γ^m or 0 if the last env step is terminated, and the slot of row t + m."""
_MOST_UNFORMED = 256
"""Pushes whose transitions may wait, so that a long warm-up does not keep an array of each push."""
_PART = 2**18
"""Rows that are handled at once, each with the rows of its transition, when a replay is loaded."""


@dataclass(frozen=True)
class Returns:
    """How rewards become the reward of a transition. clip: each reward is clipped to ± this before the sum."""

    gamma: float = 0.99
    clip: float | None = None


def make_buffer(
    config: BufferConfig,
    spec: EnvSpec,
    seed: int,
    extra: tuple[Column, ...] = (),
    returns: Returns = Returns(),
    n_streams: int = 1,
    device: str = "cpu",
    sequences: SequenceShape | None = None,
    outcome: Outcome | None = None,
) -> RowReplayBuffer:
    """The buffer of a configuration.

    seed: the run's · extra: columns that the agent adds to rows · n_streams: environments of all actors · device: where
    the rows are, if `config.device` says so · sequences: the buffer samples sequences · outcome: of goals in hindsight,
    with `config.her`.
    """
    rng = generator(seed, REPLAY)
    sampler = (
        PrioritizedSampler(config, rng) if isinstance(config, PrioritizedConfig) else UniformSampler(rng)
    )
    make_rows: MakeRows = PackedRows
    if config.device == "cuda":
        import torch  # not in actors, which import this module too

        from border_cli.replay.device import DeviceRows

        make_rows = functools.partial(DeviceRows, device=torch.device(device))
    kind: type[RowReplayBuffer] = RowReplayBuffer
    if sequences is not None:
        from border_cli.replay.sequences import SequenceReplayBuffer as kind
    hindsight = None
    if outcome is not None:
        achieved, desired = (leaf.name for leaf in spec.goals)
        hindsight = Hindsight(config.her_ratio, achieved, desired, outcome, generator(seed, REPLAY, 1))
    rows = (config.capacity, spec, sampler, config.n_step, extra, returns, n_streams, make_rows)
    return kind(*rows, sequences, hindsight)


def buffer_bytes(
    config: BufferConfig,
    spec: EnvSpec,
    extra: tuple[Column, ...] = (),
    n_streams: int = 1,
    sequences: SequenceShape | None = None,
) -> int:
    """Bytes of memory that the buffer takes once it is full."""
    packed, frames = _columns(spec, extra)
    slot = row_layout(packed).itemsize + sum(column.row_bytes for column in (*frames, *_BESIDE))
    slot += _TRANSITION.itemsize + 1  # and whether it can be sampled
    # Of a tree: per leaf, float64, with the nodes above the leaves
    tree = 8 * 16 / 15 if isinstance(config, PrioritizedConfig) else 0.0
    page = page_size(config.capacity, n_streams, _reach(spec, config.n_step, sequences))
    return round(pages_for(config.capacity, n_streams, page) * page * (slot + tree))


def _columns(spec: EnvSpec, extra: tuple[Column, ...]) -> tuple[list[Column], list[Column]]:
    """The columns that are packed side by side in a row, and the frames of stacks, which are not."""
    leaves = list(zip(obs_columns(spec), spec.obs.leaves, strict=True))
    packed = [column for column, leaf in leaves if leaf.stack == 1]
    action = Column("action", spec.action.shape, spec.action.stored_dtype)
    return [*packed, action, *extra], [column for column, leaf in leaves if leaf.stack > 1]


def _reach(spec: EnvSpec, n_step: int, sequences: SequenceShape | None) -> int:
    """How many rows the arithmetic goes ahead or back at once."""
    if sequences is None:
        return max(n_step, stack_depth(spec))
    return max(sequences.length + n_step, sequences.burn_in + stack_depth(spec))


def rows_per_block(capacity: int, row_bytes: int) -> int:
    """Rows of a saved block. It depends on the configuration alone: all checkpoints of a run have the same blocks.

    There are about 256 blocks per replay, so that the blocks that are not sealed, which each checkpoint writes, are small.
    """
    nbytes = min(max(capacity * row_bytes // 256, 2**20), 64 * 2**20)
    return max(1, nbytes // row_bytes)


@dataclass(kw_only=True)
class PackedBatch(Batch):
    """A batch whose arrays are views of whole rows.

    packed: the sampled rows, then the rows of their next observations · numbers: reward, discount and `terminated` ·
    stacks: frames of the packed rows, by stacked leaf.
    """

    packed: Rows = field(repr=False)
    numbers: Rows = field(repr=False)
    stacks: dict[str, Rows] = field(repr=False, default_factory=dict)


class RowReplayBuffer:
    """Implements `core.protocols.ReplayBuffer`.

    Args:
        capacity: rows, those of final observations included. Up to one page of each stream more are kept.
        n_step: env steps per transition.
        extra: columns of the agent, returned in `Batch.extra`.
        n_streams: environments that usually send rows. There may be more; then less than `capacity` rows are kept.
        make_rows: makes the memory of rows and batches. On a device, the columns of a batch are tensors there, except
            `ix` and `weight`.
        hindsight: gives sampled rows other goals; then n_step is 1, and the rows are in the main memory.
    """

    def __init__(
        self,
        capacity: int,
        spec: EnvSpec,
        sampler: ReplaySampler,
        n_step: int = 1,
        extra: tuple[Column, ...] = (),
        returns: Returns = Returns(),
        n_streams: int = 1,
        make_rows: MakeRows = PackedRows,
        sequences: SequenceShape | None = None,
        hindsight: Hindsight | None = None,
    ) -> None:
        self.capacity = capacity
        self._hindsight = hindsight
        self._n, self._clip = n_step, returns.clip
        self._packed, self._frames = _columns(spec, extra)
        self._stacked = [leaf for leaf in spec.obs.leaves if leaf.stack > 1]
        self._plain_obs = [leaf.name for leaf in spec.obs.leaves if leaf.stack == 1]
        self._depth = stack_depth(spec) - 1  # frames before the newest
        self._extra = [column.name for column in extra]
        self._make_rows = make_rows
        self._sampler = sampler
        discounts = returns.gamma ** np.arange(n_step + 1)
        self._discounts = discounts.astype(np.float32)
        # Row m: γ^k for k < m, else 0.
        is_within = np.arange(n_step) < np.arange(n_step + 1)[:, None]
        self._offsets = np.arange(n_step + 1)
        self._weights = np.where(is_within, self._discounts[:-1], np.float32(0.0))
        self._sequences = sequences
        self._reach, self._n_streams = _reach(spec, n_step, sequences), n_streams
        page = page_size(capacity, n_streams, self._reach)
        self._allocate(pages_for(capacity, n_streams, page), page)

    def _allocate(self, n_pages: int, page: int) -> None:
        """An empty replay with these pages."""
        self._streams = Streams(n_pages, page)
        n_slots = n_pages * page
        self._data = self._make_rows(self._packed, n_slots)
        self._stacks = Stacks(self._stacked, n_slots, self._make_rows)
        # Each array has a page more, for the slots of "none".
        self._beside = {c.name: np.zeros(n_slots + page, c.dtype) for c in _BESIDE}
        self._transitions = np.zeros(n_slots, _TRANSITION)
        self._is_complete = np.zeros(n_slots + page, bool)  # whether the transition of a row is known
        self._is_ready = self._is_complete  # whether a row can be sampled; the same here
        self._batch_rows = 2  # of each slot that is sampled: its own row and the next
        self._ready = 0  # how many can
        self._unformed: list[tuple[Array, Array]] = []  # rows whose transitions are complete, and their spans
        row_bytes = row_layout(self._packed).itemsize + sum(c.row_bytes for c in (*self._frames, *_BESIDE))
        self._block_pages = max(1, rows_per_block(self.capacity, row_bytes) // page)
        self._sampler.begin(n_slots)

    def __len__(self) -> int:
        return self._ready

    @property
    def n_rows(self) -> int:
        return int(np.count_nonzero(self._is_complete))

    # -- pushing --------------------------------------------------------

    def push(self, items: Items, actor: int = 0) -> None:
        env = items["env"]
        n = len(env)
        if n == 0:
            return
        where: slice | Array | None = None
        if n == 1 or env[env.argmin()] == env[env.argmax()]:
            where = self._streams.append(actor, int(env[0]), n)
        if where is None and n > 1 and not self._streams.fits(actor, env):
            for part in (slice(n // 2), slice(n // 2, None)):
                self.push({name: rows[part] for name, rows in items.items()}, actor)
            return
        self._sampler.pushed()
        if where is None:
            where = self._place(actor, env)
        self._data.write(where, items)
        self._stacks.write(where, items)
        for name, column in self._beside.items():
            column[where] = items[name]
        self._complete(np.arange(where.start, where.stop) if isinstance(where, slice) else where)

    def _place(self, actor: int, env: Array) -> Array:
        """The slots of new rows, after forgetting the rows that they replace."""
        if self._unformed:
            self._form_all()
        slots, reused, followers = self._streams.place(actor, env)
        if len(reused):
            self._forget(self._streams.slots_of(reused))
        if len(followers) and self._depth:  # rows that need a frame that was lost
            at = np.arange(self._depth)
            needing = self._streams.ahead(followers[:, None] * self._streams.page, at)
            self._forget(needing[self._beside["step"][needing] > at])
        return slots

    def _forget(self, slots: Array) -> None:
        """These rows cannot be sampled any more."""
        ready = slots[self._is_ready[slots]]
        self._is_complete[slots] = self._is_ready[slots] = False
        self._ready -= len(ready)
        self._sampler.removed(ready)

    def _complete(self, slots: Array) -> None:
        """Let rows be sampled whose transitions are complete with these new rows, in any order.

        Such a transition leads to a new row. It spans n env steps, or fewer to the end of an episode: a final observation,
        or the row after a terminated one, which follows where a lost life counts as terminated.
        """
        n, back, step = self._n, self._streams.back, self._beside["step"][slots]
        before, ending = back(slots, 1), list[Array]()
        if n > 1:
            is_end = self._beside["final"][slots] | self._beside["terminated"][before]
            ends = slots[is_end]
            # Nearer ends come first: they are the ones that count. In parts, because a loaded replay has many.
            part = max(1, _PART // max(len(ends), 1))
            for nearest in range(1, n + 1 if len(ends) else 1, part):
                spans = np.arange(min(nearest + part, n + 1) - 1, nearest - 1, -1)[:, None]
                in_episode = step[is_end] >= spans
                rows = back(ends, spans)[in_episode]
                ending.append(self._made_complete(rows, spans.repeat(len(ends), 1)[in_episode]))
            before = back(slots, n)
        rows = before[step >= n]
        rows = self._made_complete(rows, np.full(len(rows), n))
        if ending:
            rows = np.concatenate((*ending, rows))
        ready = self._newly_ready(rows, slots)
        if len(ready):
            self._is_ready[ready] = True
            self._ready += len(ready)
            self._sampler.added(ready)

    def _made_complete(self, rows: Array, spans: Array) -> Array:
        """Complete the rows that are still there, are not complete yet, and have all their frames. Returns them."""
        is_new = (rows < self._streams.n_slots) & ~self._is_complete[rows]
        if self._depth:
            frames = np.minimum(self._beside["step"][rows], self._depth).astype(np.int64)
            is_new &= self._streams.back(rows, frames) < self._streams.n_slots
        if not is_new.all():
            rows, spans = rows[is_new], spans[is_new]
        if len(rows):
            self._unformed.append((rows, spans))
            if len(self._unformed) > _MOST_UNFORMED:
                self._form_all()
            if self._n > 1:
                rows = np.unique(rows)
            self._is_complete[rows] = True
        return rows

    def _newly_ready(self, rows: Array, slots: Array) -> Array:
        """Which rows can be sampled after `rows` were completed by the new rows `slots`: the same ones."""
        return rows

    def _form_all(self) -> None:
        """Form the transitions that wait: those of several pushes at once, before a batch, or before rows are lost."""
        rows, spans = (np.concatenate(parts) for parts in zip(*self._unformed, strict=True))
        self._unformed.clear()
        part = max(1, _PART // self._n)
        for first in range(0, len(rows), part):
            self._form(rows[first : first + part], spans[first : first + part])

    def _form(self, rows: Array, spans: Array) -> None:
        """Set the transitions of these rows over (k,) env steps. Of several for the same row, the last one counts."""
        run = self._streams.ahead(rows[:, None], self._offsets)  # (k, n + 1); beyond the span: any rows
        reward, at = self._beside["reward"][run[:, :-1]], np.arange(len(rows))
        if self._clip is not None:
            reward.clip(-self._clip, self._clip, out=reward)
        formed = np.empty(len(rows), _TRANSITION)
        formed["reward"] = np.einsum("bk,bk->b", reward, self._weights[spans])
        is_terminated = self._beside["terminated"][run[at, spans - 1]]
        formed["discount"] = np.where(is_terminated, 0.0, self._discounts[spans])
        formed["then"] = run[at, spans]
        self._transitions[rows] = formed

    def break_streams(self, actor: int | None = None) -> None:
        """See `ReplayBuffer`. The newest row of each stream counts as the final observation of its episode."""
        self._sampler.pushed()
        newest, final = self._streams.end(actor), self._beside["final"]
        newest = newest[~final[newest]]
        final[newest] = True
        self._complete(newest)

    # -- sampling -------------------------------------------------------

    def batch(self, size: int, into: Batch | None = None) -> Batch:
        slots, batch = self._draw(size, into)
        transitions = self._transitions.take(slots)
        discount = transitions["discount"]
        batch.numbers.write(
            slice(None),
            {"reward": transitions["reward"], "discount": discount, "terminated": discount == 0.0},
        )
        self._take(np.concatenate((slots, transitions["then"])), batch)
        if self._hindsight is not None:
            columns = self._data.columns
            ix, reward, terminated = self._hindsight.relabel(
                batch, self._streams, self._beside["step"], columns
            )
            batch.reward[ix] = reward if self._clip is None else reward.clip(-self._clip, self._clip)
            if terminated is not None:
                batch.terminated[ix] = terminated
                batch.discount[ix] = np.where(terminated, 0.0, self._discounts[1])
        return batch

    def _draw(self, size: int, into: Batch | None) -> tuple[Array, PackedBatch]:
        """(size,) sampled slots, and a batch that has only them and their weights yet: `into` if possible."""
        if self._ready < size:
            raise ValueError(f"a batch of {size} from {self._ready} rows")
        if self._unformed:
            self._form_all()
        reusable = isinstance(into, PackedBatch) and into.packed.n == self._batch_rows * size
        batch = cast(PackedBatch, into) if reusable else self._empty_batch(size)
        batch.ix, weight = self._sampler.sample(size, self._is_ready, self._n_used, self._ready)
        if batch.weight is None or weight is None:
            batch.weight = weight
        else:
            batch.weight[...] = weight  # in place like all other arrays, whose memory tensors share
        return batch.ix, batch

    def _take(self, slots: Array, batch: PackedBatch) -> None:
        """Copy the packed columns of these slots, and stacks of their frames."""
        self._data.take(slots, batch.packed)
        if self._depth:
            self._stacks.take(self._frames_of(slots), batch.stacks)

    @property
    def _n_used(self) -> int:
        """Slots that may hold a row: they come first."""
        return self._streams.used * self._streams.page

    def _frames_of(self, slots: Array) -> Array:
        """(B, depth + 1) slots of the frames of these rows, the oldest first; the first of an episode is repeated."""
        step = self._beside["step"].take(slots).astype(np.int64)
        back = np.minimum(np.arange(self._depth, -1, -1), step[:, None])
        return self._streams.back(slots[:, None], back)

    def _empty_batch(self, size: int) -> PackedBatch:
        obs, packed, stacks = self._empty_rows(2 * size)
        numbers = self._make_rows(_NUMBERS, size)
        return PackedBatch(
            obs={name: rows[:size] for name, rows in obs.items()},
            next_obs={name: rows[size:] for name, rows in obs.items()},
            action=packed.columns["action"][:size],
            extra={name: packed.columns[name][:size] for name in self._extra},
            **numbers.columns,
            ix=np.empty(0, np.int64),
            packed=packed,
            numbers=numbers,
            stacks=stacks,
        )

    def _empty_rows(self, n: int) -> tuple[Obs, Rows, dict[str, Rows]]:
        """Memory of a batch for n rows: (n, ...) observations, which are views of the packed columns and the stacks."""
        packed = self._make_rows(self._packed, n)
        stacks, stacked = self._stacks.empty(n)
        return {name: packed.columns[name] for name in self._plain_obs} | stacked, packed, stacks

    def update_priority(self, ix: Array, td_error: Array) -> None:
        if len(ix) != len(td_error):
            raise ValueError(f"{len(ix)} rows and {len(td_error)} errors")
        self._sampler.update(ix, td_error)

    # -- state ----------------------------------------------------------

    def generator_state(self) -> dict[str, Any]:
        state = self._sampler.generator_state()
        if self._hindsight is not None:
            state["hindsight"] = dict(self._hindsight.rng.bit_generator.state)
        return state

    def load_generator_state(self, state: dict[str, Any]) -> None:
        if self._hindsight is not None:
            state = dict(state)
            restore(self._hindsight.rng, state.pop("hindsight", {}))
        self._sampler.load_generator_state(state, self._is_ready, self._n_used, self._ready)

    def state(self) -> State:
        """See `ReplayBuffer`. A block has the rows of some pages. It is sealed if none of them is open.

        What follows from the rows is not saved: the transitions.
        """
        is_open, pages = self._streams.is_open(), self._streams.used
        blocks = []
        for name, first, last in self._blocks(self._streams.serial, pages):
            read = functools.partial(self._read_pages, first, last)
            blocks.append(Block(name, not is_open[first:last].any(), read))
        arrays = self._streams.arrays() | self._sampler.priorities(np.arange(self._n_used))
        values = {
            "capacity": self.capacity,
            "page": self._streams.page,
            "pages": self._streams.n_pages,
            "streams": len(arrays["streams"]),
        }
        return State(arrays, values, tuple(blocks))

    def load_state(self, state: State) -> None:
        check_like(state, self.state(), "the replay", growing=state.arrays)
        capacity, page, n_pages = (state.values[name] for name in ("capacity", "page", "pages"))
        if capacity != self.capacity:
            raise IncompatibleStateError(f"the replay holds {self.capacity} rows, the saved one {capacity}")
        is_possible = page >= self._reach and page & (page - 1) == 0
        is_possible &= state.values["streams"] == len(state.arrays["streams"])
        most = 2 * capacity + 2**20 + 4 * page * self._n_streams
        if not (is_possible and capacity <= page * n_pages <= most):
            raise IncompatibleStateError(f"the saved replay has {n_pages} pages of {page} rows")
        self._allocate(n_pages, page)
        self._streams.load(state.arrays)
        blocks = self._blocks(self._streams.serial, self._streams.used)
        if [block.name for block in state.blocks] != [name for name, _, _ in blocks]:
            raise IncompatibleStateError("the blocks of the saved replay are not those of its pages")
        for block, (_, first, last) in zip(state.blocks, blocks, strict=True):
            arrays, slots = block.arrays(), np.arange(first * page, last * page)
            check_like(State(arrays), State(self._read_pages(first, last)), "the replay")
            self._data.write(slots, arrays)
            self._stacks.write(slots, arrays)
            for name, column in self._beside.items():
                column[slots] = arrays[name]
        slots = np.arange(self._n_used)
        self._complete(slots[self._streams.holds(slots)])
        self._sampler.load_priorities(slots, state.arrays)

    def _blocks(self, serial: Array, n_pages: int) -> list[tuple[str, int, int]]:
        """Name, first page, and the page after the last of every block of the first pages.

        The name has the newest use of one of its pages, so that a block with other rows has another name.
        """
        n = self._block_pages
        spans = [(first, min(first + n, n_pages)) for first in range(0, n_pages, n)]
        return [(f"rows-{a // n:09d}-{serial[a:b].max():012d}", a, b) for a, b in spans]

    def _read_pages(self, first: int, last: int) -> dict[str, Array]:
        """The rows of these pages, by column; zeros where there is no row."""
        slots = np.arange(first * self._streams.page, last * self._streams.page)
        rows = self._data.read(slots) | {name: column[slots] for name, column in self._beside.items()}
        rows |= self._stacks.read(slots)
        is_empty = ~self._streams.holds(slots)
        for column in rows.values():
            column[is_empty] = 0
        return rows
