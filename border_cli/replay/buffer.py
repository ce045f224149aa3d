"""The replay buffer: a ring of rows, and the transitions between them.

A row is one env step: observation, action, raw reward, `terminated`, and what the agent adds; or the final observation
of an episode. Every observation is stored once. `border_cli.replay.streams` links the rows of a stream. The
transition of row t spans m env steps: n, or fewer where the episode ends before. Its reward is Σ_{k<m} γ^k·r_{t+k}, and
its next observation is row t + m (Sutton, 1988; as in Rainbow, Hessel et al., 2018). Sum, discount and the slot of row
t + m are computed once, when row t + m arrives: each row is sampled many times.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np

from border_cli.config.schema import BufferConfig
from border_cli.core.errors import IncompatibleStateError
from border_cli.core.spaces import Array, EnvSpec
from border_cli.core.state import Block, State, check_like
from border_cli.core.types import Batch, Column, Items, SequenceShape, obs_columns, stack_depth
from border_cli.replay.config import PrioritizedConfig
from border_cli.replay.goals import Hindsight, Outcome
from border_cli.replay.samplers import PrioritizedSampler, UniformSampler
from border_cli.replay.streams import ENV_BITS, MakeRows, PackedRows, Streams, row_layout, run_of
from border_cli.runtime.seeding import REPLAY, generator, restore

_BESIDE = (
    Column("reward", (), "float32"),
    Column("terminated", (), "bool"),
    Column("final", (), "bool"),
    Column("step", (), "uint16"),
    Column("stream", (), "int64"),
)
"""Columns that are not packed in rows but stored one by one, in the main memory, because the arithmetic needs them."""
_NUMBERS = (
    Column("reward", (), "float32"),
    Column("discount", (), "float32"),
    Column("terminated", (), "bool"),
)
_TRANSITION = np.dtype([("reward", np.float32), ("discount", np.float32), ("then", np.int64)])
"""Of a row that can be sampled: Σ γ^k·r, γ^m or 0 if the last env step is terminated, and the slot of row t + m."""
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
    device: str = "cpu",
    sequences: SequenceShape | None = None,
    outcome: Outcome | None = None,
) -> RowReplayBuffer:
    """The buffer of a configuration.

    seed: the run's · extra: columns that the agent adds to rows · device: where the rows are, if `config.device` says so ·
    sequences: the buffer samples sequences · outcome: of goals in hindsight, with `config.her`.
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
        own_rng = generator(seed, REPLAY, 1)
        hindsight = Hindsight(config.her_ratio, achieved, desired, outcome, own_rng, config.capacity)
    rows = (config.capacity, spec, sampler, config.n_step, extra, returns, make_rows)
    return kind(*rows, sequences, hindsight)


def buffer_bytes(config: BufferConfig, spec: EnvSpec, extra: tuple[Column, ...] = ()) -> int:
    """Bytes of memory that the buffer takes once it is full."""
    slot = _row_bytes(_parts(spec, extra)) + _TRANSITION.itemsize
    slot += 1 + 2 * 8  # whether it can be sampled, and its links
    slot += 32 if config.her != "none" else 0  # its place in its episode, measured
    # Of a tree: per leaf, float64, with the nodes above the leaves
    tree = 8 * 16 / 15 if isinstance(config, PrioritizedConfig) else 0.0
    return round(config.capacity * (slot + tree))


Part = tuple[list[Column], int]
"""Columns that are packed side by side, and of how many rows a batch has them: 1, or the depth of a stack."""


def _parts(spec: EnvSpec, extra: tuple[Column, ...]) -> list[Part]:
    """What a row consists of: a part with everything but stacks, and the newest frame of each stack as a part of its own.

    The frames before it are those of the rows before it in the same stream, back to the first of the episode, which is
    repeated to fill the stack.
    """
    leaves = list(zip(obs_columns(spec), spec.obs.leaves, strict=True))
    plain = [column for column, leaf in leaves if leaf.stack == 1]
    action = Column("action", spec.action.shape, spec.action.stored_dtype)
    return [
        ([*plain, action, *extra], 1),
        *(([column], leaf.stack) for column, leaf in leaves if leaf.stack > 1),
    ]


def _row_bytes(parts: list[Part]) -> int:
    return sum(row_layout(columns).itemsize for columns, _ in parts) + sum(c.row_bytes for c in _BESIDE)


