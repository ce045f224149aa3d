"""What passes between processes through shared memory: chunks to the learner, models to the actors.

A block of memory has no name. A child gets its descriptor when it is started. The memory is freed when the last process
that holds it ends, however it ends. All of it is allocated at once, so too little memory is an error at the start and
never a bus error in the middle of a run.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import mmap
import os
import platform
import select
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from border_cli.core.errors import ResourceError
from border_cli.core.spaces import Array
from border_cli.core.types import Chunk, Column, Items, ModelInfo

CACHE_LINE = 64
WORD = 8
_ZEROS = bytes(1 << 20)
_ONE = (1).to_bytes(8, sys.byteorder)  # what is written to an eventfd
passed: list[int] = []
"""The descriptors among the arguments of a child, which are pickled as their places here: in its parent while these are
pickled, and in the child."""
pickling = threading.Lock()


def _place_of(descriptor: int) -> int:
    """Pass a descriptor. Returns its place among those that are passed."""
    if not pickling.locked():
        raise RuntimeError("shared memory and events can only be arguments of a child")
    passed.append(descriptor)
    return len(passed) - 1


def _places(sizes: Sequence[int]) -> tuple[int, list[int]]:
    """Size of a block of parts of these sizes [bytes], and their offsets: each begins on a cache line of its own."""
    ends = list(itertools.accumulate(-(-nbytes // CACHE_LINE) * CACHE_LINE for nbytes in sizes))
    return ends[-1], [0, *ends[:-1]]


class SharedBlock:
    """`size` bytes of zeros, shared with every child they are passed to as an argument of its process.

    place: in the child, that of its parent's descriptor among those that were passed.
    Raises ResourceError when the memory or a descriptor cannot be had.
    """

    def __init__(self, size: int, purpose: str, place: int | None = None) -> None:
        self.size = max(size, CACHE_LINE)
        self._fd = -1
        with resource_errors(purpose):
            self._fd = _allocate(self.size) if place is None else passed[place]
            self._map = mmap.mmap(self._fd, self.size)
        if place is not None:
            self.close()

    def fileno(self) -> int:
        return self._fd

    def words(self, offset: int, n: int) -> memoryview:
        """View of n aligned 8-byte signed words; one of them is read or written as a whole."""
        return memoryview(self._map)[offset : offset + n * WORD].cast("q")

    def array(self, offset: int, shape: tuple[int, ...], dtype: str) -> Array:
        return np.frombuffer(self._map, dtype, math.prod(shape), offset).reshape(shape)

    def close(self) -> None:
        """Close the descriptor. Views stay valid, but the block can be passed to no further process."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __del__(self) -> None:
        self.close()

    def __reduce__(self) -> tuple[Callable[..., SharedBlock], tuple[Any, ...]]:
        return SharedBlock, (self.size, "what its parent shares with it", _place_of(self._fd))


class SharedEvent:
    """An event that a child waits for until its parent sets it: an eventfd, or else a pipe. Passed like a block.

    If it is set before the child waits, the child does not sleep. Raises ResourceError.
    place: in the child, that of its parent's descriptor among those that were passed.
    """

    def __init__(self, place: int | None = None) -> None:
        self._fds: tuple[int, ...] = ()
        with resource_errors("the wake-up of an actor"):
            if place is not None:
                self._fds = (passed[place],)
            else:
                self._fds = (os.eventfd(0),) if hasattr(os, "eventfd") else os.pipe()
        os.set_blocking(self._fds[-1], False)  # a child that never reads does not block its parent
        os.set_inheritable(self._fds[0], False)
        self._poll = select.poll()
        self._poll.register(self._fds[0], select.POLLIN)

    def set(self) -> None:
        """Wake the child, now or at its next wait. Does nothing after `close`."""
        with contextlib.suppress(BlockingIOError):
            for fd in self._fds[-1:]:
                os.write(fd, _ONE)

    def wait(self, seconds: float) -> None:
        """Sleep until it is set, and no longer than this; then it is no longer set."""
        if self._poll.poll(1000 * seconds):
            os.read(self._fds[0], 4096)

    def close(self) -> None:
        fds, self._fds = self._fds, ()
        for fd in fds:
            os.close(fd)

    def __del__(self) -> None:
        self.close()

    def __reduce__(self) -> tuple[Callable[..., SharedEvent], tuple[Any, ...]]:
        return SharedEvent, (_place_of(self._fds[0]),)


