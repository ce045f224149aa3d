"""The actor's side of the transport: collects rows and hands them over in chunks."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from border_cli.actors.board import ActorState
from border_cli.actors.place import Place
from border_cli.actors.waiting import Waiter
from border_cli.core.items import Items, empty_items
from border_cli.runtime.clock import SYSTEM_CLOCK, Clock
from border_cli.transport.ring import ChunkHeader, Ring

MAX_AGE_NS = 50_000_000
"""A chunk leaves at the latest after 50 ms, so that a slow environment's steps are not held back."""


class ReplayBufferProxy:
    """Where an actor pushes its rows.

    n_buffer: a chunk leaves once it stands for so many env steps. pending_env_steps: taken and not yet
    handed over. When the ring is full, handing over waits for room, also while the run is being stopped:
    the learner empties the rings until every actor has left, and kills those that take too long.
    """

    def __init__(
        self, ring: Ring, place: Place, n_buffer: int, waiter: Waiter, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        self._ring = ring
        self._place = place
        self._n_buffer = n_buffer
        self._waiter = waiter
        self._clock = clock
        self._pending: list[Items] = []
        self._since_ns = 0
        self._sequence = 0
        self._version = 0
        self.pending_env_steps = 0

    def begin_step(self) -> None:
        """An env step begins, whose rows `push` will bring: a chunk is as old as the beginning of its first one."""
        if self.pending_env_steps == 0:
            self._since_ns = self._clock.monotonic_ns()

    def push(self, items: Items, env_steps: int, version: int) -> None:
        """Take the rows that `env_steps` env steps completed (possibly none), chosen by model `version`."""
        self.pending_env_steps += env_steps
        self._pending.append(items)
        self._version = version

    def publish_if_due(self) -> bool:
        """Hand over if the chunk is large or old enough; whether it was."""
        due = self.pending_env_steps > 0 and (
            self.pending_env_steps >= self._n_buffer
            or self._clock.monotonic_ns() - self._since_ns >= MAX_AGE_NS
        )
        if due:
            self.flush()
        return due

    def flush(self) -> None:
        """Hand over whatever there is."""
        if self.pending_env_steps == 0:
            return
        for piece, env_steps in _pieces(self._take(), self.pending_env_steps, self._ring.capacity):
            self._hand_over(piece, env_steps)
        self.pending_env_steps = 0

    def _take(self) -> Items:
        parts = [part for part in self._pending if len(part["span"])]
        self._pending = []
        if not parts:
            return empty_items(self._ring.columns, 0)
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}

    def _hand_over(self, items: Items, env_steps: int) -> None:
        header = ChunkHeader(
            actor=self._place.actor,
            incarnation=self._place.incarnation,
            sequence=self._sequence,
            env_steps=env_steps,
            rows=len(items["span"]),
            version=self._version,
        )
        self._waiter.until(lambda: self._ring.try_push(items, header), ActorState.WAITING_FOR_ROOM)
        self._sequence += 1


def _pieces(items: Items, env_steps: int, capacity: int) -> Iterator[tuple[Items, int]]:
    """Parts of at most `capacity` rows. The last stands for all env steps: none counts before its rows."""
    rows = len(items["span"])
    for start in range(0, max(rows, 1), capacity):
        last = start + capacity >= rows
        yield {name: a[start : start + capacity] for name, a in items.items()}, env_steps if last else 0
