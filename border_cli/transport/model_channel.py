"""The way of models from the learner to every actor: slots in shared memory, the latest wins.

The learner writes its publications into the slots in turn: two of them, or three in lockstep, where an actor may need
the one before the newest for as long as a round takes. Each slot has a counter that is written
before the data and one that is written after; a reader copies the newer slot and believes the copy only if
both counters still name the publication it came for. A slow reader may be overtaken and then tries again;
nobody ever waits.

    words | newest |                       the number of the last complete publication, from 1
    slot  | before | after, version | data bytes, one after the other, each array on a cache line of its own
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from border_cli.core.items import Column
from border_cli.core.protocols import ModelInfo
from border_cli.core.spaces import Array
from border_cli.runtime.memory import WORD, Block, Layout, fence

TRIES = 3


def model_layout(model: ModelInfo) -> tuple[Column, ...]:
    """Names, shapes and dtypes of a model's arrays, in the order of the names."""
    return tuple(Column(name, a.shape, a.dtype.name) for name, a in sorted(model.arrays.items()))


def channel_bytes(layout: tuple[Column, ...], slots: int = 2) -> int:
    """Bytes of a channel for such models, all of which are allocated when it is made."""
    return _places(_array_offsets(layout)[1], slots)[0]


class _Slot:
    """One of the places for a model."""

    def __init__(self, block: Block, words: tuple[int, int], data: int, nbytes: int) -> None:
        self.before = block.words(words[0], 1)
        self.after_version = block.words(words[1], 2)
        self.data = block.array(data, (nbytes,), "uint8")


class ModelChannel:
    """Made by the learner, which publishes, and passed to each actor's process, which polls.

    layout: as of `model_layout`, the same for every model of a run. slots: how many publications are there at a time.
    published: number of the last publication before the first one of this channel. Raises ResourceError if the memory
    cannot be had. polls, torn: tries to copy a model so far in this process, and those that were overtaken
    by the writer.
    """

    def __init__(
        self, layout: tuple[Column, ...], slots: int = 2, published: int = 0, block: Block | None = None
    ) -> None:
        self._layout = layout
        self._n_slots = slots
        self._offsets, nbytes = _array_offsets(layout)
        size, newest, offsets = _places(nbytes, slots)
        self._nbytes = nbytes
        self._block = block or Block(size, "the model channel")
        self._newest = self._block.words(newest, 1)
        if block is None:
            self._newest[0] = published
        self._slots = [_Slot(self._block, words, data, nbytes) for words, data in offsets]
        self._arrays = [self._views(slot.data) for slot in self._slots]
        self._version = -1
        self._seen = 0
        self.polls = 0
        self.torn = 0

    def __reduce__(self) -> tuple[Callable[..., ModelChannel], tuple[Any, ...]]:
        return _attach, (self._layout, self._n_slots, self._block)

    @property
    def publications(self) -> int:
        """Number of the last complete publication, 0 before the first."""
        return int(self._newest[0])

    @property
    def seen(self) -> int:
        """Number of the publication this reader has."""
        return self._seen

    def publish(self, model: ModelInfo) -> None:
        """Make this model the newest. Raises ValueError if it does not fit the layout or its version fell."""
        if not _alike(model.arrays, self._arrays[0]):
            raise ValueError("the model's arrays differ from those the channel was made for")
        if model.version < self._version:
            raise ValueError(f"version {model.version} after {self._version}")
        number = self.publications + 1
        slot, arrays = self._slots[number % self._n_slots], self._arrays[number % self._n_slots]
        slot.before[0] = number
        fence()
        for name, array in arrays.items():
            np.copyto(array, model.arrays[name])
        slot.after_version[1] = model.version
        fence()
        slot.after_version[0] = number
        fence()
        self._newest[0] = number
        self._version = model.version

    def poll(self) -> ModelInfo | None:
        """The newest model, as a copy of the reader's own, or None if there is none newer than the last.

        After three copies that the writer overtook it is None as well: the reader goes on with what it has.
        """
        for _ in range(TRIES):
            number = self.publications
            if number == self._seen:
                return None
            self.polls += 1
            model = self._try_copy(number)
            if model is not None:
                self._seen = number
                return model
            self.torn += 1
        return None

    def take(self, number: int) -> ModelInfo:
        """The model of this publication, as a copy of the reader's own. Raises RuntimeError if it is not there any more."""
        model = self._try_copy(number)
        if model is None:
            raise RuntimeError(f"publication {number} was asked for, the newest is {self.publications}")
        self._seen = number
        return model

    def close(self) -> None:
        """Give the descriptor back; the channel works on, but can be passed to no further process."""
        self._block.close()

    def _try_copy(self, number: int) -> ModelInfo | None:
        slot = self._slots[number % self._n_slots]
        if slot.after_version[0] != number:
            return None
        fence()
        own = slot.data.copy()
        version = int(slot.after_version[1])
        fence()
        if slot.before[0] != number:
            return None
        return ModelInfo(version, self._views(own))

    def _views(self, data: Array) -> dict[str, Array]:
        """A slot's bytes as named arrays."""
        return {
            column.name: data[offset : offset + column.row_bytes].view(column.dtype).reshape(column.shape)
            for column, offset in zip(self._layout, self._offsets, strict=True)
        }


def _attach(layout: tuple[Column, ...], slots: int, block: Block) -> ModelChannel:
    """The channel of the parent, in the child."""
    return ModelChannel(layout, slots, block=block)


def _alike(a: dict[str, Array], b: dict[str, Array]) -> bool:
    """Whether names, shapes and dtypes are the same."""
    return a.keys() == b.keys() and all(
        a[name].shape == b[name].shape and a[name].dtype == b[name].dtype for name in a
    )


def _places(nbytes: int, n_slots: int) -> tuple[int, int, list[tuple[tuple[int, int], int]]]:
    """Size of a channel for models of so many bytes, place of `newest`, and for each slot its words and its data."""
    places = Layout()
    newest = places.reserve(WORD)
    slots = [
        ((places.reserve(WORD), places.reserve(2 * WORD)), places.reserve(nbytes)) for _ in range(n_slots)
    ]
    return places.size, newest, slots


def _array_offsets(layout: tuple[Column, ...]) -> tuple[list[int], int]:
    places = Layout()
    return [places.reserve(column.row_bytes) for column in layout], places.size
