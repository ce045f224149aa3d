"""Which rows of a replay come into a batch: what every way of drawing them offers to the buffer."""

from __future__ import annotations

from typing import Any, Protocol

from border_cli.core.spaces import Array

NOBODY = 0
"""The slot that never holds a row: as a next observation it says that there is none, or not yet."""


class Drawing(Protocol):
    """Draws among the slots that can be sampled. next_slot: (capacity + 1,) of the buffer, NOBODY for all others."""

    def pushed(self) -> None:
        """Rows come in; what `added` and `removed` say of them follows."""

    def added(self, slots: Array) -> None:
        """These can be sampled from now on."""

    def removed(self, slots: Array) -> None:
        """These, which could be, cannot be any more."""

    def draw(self, size: int, next_slot: Array, n_rows: int, n_ready: int) -> tuple[Array, Array | None]:
        """(2, size) slots of rows and of their next observations, and (size,) float32 importance weights or None.

        n_rows: slots 1 to n_rows hold rows · n_ready: so many of them can be sampled, at least one.
        """

    def update(self, slots: Array, td_error: Array) -> None:
        """(k,) absolute errors of rows that were drawn."""

    def generator_state(self) -> dict[str, Any]:
        """State of the generator, as JSON values, such that with the same rows the same draws come again."""

    def load_generator_state(
        self, state: dict[str, Any], next_slot: Array, n_rows: int, n_ready: int
    ) -> None:
        """Draw on from a saved state, after the rows and `load_priorities`. Raises ValueError."""

    def priorities(self, slots: Array) -> dict[str, Array]:
        """What has to be kept of these slots beside their rows: columns as long as there are slots."""

    def load_priorities(self, slots: Array, columns: dict[str, Array]) -> None:
        """Take over what was kept, after `added` was called for what can be sampled. Raises ValueError."""
