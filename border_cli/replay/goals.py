"""Hindsight experience replay: rows of a batch get a goal that their episode achieved later (Andrychowicz et al., 2017)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from border_cli.core.spaces import Array
from border_cli.core.types import Batch
from border_cli.replay.streams import Streams

Outcome = Callable[[Array, Array], tuple[Array, Array | None]]
"""(k, ...) achieved and desired goals as stored → (k,) rewards, and (k,) `terminated` or None if goals do not decide it."""


@dataclass(frozen=True)
class Hindsight:
    """The strategy "future": the goal is what a later row of the same episode has achieved, each with equal probability.

    ratio: probability that a row gets another goal · achieved, desired: leaves of the observation.
    """

    ratio: float
    achieved: str
    desired: str
    outcome: Outcome
    rng: np.random.Generator

    def relabel(
        self, batch: Batch, streams: Streams, step: Array, columns: Mapping[str, Array]
    ) -> tuple[Array, Array, Array | None]:
        """Change the goals of a batch of rows over one env step, in place.

        step: see `Streams.rows_left` · columns: the rows of all slots.

        Returns:
            (k,) which rows of the batch were changed, and the outcome of their env steps.
        """
        chosen, share = self.rng.random((2, len(batch.ix)))
        ix = (chosen < self.ratio).nonzero()[0]
        left = streams.rows_left(batch.ix[ix], step)
        ix, left = ix[left > 0], left[left > 0]  # all, except behind the largest step that is stored
        later = streams.far_ahead(batch.ix[ix], 1 + (share[ix] * left).astype(np.int64))
        goals = columns[self.achieved][later]
        batch.obs[self.desired][ix] = batch.next_obs[self.desired][ix] = goals
        return ix, *self.outcome(batch.next_obs[self.achieved][ix], goals)
