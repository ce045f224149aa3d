"""Proportional prioritised draws (Schaul et al., 2016): stratified, with importance weights."""

from __future__ import annotations

from typing import Any

import numpy as np

from border_cli.core.errors import UnfitStateError
from border_cli.core.spaces import Array, EnvSpec
from border_cli.core.state import check_arrays, count, number, require
from border_cli.replay.buffer import RowReplayBuffer, row_buffer_bytes
from border_cli.replay.config import DEFAULT_BETA_OPT_STEPS, PrioritizedConfig
from border_cli.replay.wide_tree import MinTree, SumTree
from border_cli.runtime.seeding import REPLAY, generator, restore

_TREE_BYTES = 8 * 16 / 15
"""Per leaf, inner nodes included."""


def make_buffer(config: PrioritizedConfig, spec: EnvSpec, seed: int) -> RowReplayBuffer:
    """The buffer that a configuration describes; `seed` is the run's."""
    drawing = PrioritizedDrawing(config, generator(seed, REPLAY))
    return RowReplayBuffer(config.capacity, spec, drawing, config.needs_estimates())


def buffer_bytes(config: PrioritizedConfig, spec: EnvSpec) -> int:
    """Bytes that `make_buffer` takes once the ring is full."""
    trees = 2 if config.normalizer == "all" else 1
    return row_buffer_bytes(config.capacity, spec, config.needs_estimates()) + round(
        trees * _TREE_BYTES * (config.capacity + 1)
    )


class PrioritizedDrawing:
    """Implements `replay.drawing.Drawing`. A row's mass is (|error| + ε)^α; a new one has the greatest there ever was."""

    def __init__(self, config: PrioritizedConfig, rng: np.random.Generator) -> None:
        self._config = config
        self._rng = rng
        slots = config.capacity + 1
        self._sums = SumTree(slots)
        self._least = MinTree(slots) if config.normalizer == "all" else None
        self._greatest = 1.0
        self._batches = 0

    def pushed(self) -> None:
        """Nothing: what changes is told slot by slot."""

    def added(self, slots: Array) -> None:
        """They are drawn as often as the most surprising rows there ever were."""
        self._set(slots, self._greatest)

    def removed(self, slots: Array) -> None:
        """They are not drawn any more."""
        self._sums.set(slots, 0.0)
        if self._least is not None:
            self._least.set(slots, np.inf)

    def draw(self, size: int, next_slot: Array, n_rows: int, n_ready: int) -> tuple[Array, Array]:
        """As of `Drawing`: one draw from each of `size` equal shares of all mass."""
        del n_rows
        slots, total = self._sums.find((np.arange(size) + self._rng.random(size)) / size)
        weights = self._weights(self._sums.leaves.take(slots), total, n_ready)
        self._batches += 1
        both = np.empty((2, size), np.int64)
        both[0] = slots
        next_slot.take(slots, out=both[1], mode="clip")
        return both, weights

    def update(self, slots: Array, td_error: Array) -> None:
        """New masses. A slot whose row is gone meanwhile keeps none."""
        if not np.isfinite(td_error).all():
            raise ValueError("an error that priorities should follow from is not finite")
        masses = (np.abs(td_error, dtype=np.float64) + self._config.priority_eps) ** self._config.alpha
        there = self._sums.leaves[slots] > 0
        if not there.all():
            slots, masses = slots[there], masses[there]
        self._set(slots, masses)
        self._greatest = max(self._greatest, float(masses.max(initial=0.0)))

    def beta(self) -> float:
        """The exponent of the weights, by the batches drawn so far: one for each opt step."""
        c = self._config
        share = min(self._batches / (c.beta_opt_steps or DEFAULT_BETA_OPT_STEPS), 1.0)
        return c.beta_start + share * (c.beta_final - c.beta_start)

    def generator_state(self) -> dict[str, Any]:
        """State of the generator; how many batches were drawn, and the greatest mass there ever was.

        These go on with a run whose replay was not saved, too.
        """
        state = dict(self._rng.bit_generator.state)
        return {"generator": state, "batches": self._batches, "greatest_priority": self._greatest}

    def load_generator_state(
        self, state: dict[str, Any], next_slot: Array, n_rows: int, n_ready: int
    ) -> None:
        """As of `Drawing`."""
        del next_slot, n_rows, n_ready
        require(state, ("generator", "batches", "greatest_priority"), "the replay's generator")
        greatest = number(state["greatest_priority"], "the greatest priority")
        if not 0 < greatest < np.inf:
            raise UnfitStateError(f"the greatest priority is {greatest}")
        restore(self._rng, state["generator"])
        self._greatest, self._batches = greatest, count(state["batches"], "batches drawn")

    def priorities(self, slots: Array) -> dict[str, Array]:
        """Masses, 0 for what cannot be sampled."""
        return {"priority": self._sums.leaves[slots]}

    def load_priorities(self, slots: Array, columns: dict[str, Array]) -> None:
        """As of `Drawing`. Where a saved mass is no mass, or is one of a row that cannot be sampled, it is refused."""
        check_arrays(columns, self.priorities(slots), "the replay")
        masses, ready = columns["priority"], self._sums.leaves[slots] > 0
        if not (np.isfinite(masses).all() and ((masses > 0) == ready).all()):
            raise UnfitStateError("the saved priorities are none of the saved rows")
        self._set(slots[ready], masses[ready])

    def _set(self, slots: Array, masses: Array | float) -> None:
        self._sums.set(slots, masses)
        if self._least is not None:
            self._least.set(slots, masses)

    def _weights(self, masses: Array, total: float, n_ready: int) -> Array:
        """(size,) float32, at most 1."""
        beta = self.beta()
        weights = (n_ready * masses / total) ** -beta
        if self._least is None:
            weights /= weights.max()
        else:
            weights /= (n_ready * self._least.least / total) ** -beta
        return weights.astype(np.float32)