def _allocate(size: int) -> int:
    """Descriptor of `size` bytes without a name, all of them allocated."""
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create("border-cli")
    else:
        with tempfile.TemporaryFile(prefix="border-cli-") as file:
            fd = os.dup(file.fileno())
    try:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(fd, 0, size)
        else:  # writing allocates
            written = 0
            while written < size:
                written += os.write(fd, _ZEROS[: size - written])
    except OSError:
        os.close(fd)
        raise
    return fd


@contextlib.contextmanager
def resource_errors(purpose: str) -> Iterator[None]:
    """Turn an OSError that is raised inside into the ResourceError of `resource_error`."""
    try:
        yield
    except OSError as error:
        raise resource_error(error, purpose) from error


def resource_error(error: OSError, purpose: str) -> ResourceError:
    """The error to show a person when the system refused memory, a descriptor or a process."""
    return ResourceError(
        f"{purpose}: {error.strerror or error}",
        allowed="a smaller n_actors, more memory, or a higher limit (`ulimit -n`, `ulimit -u`, a container's pids.max)",
    )


_IN_ORDER = platform.machine().lower() in ("x86_64", "amd64", "i686")
_FENCE_LOCK = threading.Lock()  # of this process alone: only the instructions behind it matter


def fence() -> None:
    """Put this between the data and the word that announces it, on both sides.

    Processors of the x86 family let others see stores, and loads, in order. Elsewhere, what comes before two uses of a
    lock is seen before what comes after them.
    """
    if not _IN_ORDER:
        for _ in range(2):
            with _FENCE_LOCK:
                pass


# -- chunks from one actor to the learner --------------------------------


_MOST_BYTES = 8 << 20
_SLOT_WORDS = CACHE_LINE // WORD
_HEADER_WORDS = 7