def rows_per_block(capacity: int, row_bytes: int) -> int:
    """Rows of a saved block. It depends on the configuration alone: all checkpoints of a run have the same blocks.

    There are about 256 blocks per replay, so that the blocks that are not sealed, which each checkpoint writes, are small.
    """
    nbytes = min(max(capacity * row_bytes // 256, 2**20), 64 * 2**20)
    return max(1, nbytes // row_bytes)


@dataclass(kw_only=True)
class PackedBatch(Batch):
    """A batch whose arrays are views of whole rows.

    parts: the sampled rows, then the rows of their next observations · numbers: reward, discount and `terminated`.
    """

    parts: list[PackedRows] = field(repr=False)
    numbers: PackedRows = field(repr=False)


class RowReplayBuffer:
    """Implements `core.protocols.ReplayBuffer`.

    Args:
        capacity: rows, those of final observations included.
        n_step: env steps per transition.
        extra: columns of the agent, returned in `Batch.extra`.
        make_rows: makes the memory of rows and batches. On a device, the columns of a batch are tensors there, except
            `ix` and `weight`.
        hindsight: gives sampled rows other goals; then n_step is 1, and the rows are in the main memory.
    """

    def __init__(
        self,
        capacity: int,
        spec: EnvSpec,
        sampler: UniformSampler,
        n_step: int = 1,
        extra: tuple[Column, ...] = (),
        returns: Returns = Returns(),
        make_rows: MakeRows = PackedRows,
        sequences: SequenceShape | None = None,
        hindsight: Hindsight | None = None,
    ) -> None:
        self.capacity = capacity
        self._hindsight = hindsight
        self._n, self._clip = n_step, returns.clip
        self._parts = _parts(spec, extra)
        self._obs = [leaf.name for leaf in spec.obs.leaves]
        self._depth = stack_depth(spec) - 1  # frames before the newest
        self._extra = [column.name for column in extra]
        self._make_rows = make_rows
        self._sampler = sampler
        discounts = returns.gamma ** np.arange(n_step + 1)
        self._discounts = discounts.astype(np.float32)
        # Row m: γ^k for k < m, else 0.
        is_within = np.arange(n_step) < np.arange(n_step + 1)[:, None]
        self._weights = np.where(is_within, self._discounts[:-1], np.float32(0.0))
        self._sequences = sequences
        self._data = [make_rows(columns, capacity) for columns, _ in self._parts]
        self._block_rows = rows_per_block(capacity, _row_bytes(self._parts))
        self._batch_rows = 2  # of each slot that is sampled: its own row and the next
        # Each array has an element more, for the slot of "none".
        self._beside = {c.name: np.zeros(capacity + 1, c.dtype) for c in _BESIDE}
        self._transitions = np.zeros(capacity, _TRANSITION)
        self._is_complete = np.zeros(capacity + 1, bool)  # whether the transition of a row is known
        self._is_ready = self._is_complete  # whether a row can be sampled; the same here
        self._begin()

    def _begin(self) -> None:
        """Forget all rows."""
        self._streams = Streams(self.capacity)
        self._is_complete[:] = self._is_ready[:] = False
        self._ready = 0  # how many can be sampled
        self._sampler.begin(self.capacity)

    def __len__(self) -> int:
        return self._ready

    @property
    def n_rows(self) -> int:
        return int(np.count_nonzero(self._is_complete))

    # -- pushing --------------------------------------------------------

    def push(self, items: Items, actor: int = 0) -> None:
        n, begin = len(items["env"]), self._streams.rows % self.capacity
        if n > (room := self.capacity - begin):  # the ring begins anew
            for half in (slice(room), slice(room, None)):
                self.push({name: rows[half] for name, rows in items.items()}, actor)
        elif n:
            where = slice(begin, begin + n)
            if self._streams.rows >= self.capacity:
                self._forget(np.arange(begin, begin + n))
            for part in self._data:
                part.write(where, items)
            items = items | {"stream": items["env"].astype(np.int64) + (actor << ENV_BITS)}
            for name, column in self._beside.items():
                column[where] = items[name]
            self._follow(where)

    def _forget(self, slots: Array) -> None:
        """The rows in these slots are lost, and rows behind them that need one of their frames cannot be sampled."""
        if self._depth:
            behind = run_of(self._streams.after, slots, self._depth)
            slots = np.unique(behind[self._beside["step"][behind] >= np.arange(self._depth + 1)])
        ready = slots[self._is_ready[slots]]
        self._is_complete[slots] = self._is_ready[slots] = False
        self._ready -= len(ready)
        self._sampler.removed(ready)

    def _follow(self, where: slice) -> None:
        """Link the next rows, and let rows be sampled whose transitions are complete with them."""
        self._streams.append(self._beside["stream"][where])
        slots = np.arange(where.start, where.stop)
        if self._hindsight is not None:
            self._hindsight.added(slots, self._streams.before[slots], self._beside["step"][slots])
        self._complete(slots)

    def _complete(self, slots: Array) -> None:
        """Let rows be sampled whose transitions are complete with these new rows, in any order.

        Such a transition leads to a new row. It spans n env steps, or fewer to the end of an episode: a final observation,
        or the row after a terminated one, which follows where a lost life counts as terminated.
        """
        n, none, step = self._n, self._streams.n, self._beside["step"]
        run, spans = run_of(self._streams.before, slots, n + self._depth), np.arange(1, n + 1)
        rows = run[:, 1 : n + 1]
        is_end = self._beside["final"][slots] | self._beside["terminated"][rows[:, 0]]
        is_new = (spans <= step[slots, None]) & (is_end[:, None] | (spans == n))
        is_new &= ~self._is_complete[rows] & (rows < none)
        if self._depth:
            frames = np.take_along_axis(run, spans + np.minimum(step[rows], self._depth), 1)
            is_new &= frames < none
        # Nearer ends come last: of several for the same row, the last one counts.
        span, new = (ix[::-1] for ix in is_new.T.nonzero())
        rows = self._form(run[new], span + 1)
        ready = self._newly_ready(rows, slots)
        if len(ready):
            self._is_ready[ready] = True
            self._ready += len(ready)
            self._sampler.added(ready)

    def _form(self, run: Array, spans: Array) -> Array:
        """Set the transitions over (k,) env steps to the first of these rows. run: (k, ·) a row and those before it.

        Returns the rows where they begin.
        """
        at = np.arange(len(run))[:, None]
        passed = run[at, spans[:, None] - np.arange(self._n)]  # beyond the span: any rows
        reward = self._beside["reward"][passed]
        if self._clip is not None:
            reward.clip(-self._clip, self._clip, out=reward)
        formed = np.empty(len(run), _TRANSITION)
        formed["reward"] = np.einsum("bk,bk->b", reward, self._weights[spans])
        is_terminated = self._beside["terminated"][run[:, 1]]
        formed["discount"] = np.where(is_terminated, 0.0, self._discounts[spans])
        formed["then"] = run[:, 0]
        rows = passed[:, 0]
        self._transitions[rows] = formed
        self._is_complete[rows] = True
        return rows if self._n == 1 else np.unique(rows)

    def _newly_ready(self, rows: Array, slots: Array) -> Array:
        """Which rows can be sampled after `rows` were completed by the new rows `slots`: the same ones."""
        return rows

    def break_streams(self, actor: int | None = None) -> None:
        """See `ReplayBuffer`. The newest row of each stream counts as the final observation of its episode."""
        newest, final = self._streams.newest(actor), self._beside["final"]
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
            ix, reward, terminated = self._hindsight.relabel(batch, self._data[0].columns)
            batch.reward[ix] = reward if self._clip is None else reward.clip(-self._clip, self._clip)
            if terminated is not None:
                batch.terminated[ix] = terminated
                batch.discount[ix] = np.where(terminated, 0.0, self._discounts[1])
        return batch

    def _draw(self, size: int, into: Batch | None) -> tuple[Array, PackedBatch]:
        """(size,) sampled slots, and a batch that has only them and their weights yet: `into` if possible."""
        if self._ready < size:
            raise ValueError(f"a batch of {size} from {self._ready} rows")
        reusable = isinstance(into, PackedBatch) and into.parts[0].n == self._batch_rows * size
        batch = cast(PackedBatch, into) if reusable else self._empty_batch(size)
        batch.ix, weight = self._sampler.sample(size, self._is_ready, self._streams.used, self._ready)
        if batch.weight is None or weight is None:
            batch.weight = weight
        else:
            batch.weight[...] = weight  # in place like all other arrays, whose memory tensors share
        return batch.ix, batch

    def _take(self, slots: Array, batch: PackedBatch) -> None:
        """Copy the rows of these slots, and stacks of their frames."""
        frames = self._frames_of(slots) if self._depth else slots[:, None]
        for (_, depth), rows, copied in zip(self._parts, self._data, batch.parts, strict=True):
            rows.take(frames[:, -depth:].ravel(), copied)

    def _frames_of(self, slots: Array) -> Array:
        """(B, depth + 1) slots of the frames of these rows, the oldest first; the first of an episode is repeated."""
        step = self._beside["step"].take(slots).astype(np.int64)
        back = np.minimum(np.arange(self._depth, -1, -1), step[:, None])
        return np.take_along_axis(run_of(self._streams.before, slots, self._depth), back, 1)

    def _empty_batch(self, size: int) -> PackedBatch:
        parts, columns = self._empty_rows(2 * size)
        numbers = self._make_rows(_NUMBERS, size)
        return PackedBatch(
            obs={name: columns[name][:size] for name in self._obs},
            next_obs={name: columns[name][size:] for name in self._obs},
            action=columns["action"][:size],
            extra={name: columns[name][:size] for name in self._extra},
            **numbers.columns,
            ix=np.empty(0, np.int64),
            parts=parts,
            numbers=numbers,
        )

    def _empty_rows(self, *shape: int) -> tuple[list[PackedRows], dict[str, Any]]:
        """Memory of a batch for rows of this shape, and its columns by name, (*shape, ...) views."""
        parts = [self._make_rows(columns, math.prod(shape) * depth) for columns, depth in self._parts]
        views = dict[str, Any]()
        for rows, (columns, depth) in zip(parts, self._parts, strict=True):
            for c in columns:
                views[c.name] = rows.columns[c.name].reshape(
                    *shape, *([depth] if depth > 1 else []), *c.shape
                )
        return parts, views

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
        self._sampler.load_generator_state(state)

    def state(self) -> State:
        """See `ReplayBuffer`. A block is sealed if it is full, and `break_streams` can change none of its rows.

        What follows from the rows is not saved: links and transitions.
        """
        newest, lap = self._streams.newest(), self._streams.lap
        can_change = set((newest[~self._beside["final"][newest]] // self._block_rows).tolist())
        blocks = []
        for i, (name, where) in enumerate(self._blocks()):
            is_full = lap(where.start) == lap(min(where.start + self._block_rows, self.capacity) - 1)
            blocks.append(Block(name, is_full and i not in can_change, functools.partial(self._read, where)))
        priorities = self._sampler.priorities(np.arange(self._streams.used))
        return State(priorities, {"rows": self._streams.rows}, tuple(blocks))

    def load_state(self, state: State) -> None:
        check_like(state, self.state(), "the replay", growing=state.arrays)
        self._begin()
        rows = self._streams.rows = state.values["rows"]
        blocks = self._blocks()
        if [block.name for block in state.blocks] != [name for name, _ in blocks]:
            raise IncompatibleStateError("the blocks of the saved replay are not those of its rows")
        for block, (_, where) in zip(state.blocks, blocks, strict=True):
            arrays = block.arrays()
            check_like(State(arrays), State(self._read(where)), "the replay")
            for part in self._data:
                part.write(where, arrays)
            for name, column in self._beside.items():
                column[where] = arrays[name]
        self._streams.rows -= self._streams.used  # the rows arrive once more
        while self._streams.rows < rows:
            begin, left = self._streams.rows % self.capacity, rows - self._streams.rows
            self._follow(slice(begin, min(begin + min(_PART, left), self.capacity)))
        self._sampler.load_priorities(np.arange(self._streams.used), state.arrays)

    def _blocks(self) -> list[tuple[str, slice]]:
        """Name and slots of every block of rows. A block of other rows has another name."""
        n, used = self._block_rows, self._streams.used
        return [
            (f"rows-{a // n:09d}-{self._streams.lap(a):09d}", slice(a, min(a + n, used)))
            for a in range(0, used, n)
        ]

    def _read(self, where: slice) -> dict[str, Array]:
        """The rows in these slots, by column."""
        rows = {name: column[where].copy() for name, column in self._beside.items()}
        for part in self._data:
            rows |= part.read(where)
        return rows
