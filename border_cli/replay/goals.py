"""Hindsight experience replay: rows of a batch get a goal that their episode achieved later (Andrychowicz et al., 2017)."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from border_cli.core.spaces import Array
from border_cli.core.types import Batch

Outcome = Callable[[Array, Array], tuple[Array, Array | None]]
"""(k, ...) achieved and desired goals as stored → (k,) rewards, and (k,) `terminated` or None if goals do not decide it."""


@dataclass
class Hindsight:
    """The strategy "future": the goal is what a later row of the same episode has achieved, each with equal probability.

    ratio: probability that a row gets another goal · achieved, desired: leaves of the observation · capacity: slots.
    """

    ratio: float
    achieved: str
    desired: str
    outcome: Outcome
    rng: np.random.Generator
    capacity: int

    def __post_init__(self) -> None:
        # By slot, the slots of the rows of its episode in order, and which of them it is.
        self.episodes, self.places = [array("q")] * self.capacity, [0] * self.capacity

    def added(self, slots: Array, before: Array, step: Array) -> None:
        """Rows arrive in these slots. before: the slots of those before them · step: their number in the episode."""
        for slot, old, is_later in zip(slots.tolist(), before.tolist(), step.tolist(), strict=True):
            episode = self.episodes[old] if is_later and old < self.capacity else array("q")
            self.episodes[slot], self.places[slot] = episode, len(episode)
            episode.append(slot)

    def relabel(self, batch: Batch, columns: Mapping[str, Array]) -> tuple[Array, Array, Array | None]:
        """Change the goals of a batch of rows over one env step, in place. columns: the rows of all slots.

        Returns:
            (k,) which rows of the batch were changed, and the outcome of their env steps.
        """
        chosen, share = self.rng.random((2, len(batch.ix)))
        ix = (chosen < self.ratio).nonzero()[0]
        later = []
        for slot, part in zip(batch.ix[ix].tolist(), share[ix].tolist(), strict=True):
            episode, after = self.episodes[slot], self.places[slot] + 1
            later.append(episode[after + int(part * (len(episode) - after))])
        goals = columns[self.achieved][later]
        batch.obs[self.desired][ix] = batch.next_obs[self.desired][ix] = goals
        return ix, *self.outcome(batch.next_obs[self.achieved][ix], goals)