def ring_rows(credit: int, n_envs: int, columns: Sequence[Column]) -> int:
    """Capacity of the ring of an actor with at most this much unused credit [env steps].

    The actor fills the ring while the learner still holds the chunks that it took before, and an env step may complete
    two rows: its own and the last observation of its episode. A ring has at most 8 MiB, but room for two rows; a
    smaller ring than needed makes the actor wait.
    """
    row_bytes = sum(column.row_bytes for column in columns)
    return max(2, min(4 * (credit + n_envs), _MOST_BYTES // row_bytes))


class Ring:
    """A bounded ring of chunks: room for `capacity` rows in as many chunks at most.

    The learner makes it and passes it to the actor's process as an argument. One process writes, one reads, and neither
    ever locks. A chunk is a header in one of a fixed number of slots, and a run of rows in one array per column. The rows
    are written where they stay until the learner has copied them into the replay. A chunk has at most half of the rows, and
    never wraps around the end of the ring: where it does not fit, the writer continues at the start.

    The word `head` counts complete chunks and is written last. So a producer that dies in the middle of a chunk leaves
    nothing behind that could be read. Each incarnation of an actor gets a new ring. Raises ResourceError.

        words   | head | tail, rows_out |     head: chunks pushed, tail: chunks released, rows_out: rows released
        headers | slot 0 | slot 1 | …         written at head % capacity
        columns | obs … | action … | …        each (capacity, *shape), written at rows_in % capacity
    """

    def __init__(self, columns: tuple[Column, ...], capacity: int, block: SharedBlock | None = None) -> None:
        self.columns = columns
        self.capacity = capacity
        size, (head, tail, headers, *offsets) = _ring_places(columns, capacity)
        self._block = block or SharedBlock(size, "an actor's ring")
        self._head_word = self._block.words(head, 1)
        self._tail_words = self._block.words(tail, 2)
        self._headers = self._block.words(headers, capacity * _SLOT_WORDS)
        self._storage: dict[str, Array] = {
            column.name: self._block.array(offset, (capacity, *column.shape), column.dtype)
            for column, offset in zip(columns, offsets, strict=True)
        }
        self._chunks_in = self._rows_in = 0  # the producer's own counts
        self._chunks_out = self._rows_out = 0  # the consumer's own counts
        self.close = self._block.close

    def __reduce__(self) -> tuple[Callable[..., Ring], tuple[Any, ...]]:
        return Ring, (self.columns, self.capacity, self._block)

    def reserve(self, rows: int) -> Items | None:
        """Where to write the next rows: up to `rows` of them. Returns None while there is no room."""
        n = min(rows, max(1, self.capacity // 2))
        left = self.capacity - self._rows_in % self.capacity
        if n > left:
            self._rows_in += left
        # The consumer may free more room at this moment, which the next call sees; it never takes room back.
        chunks_out, rows_out = self._tail_words
        fence()
        if self._chunks_in - chunks_out == self.capacity or self._rows_in - rows_out + n > self.capacity:
            return None
        return self._rows(self._rows_in, n)

    def push(self, chunk: Chunk) -> None:
        """Publish a chunk whose items are the rows that the last `reserve` returned."""
        start, position = self._chunks_in % self.capacity * _SLOT_WORDS, self._rows_in
        header = chunk.actor, chunk.incarnation, chunk.sequence, chunk.env_steps, chunk.version
        for i, value in enumerate((*header, chunk.rows, position)):
            self._headers[start + i] = value
        self._chunks_in += 1
        self._rows_in += chunk.rows
        fence()
        self._head_word[0] = self._chunks_in

    def pop_all(self) -> list[Chunk]:
        """All new chunks, oldest first. Their arrays lie in the ring: the next call releases them to the producer."""
        fence()
        self._tail_words[1] = self._rows_out
        self._tail_words[0] = self._chunks_out
        head = self._head_word[0]
        fence()
        chunks = []
        while self._chunks_out < head:
            start = self._chunks_out % self.capacity * _SLOT_WORDS
            header = self._headers[start : start + _HEADER_WORDS]
            actor, incarnation, sequence, env_steps, version, rows, position = header
            items = self._rows(position, rows)
            chunks.append(Chunk(actor, incarnation, sequence, env_steps, version, items))
            self._chunks_out += 1
            self._rows_out = position + rows
        return chunks

    def _rows(self, position: int, n: int) -> Items:
        """Views of `n` rows from row `position` of the stream on, which do not wrap around the end."""
        start = position % self.capacity
        return {name: column[start : start + n] for name, column in self._storage.items()}


def ring_bytes(columns: tuple[Column, ...], capacity: int) -> int:
    """Bytes of a ring, all of which are allocated when it is made."""
    return _ring_places(columns, capacity)[0]


def _ring_places(columns: tuple[Column, ...], capacity: int) -> tuple[int, list[int]]:
    """`_places` of head, tail, headers and each column."""
    rows = (capacity * column.row_bytes for column in columns)
    return _places([WORD, 2 * WORD, capacity * CACHE_LINE, *rows])


# -- models from the learner to every actor ------------------------------


def model_layout(model: ModelInfo) -> tuple[Column, ...]:
    """Names, shapes and dtypes of a model's arrays, in their order."""
    return tuple(Column(name, a.shape, a.dtype.name) for name, a in model.arrays.items())


class _Slot(NamedTuple):
    """Room for one model. data: (bytes,) uint8."""

    before: memoryview
    after_version: memoryview
    data: Array


class ModelChannel:
    """Models from the learner, which publishes, to every actor's process, which polls: the latest wins.

    The publications go into the slots in turn: two of them, or three in lockstep, where an actor may need the publication
    before the newest for as long as a round takes. Each slot has a counter that is written before the data and one that is
    written after it (a seqlock). A reader copies a slot and keeps the copy only if both counters name the publication that
    it came for. A slow reader may be overtaken and then tries again; neither side ever waits.

        words | newest |                       the number of the last complete publication, from 1
        slot  | before | after, version | the arrays, one after the other: of an agent's model one flat float32 vector

    slots: how many publications are kept · published: number of the last one before the first of this channel · seen:
    number of the publication that this reader has. Raises ResourceError if there is no memory.
    """

    def __init__(
        self, layout: tuple[Column, ...], slots: int = 2, published: int = 0, block: SharedBlock | None = None
    ) -> None:
        self.layout = layout
        nbytes = sum(column.row_bytes for column in layout)
        size, (newest, *offsets) = _places([WORD, *[WORD, 2 * WORD, nbytes] * slots])
        self._block = block or SharedBlock(size, "the model channel")
        self._newest = self._block.words(newest, 1)
        if block is None:
            self._newest[0] = published
        words, array = self._block.words, self._block.array
        self._slots = [
            _Slot(words(before, 1), words(after, 2), array(data, (nbytes,), "uint8"))
            for before, after, data in (offsets[3 * i : 3 * i + 3] for i in range(slots))
        ]
        self._fitting: dict[str, Array] | None = None  # arrays of the last publication, known to fit
        self.seen = 0
        self.close = self._block.close

    def __reduce__(self) -> tuple[Callable[..., ModelChannel], tuple[Any, ...]]:
        return ModelChannel, (self.layout, len(self._slots), 0, self._block)

    @property
    def publications(self) -> int:
        """Number of the last complete publication, 0 before the first."""
        return int(self._newest[0])

    def publish(self, model: ModelInfo) -> None:
        """Make this model the newest. Raises ValueError if it does not fit the layout."""
        if model.arrays is not self._fitting:  # a policy on the CPU publishes the same arrays each time
            if set(model_layout(model)) != set(self.layout):
                raise ValueError("the model's arrays differ from those the channel was made for")
            self._fitting = model.arrays
        number = self.publications + 1
        slot = self._slots[number % len(self._slots)]
        slot.before[0] = number
        fence()
        if model.vector is not None:
            np.copyto(slot.data, model.vector.view(np.uint8))
        else:
            for name, array in self._views(slot.data).items():
                np.copyto(array, model.arrays[name])
        slot.after_version[1] = model.version
        fence()
        slot.after_version[0] = number
        fence()
        self._newest[0] = number

    def poll(self) -> ModelInfo | None:
        """A copy of the newest model, or None if there is none newer than the last.

        Also None after three copies that the writer overtook: the reader keeps the model that it has.
        """
        for _ in range(3):
            number = self.publications
            if number == self.seen:
                return None
            model = self._try_copy(number)
            if model is not None:
                self.seen = number
                return model
        return None

    def take(self, number: int) -> ModelInfo:
        """A copy of the model of this publication. Raises RuntimeError if it is not there any more."""
        model = self._try_copy(number)
        if model is None:
            raise RuntimeError(f"publication {number} was asked for, the newest is {self.publications}")
        self.seen = number
        return model

    def _try_copy(self, number: int) -> ModelInfo | None:
        slot = self._slots[number % len(self._slots)]
        if slot.after_version[0] != number:
            return None
        fence()
        data = slot.data.copy()
        version = int(slot.after_version[1])
        fence()
        if slot.before[0] != number:
            return None
        dtypes = {column.dtype for column in self.layout}
        vector = data.view(*dtypes) if len(dtypes) == 1 else None
        return ModelInfo(version, self._views(data), vector)

    def _views(self, data: Array) -> dict[str, Array]:
        """A slot's bytes as named arrays, one after the other."""
        views, start = {}, 0
        for column in self.layout:
            part = data[start : start + column.row_bytes]
            views[column.name] = part.view(column.dtype).reshape(column.shape)
            start += column.row_bytes
        return views
