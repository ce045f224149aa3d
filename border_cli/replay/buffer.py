"""The replay buffer: a ring of rows, and a sampler that selects among them.

Every observation is stored once. The next observation of a transition is another row of the same storage, which arrives
later in the same stream; until then the row is pending and cannot be sampled. The ring overwrites its oldest rows first,
so a row's next observation is always overwritten after the row. Of a stack of observations each row holds the newest, and
a link to the row before it: see `border_cli.replay.storage`.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np

from border_cli.config.schema import BufferConfig
from border_cli.core.errors import IncompatibleStateError
from border_cli.core.spaces import Array, EnvSpec
from border_cli.core.state import Block, State, check_like
from border_cli.core.types import PRIORITY, UNKNOWN_PRIORITY, Batch, Column, Items, item_columns, stack_depth
from border_cli.replay.config import PrioritizedConfig
from border_cli.replay.samplers import EMPTY, PrioritizedSampler, ReplaySampler, UniformSampler
from border_cli.replay.storage import FRAME_LINK_BYTES, Frames, MakeRows, PackedRows, Rows, row_layout
from border_cli.runtime.seeding import REPLAY, generator

_STORED = ("action", "reward", "discount", "terminated")
_LINK = "link"
"""Column of a saved row: how many rows later its next observation was pushed, 0 if there is none."""


def make_buffer(
    config: BufferConfig, spec: EnvSpec, seed: int, extra: tuple[Column, ...] = (), device: str = "cpu"
) -> RowReplayBuffer:
    """The buffer of a configuration.

    seed: the run's · extra: columns that the agent adds to rows · device: where the rows are, if `config.device` says so.
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
    return RowReplayBuffer(config.capacity, spec, sampler, config.with_priority(), extra, make_rows)


def buffer_bytes(config: BufferConfig, spec: EnvSpec, extra: tuple[Column, ...] = ()) -> int:
    """Bytes of memory that the buffer takes once the ring is full."""
    packed, frames = _columns(spec, config.with_priority(), extra)
    slot = row_layout(packed).itemsize + np.dtype(np.int64).itemsize
    if frames:
        slot += sum(column.row_bytes for column in frames) + FRAME_LINK_BYTES
    trees = (1 + (config.normalizer == "all")) if isinstance(config, PrioritizedConfig) else 0
    tree_bytes = 8 * 16 / 15  # per leaf, float64, with the nodes above the leaves
    return round((config.capacity + 1) * (slot + trees * tree_bytes))


def _columns(
    spec: EnvSpec, with_priority: bool, extra: tuple[Column, ...]
) -> tuple[list[Column], list[Column]]:
    """The columns that are packed side by side in a row, and the frames of stacks, which are not."""
    stacked = {leaf.name for leaf in spec.obs.leaves if leaf.stack > 1}
    plain = {leaf.name for leaf in spec.obs.leaves} - stacked
    packed = {*plain, *_STORED, PRIORITY.name, *(column.name for column in extra)}
    columns = item_columns(spec, with_priority, extra)
    return [c for c in columns if c.name in packed], [c for c in columns if c.name in stacked]


