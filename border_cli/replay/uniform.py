"""Uniform draws with replacement."""

from __future__ import annotations

from typing import Any

import numpy as np

from border_cli.config.schema import BufferConfig
from border_cli.core.spaces import Array, EnvSpec
from border_cli.core.state import count, require
from border_cli.replay.buffer import RowReplayBuffer, row_buffer_bytes
from border_cli.runtime.seeding import REPLAY, generator, restore

_AHEAD = 8
"""Draws are made for so many batches at once, as far as nothing is pushed in between: then it makes no difference."""
_NO_DRAWS = np.empty((0, 2, 0), np.int64)


def make_buffer(config: BufferConfig, spec: EnvSpec, seed: int) -> RowReplayBuffer:
    """The buffer that a configuration describes; `seed` is the run's."""
    return RowReplayBuffer(config.capacity, spec, UniformDrawing(generator(seed, REPLAY)))


def buffer_bytes(config: BufferConfig, spec: EnvSpec) -> int:
    """Bytes that `make_buffer` takes once the ring is full."""
    return row_buffer_bytes(config.capacity, spec)


class UniformDrawing:
    """Implements `replay.drawing.Drawing`."""

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng
        self._drawn: Array = _NO_DRAWS
        self._next_draw = 0
        self._before_draws: dict[str, Any] | None = None

    def pushed(self) -> None:
        """What is pushed can be drawn from then on."""
        self._drawn, self._next_draw, self._before_draws = _NO_DRAWS, 0, None

    def added(self, slots: Array) -> None:
        """Nothing: what can be drawn is seen when it is."""

    def removed(self, slots: Array) -> None:
        """Nothing, likewise."""

    def draw(self, size: int, next_slot: Array, n_rows: int, n_ready: int) -> tuple[Array, None]:
        """As of `Drawing`. Drawn for several batches at once: see _AHEAD."""
        del n_ready
        if self._drawn.shape[2] != size or self._next_draw == len(self._drawn):
            self._before_draws = dict(self._rng.bit_generator.state)
            self._drawn, self._next_draw = self._draw_ahead(size, next_slot, n_rows), 0
        drawn: Array = self._drawn[self._next_draw]
        self._next_draw += 1
        return drawn, None

    def update(self, slots: Array, td_error: Array) -> None:
        """Uniform draws have no priorities."""

    def generator_state(self) -> dict[str, Any]:
        """State of the generator before the draws in use, and how many batches were taken from those."""
        before = self._before_draws or dict(self._rng.bit_generator.state)
        return {"generator": before, "batch_size": self._drawn.shape[2], "batches_taken": self._next_draw}

    def load_generator_state(
        self, state: dict[str, Any], next_slot: Array, n_rows: int, n_ready: int
    ) -> None:
        """As of `Drawing`."""
        require(state, ("generator", "batch_size", "batches_taken"), "the replay's generator")
        self.pushed()
        restore(self._rng, state["generator"])
        size, taken = (count(state[name], name) for name in ("batch_size", "batches_taken"))
        if taken and n_ready >= size > 0:
            self.draw(size, next_slot, n_rows, n_ready)
            self._next_draw = count(taken, "batches_taken", len(self._drawn))

    def priorities(self, slots: Array) -> dict[str, Array]:
        """None."""
        del slots
        return {}

    def load_priorities(self, slots: Array, columns: dict[str, Array]) -> None:
        """Nothing was kept."""

    def _draw_ahead(self, size: int, next_slot: Array, n_rows: int) -> Array:
        """(k, 2, size) slots for k >= 1 batches: those of uniform draws that can be sampled."""
        usable = np.empty((2, 0), np.int64)
        while usable.shape[1] < size:  # once, but for bad luck
            draws = self._rng.random(_AHEAD * size)
            # Off uniform by n/2^53, and a third of the time that `integers` takes.
            draws *= n_rows + 1
            slots = draws.astype(np.int64)
            next_slots = next_slot.take(slots)
            linked = next_slots.nonzero()[0]
            usable = np.concatenate((usable, (slots.take(linked), next_slots.take(linked))), axis=1)
        k = usable.shape[1] // size
        return np.ascontiguousarray(usable[:, : k * size].reshape(2, k, size).swapaxes(0, 1))