def rows_per_block(capacity: int, row_bytes: int) -> int:
    """Rows of a saved block. It depends on the configuration alone: all checkpoints of a run have the same blocks.

    There are about 256 blocks per replay, so that the blocks that are not sealed, which each checkpoint writes, are small.
    """
    nbytes = min(max(capacity * row_bytes // 256, 2**20), 64 * 2**20)
    return max(1, nbytes // row_bytes)


@dataclass(kw_only=True)
class _PackedBatch(Batch):
    """A batch whose arrays are views of whole rows.

    packed: the sampled rows, then the rows of their next observations · stacks: their frames, by stacked leaf.
    """

    packed: Rows = field(repr=False)
    stacks: dict[str, Rows] = field(repr=False, default_factory=dict)


class RowReplayBuffer:
    """Implements `core.protocols.ReplayBuffer`.

    Rows are numbered in the order of pushing, from 0; row r is in slot r % capacity + 1. Slot 0 stays empty.

    Args:
        capacity: rows, those of final observations included.
        with_priority: rows come with a priority from the actor.
        extra: columns of the agent, returned in `Batch.extra`.
        make_rows: makes the memory of rows and batches. On a device, the columns of a batch are tensors there, except
            `ix` and `weight`.
    """

    def __init__(
        self,
        capacity: int,
        spec: EnvSpec,
        sampler: ReplaySampler,
        with_priority: bool = False,
        extra: tuple[Column, ...] = (),
        make_rows: MakeRows = PackedRows,
    ) -> None:
        self.capacity = capacity
        self._packed, frames = _columns(spec, with_priority, extra)
        self._with_priority = with_priority
        self._extra = [column.name for column in extra]
        self._plain_obs = [leaf.name for leaf in spec.obs.leaves if leaf.stack == 1]
        self._make_rows = make_rows
        self._data = make_rows(self._packed, capacity + 1)
        self._frames: Frames | None = None
        if stack_depth(spec) > 1:
            stacked = [leaf for leaf in spec.obs.leaves if leaf.stack > 1]
            self._frames = Frames(stacked, capacity + 1, make_rows)
        # Slot of each slot's next observation, EMPTY for a row that cannot be sampled.
        self._next = np.zeros(capacity + 1, np.int64)
        # By stream (actor, environment): numbers and n_steps of its newest rows, from the first pending one on.
        self._pending: dict[tuple[int, int], tuple[Array, Array]] = {}
        row_bytes = row_layout(self._packed).itemsize + sum(c.row_bytes for c in frames)
        self._block_rows = rows_per_block(capacity, row_bytes)
        self._rows = 0  # pushed so far
        self._ready = 0  # rows that can be sampled
        self._sampler = sampler

    def __len__(self) -> int:
        return self._ready

    # -- pushing --------------------------------------------------------

    def push(self, items: Items, actor: int = 0) -> None:
        for start in range(0, len(items["n_steps"]), self.capacity):
            self._append({name: rows[start : start + self.capacity] for name, rows in items.items()}, actor)

    def _append(self, items: Items, actor: int) -> None:
        self._sampler.pushed()
        rows = np.arange(self._rows, self._rows + len(items["n_steps"]))
        slots = self._slots(rows)
        if (
            rows[-1] >= self.capacity
        ):  # the rows in these slots are lost, and every row that needs a frame of theirs
            lost = slots if self._frames is None else self._frames.forget(slots)
            lost = lost[self._next[lost] != EMPTY]
            self._next[lost] = EMPTY
            self._ready -= len(lost)
            self._sampler.removed(lost)
        # A slice is much cheaper than an index array. It works unless the ring wraps around within these rows.
        where = slice(slots[0], slots[-1] + 1) if slots[0] <= slots[-1] else slots
        self._data.write(where, items)
        if self._frames is not None:
            self._frames.write(where, items)
        self._rows += len(rows)
        env = items["env"]
        if env[env.argmin()] == env[env.argmax()]:  # one environment per actor, or a short chunk
            self._follow((actor, int(env[0])), rows, items["n_steps"], items.get("step_in_episode"))
        else:
            for env_ix in np.unique(env):
                mine = np.flatnonzero(env == env_ix)
                step_in_episode = items["step_in_episode"][mine] if "step_in_episode" in items else None
                self._follow((actor, int(env_ix)), rows[mine], items["n_steps"][mine], step_in_episode)

    def _follow(
        self, stream: tuple[int, int], rows: Array, n_steps: Array, step_in_episode: Array | None
    ) -> None:
        """Append rows to a stream, and make the rows ready whose next observation is now there."""
        if self._frames is not None and step_in_episode is not None:
            self._frames.append(stream, rows, self._slots(rows), step_in_episode, self._first)
        if stream in self._pending:
            before = self._pending.pop(stream)
            rows, n_steps = np.concatenate([before[0], rows]), np.concatenate([before[1], n_steps])
        # Row i of the stream with n_steps m > 0 is a transition, whose next observation is row i + m of the stream. The
        # index i + m never decreases along a stream, so the complete transitions come first.
        transitions = n_steps.nonzero()[0]
        targets = transitions + n_steps[transitions]
        complete = int(targets.searchsorted(len(rows)))
        if complete < len(transitions):
            first = transitions[complete]
            self._pending[stream] = rows[first:], n_steps[first:].copy()  # the items may be the ring's memory
        transitions, targets = transitions[:complete], targets[:complete]
        if rows[0] < self._first:  # some pending rows have been overwritten
            is_kept = rows[transitions] >= self._first
            transitions, targets = transitions[is_kept], targets[is_kept]
        slots, next_slots = self._slots(rows[transitions]), self._slots(rows[targets])
        if self._frames is not None:  # a row of which a frame was overwritten is never ready
            whole = self._frames.complete(slots)
            slots, next_slots = slots[whole], next_slots[whole]
        self._next[slots] = next_slots
        self._ready += len(slots)
        self._sampler.added(slots)
        if self._with_priority:
            priority = self._data.read(slots, [PRIORITY.name])[PRIORITY.name]
            known = priority != UNKNOWN_PRIORITY
            self._sampler.update(slots[known], priority[known])

    def break_streams(self, actor: int | None = None) -> None:
        """Forget the pending rows of this actor, or of all: they never get a next observation and are never sampled."""
        for key in [key for key in self._pending if actor is None or key[0] == actor]:
            del self._pending[key]
        if self._frames is not None:
            self._frames.break_streams(actor)

    def _slots(self, rows: Array) -> Array:
        return rows % self.capacity + 1

    @property
    def _first(self) -> int:
        """Number of the oldest row that has not been overwritten."""
        return max(0, self._rows - self.capacity)

    # -- sampling -------------------------------------------------------

    def batch(self, size: int, into: Batch | None = None) -> Batch:
        if self._ready < size:
            raise ValueError(f"a batch of {size} from {self._ready} rows")
        reusable = isinstance(into, _PackedBatch) and into.packed.n == 2 * size
        batch = cast("_PackedBatch", into) if reusable else self._empty_batch(size)
        n_rows = min(self._rows, self.capacity)
        slots, weight = self._sampler.sample(size, self._next, n_rows, self._ready)
        if batch.weight is None or weight is None:
            batch.weight = weight
        else:
            batch.weight[...] = weight  # in place like all other arrays, whose memory tensors share
        sampled = slots.ravel()
        self._data.take(sampled, batch.packed)
        if self._frames is not None:
            self._frames.take(sampled, batch.stacks)
        batch.ix = slots[0]
        return batch

    def _empty_batch(self, size: int) -> _PackedBatch:
        packed = self._make_rows(self._packed, 2 * size)
        stacks, stacked = ({}, {}) if self._frames is None else self._frames.empty(2 * size)
        obs = {name: packed.columns[name] for name in self._plain_obs} | stacked
        return _PackedBatch(
            obs={name: rows[:size] for name, rows in obs.items()},
            next_obs={name: rows[size:] for name, rows in obs.items()},
            extra={name: packed.columns[name][:size] for name in self._extra},
            **{name: packed.columns[name][:size] for name in _STORED},
            ix=np.empty(0, np.int64),
            packed=packed,
            stacks=stacks,
        )

    def update_priority(self, ix: Array, td_error: Array) -> None:
        if len(ix) != len(td_error):
            raise ValueError(f"{len(ix)} rows and {len(td_error)} errors")
        self._sampler.update(ix, td_error)

    # -- state ----------------------------------------------------------

    def generator_state(self) -> dict[str, Any]:
        return self._sampler.generator_state()

    def load_generator_state(self, state: dict[str, Any]) -> None:
        self._sampler.load_generator_state(state, self._next, min(self._rows, self.capacity), self._ready)

    def state(self) -> State:
        """See `ReplayBuffer`. Blocks contain rows by their numbers, with the distance to their next observation.

        A block with a row that is pending, overwritten or without one of its frames is not sealed.
        """
        # (k, 2) actor and environment of the streams with pending rows, (k,) how many rows each has, and these rows.
        streams = sorted(self._pending)
        parts = [self._pending[stream] for stream in streams]
        none = np.empty(0, np.int64)
        pending_rows = np.concatenate([none, *(rows for rows, _ in parts)])
        arrays = {
            "streams": np.array(streams, np.int64).reshape(-1, 2),
            "pending": np.array([len(rows) for rows, _ in parts], np.int64),
            "pending_rows": pending_rows,
            "pending_n_steps": np.concatenate([none, *(n for _, n in parts)]).astype(np.int32),
        }
        first_pending = int(pending_rows[pending_rows >= self._first].min(initial=self._rows))
        blocks = []
        for name, first, last in self._blocks(self._rows):
            sealed = self._first <= first and last <= first_pending
            if sealed and self._frames is not None:
                sealed = bool(self._frames.complete(self._slots(np.arange(first, last))).all())
            read = functools.partial(self._read_rows, max(first, self._first), min(last, self._rows))
            blocks.append(Block(name, sealed, read))
        arrays |= self._sampler.priorities(self._slots(np.arange(self._first, self._rows)))
        if self._frames is not None:
            arrays |= self._frames.stream_arrays()
        return State(arrays, {"capacity": self.capacity, "rows": self._rows}, tuple(blocks))

    def load_state(self, state: State) -> None:
        check_like(state, self.state(), "the replay", growing=state.arrays)
        capacity, n_rows = state.values["capacity"], state.values["rows"]
        if capacity != self.capacity:
            raise IncompatibleStateError(f"the replay holds {self.capacity} rows, the saved one {capacity}")
        blocks = self._blocks(n_rows)
        if [block.name for block in state.blocks] != [name for name, _, _ in blocks]:
            raise IncompatibleStateError(f"the blocks of the saved replay are not those of {n_rows} rows")
        pending = self._check_pending(state.arrays, n_rows)
        self._rows, self._pending = n_rows, pending
        self._sampler.pushed()
        self._next[:] = EMPTY
        for block, (_, first, last) in zip(state.blocks, blocks, strict=True):
            rows, arrays = np.arange(max(first, self._first), min(last, n_rows)), block.arrays()
            check_like(State(arrays), State(self._read_rows(rows[0], rows[-1] + 1)), "the replay")
            slots = self._slots(rows)
            self._data.write(slots, arrays)
            if self._frames is not None:
                self._frames.write(slots, arrays)
                self._frames.load_links(slots, rows, arrays, self._first)
            links = arrays[_LINK].astype(np.int64)
            self._next[slots] = np.where(links > 0, self._slots(rows + links), EMPTY)
        live = self._slots(np.arange(self._first, self._rows))
        if self._frames is not None:
            self._frames.load_streams(state.arrays, live)
            linked = live[self._next[live] != EMPTY]
            self._next[linked[~self._frames.complete(linked)]] = EMPTY
        ready = live[self._next[live] != EMPTY]
        self._ready = len(ready)
        self._sampler.added(ready)
        self._sampler.load_priorities(live, state.arrays)

    def _check_pending(
        self, arrays: dict[str, Array], n_rows: int
    ) -> dict[tuple[int, int], tuple[Array, Array]]:
        """The pending rows of a saved state. Wrong ones would link rows of different episodes, or stay pending forever."""
        streams, pending = arrays["streams"], arrays["pending"]
        rows, n_steps = arrays["pending_rows"], arrays["pending_n_steps"]
        lengths_fit = len(streams) == len(pending) and len(rows) == len(n_steps) == pending.sum()
        rows_fit = rows.min(initial=0) >= 0 and rows.max(initial=-1) < n_rows
        steps_fit = n_steps.min(initial=0) >= 0 and n_steps.max(initial=0) <= self.capacity
        if not (lengths_fit and pending.min(initial=1) >= 1 and rows_fit and steps_fit):
            raise IncompatibleStateError("the pending rows of the saved replay are not those of its streams")
        return {
            (int(actor), int(env)): (rows[end - n : end], n_steps[end - n : end])
            for (actor, env), n, end in zip(streams, pending, np.cumsum(pending), strict=True)
        }

    def _blocks(self, n_rows: int) -> list[tuple[str, int, int]]:
        """Name, first row, and the row after the last of every block, if `n_rows` rows have been pushed."""
        n, oldest = self._block_rows, max(0, n_rows - self.capacity)
        return [
            (f"rows-{start // n:09d}", start, start + n) for start in range(oldest - oldest % n, n_rows, n)
        ]

    def _read_rows(self, first: int, last: int) -> dict[str, Array]:
        """The rows from `first` to before `last`, by column."""
        slots = self._slots(np.arange(first, last))
        links = (self._next[slots] - slots) % self.capacity
        links[self._next[slots] == EMPTY] = 0
        rows = self._data.read(slots)
        if self._frames is not None:
            rows |= self._frames.read(slots)
            rows |= self._frames.links(slots)
        return rows | {_LINK: links.astype(np.uint32)}
