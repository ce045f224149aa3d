"""How rows are sampled: uniformly, or by priority (Schaul et al., 2016), with a wide tree of their sums."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np

from border_cli.core.errors import IncompatibleStateError
from border_cli.core.spaces import Array
from border_cli.core.state import State, check_like
from border_cli.replay.config import DEFAULT_BETA_OPT_STEPS, PrioritizedConfig
from border_cli.runtime.seeding import restore


class ReplaySampler(ABC):
    """Samples slots for a buffer, which passes these arguments:

    is_ready: (slots,) whether a slot can be sampled · n_used: only slots below this can be · n_ready: how many can be.
    """

    def begin(self, n_slots: int) -> None:  # noqa: B027 - a sampler that keeps nothing has nothing to do, here and below
        """Forget everything. The buffer has this many slots."""

    @abstractmethod
    def sample(self, size: int, is_ready: Array, n_used: int, n_ready: int) -> tuple[Array, Array | None]:
        """Sample a batch of size <= n_ready: (size,) slots, and (size,) float32 importance weights or None."""

    def pushed(self) -> None:  # noqa: B027
        """Rows are being pushed; `removed` and `added` follow."""

    def added(self, slots: Array) -> None:  # noqa: B027
        """These slots can be sampled from now on."""

    def removed(self, slots: Array) -> None:  # noqa: B027
        """These slots cannot be sampled any more."""

    def update(self, slots: Array, td_error: Array) -> None:  # noqa: B027
        """(k,) absolute errors of sampled rows."""

    @abstractmethod
    def generator_state(self) -> dict[str, Any]:
        """What determines the next batches together with the rows, as JSON values."""

    @abstractmethod
    def load_generator_state(self, state: dict[str, Any], is_ready: Array, n_used: int, n_ready: int) -> None:
        """Continue from a saved state, after the rows and `load_priorities`. Raises ValueError."""

    def priorities(self, slots: Array) -> dict[str, Array]:
        """What has to be saved of these slots in addition to their rows, by column."""
        return {}

    def load_priorities(self, slots: Array, columns: dict[str, Array]) -> None:  # noqa: B027
        """Restore saved columns, after `added` was called for the slots that can be sampled. Raises ValueError."""


_MOST_AHEAD = 8
"""Batches drawn at once, at most. Pushing discards them, so that the distribution is that of single draws."""
_NO_BATCHES = np.empty((0, 0), np.int64)


class UniformSampler(ReplaySampler):
    """Samples every row with the same probability."""

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng
        self._drawn: Array = _NO_BATCHES  # (k, size) batches drawn at once
        self._taken = 0
        self._ahead = 0  # how many were asked for; doubled each time while no rows are pushed
        self._before_draws: dict[str, Any] | None = None  # state of the generator before them

    def begin(self, n_slots: int) -> None:
        self.pushed()

    def pushed(self) -> None:
        """Discard the batches that were drawn ahead: new rows must be sampled as often as old ones."""
        self._drawn, self._taken, self._ahead, self._before_draws = _NO_BATCHES, 0, 0, None

    def sample(self, size: int, is_ready: Array, n_used: int, n_ready: int) -> tuple[Array, None]:
        if self._drawn.shape[1] != size or self._taken == len(self._drawn):
            self._draw(min(max(2 * self._ahead, 1), _MOST_AHEAD), size, is_ready, n_used)
        drawn: Array = self._drawn[self._taken]
        self._taken += 1
        return drawn, None

    def _draw(self, ahead: int, size: int, is_ready: Array, n_used: int) -> None:
        """Draw about `ahead` batches, at least one: uniformly over all slots, without those that cannot be sampled."""
        self._before_draws = dict(self._rng.bit_generator.state)
        usable = np.empty(0, np.int64)
        while len(usable) < size:  # rarely more than once
            draws = self._rng.random(ahead * size + size // 4)
            draws *= n_used  # not uniform by n/2^53, in a third of the time of `integers`
            slots = draws.astype(np.int64)
            slots = slots.take(is_ready.take(slots).nonzero()[0])
            usable = np.concatenate((usable, slots)) if len(usable) else slots
        k = len(usable) // size
        self._drawn, self._taken, self._ahead = usable[: k * size].reshape(k, size), 0, ahead

    def generator_state(self) -> dict[str, Any]:
        """State of the generator before the newest draws, and what was drawn and taken."""
        before = self._before_draws or dict(self._rng.bit_generator.state)
        drawn = {"batch_size": self._drawn.shape[1], "ahead": self._ahead, "batches_taken": self._taken}
        return {"generator": before} | drawn

    def load_generator_state(self, state: dict[str, Any], is_ready: Array, n_used: int, n_ready: int) -> None:
        kinds = {"generator": None, "batch_size": 0, "ahead": 0, "batches_taken": 0}
        check_like(State({}, state), State({}, kinds), "the replay's generator")
        self.pushed()
        restore(self._rng, state["generator"])
        size, ahead, taken = state["batch_size"], state["ahead"], state["batches_taken"]
        if taken > 0 and n_ready >= size > 0 and 0 < ahead <= _MOST_AHEAD:
            self._draw(ahead, size, is_ready, n_used)
            self._taken = min(taken, len(self._drawn))


_WIDTH = 16
_SHIFT = 4  # log2 of it
_MAX_TOP = 8192
"""Length of the top level up to which its running sum takes less time than another level."""


class SumTree:
    """Sums of n float64 leaves >= 0, of which a few change at a time, with a search by partial sums. leaves: (n,) view.

    A node has sixteen children, because each level costs a few numpy calls at any batch size. There is no root: the
    top level is short enough to be searched as a whole. Inner nodes are always computed from their children, never
    adjusted by a difference. So they depend on the leaves alone, bit for bit: only the leaves have to be saved, and no
    error adds up.
    """

    def __init__(self, n: int) -> None:
        size = -(-n // _WIDTH)
        self._levels: list[Array] = [np.zeros((size, _WIDTH))]  # from the leaves up: (nodes, children)
        while size > _MAX_TOP:
            size = -(-size // _WIDTH)
            self._levels.append(np.zeros((size, _WIDTH)))
        self._top = np.zeros(size)
        self.leaves = self._levels[0].reshape(-1)[:n]

    def set(self, ix: Array, values: Array | float) -> None:
        """Change leaves. If an index occurs twice, the last value counts."""
        self._levels[0].reshape(-1)[ix] = values
        for level, above in zip(self._levels, [*self._levels[1:], self._top], strict=True):
            ix = ix >> _SHIFT
            above.reshape(-1)[ix] = np.add.reduce(level[ix], axis=1)

    def find(self, share: Array) -> tuple[Array, float]:
        """Leaves by their share of the total sum.

        Args:
            share: (k,) in [0, 1).

        Returns:
            For each, the first index i with leaves[0] + … + leaves[i] > share·total, (k,), and the total. Never a leaf
            of 0, as long as one is larger.
        """
        sums = self._top.cumsum()
        total = float(sums[-1])
        rest = share * total
        # Rounding can make rest equal to the total; then it belongs to the last node that is not 0.
        ix = np.minimum(sums.searchsorted(rest, "right"), self._top.nonzero()[0][-1])
        rest = np.maximum(rest - (sums[ix] - self._top[ix]), 0.0)
        rows = np.arange(len(rest))
        for level in reversed(self._levels):
            children = level[ix]  # (k, 16)
            sums = children.cumsum(1)
            # `rest` falls into the child whose index is the number of running sums that do not exceed it. Then `rest`
            # becomes the remainder within that child.
            child = np.minimum((sums <= rest[:, None]).sum(1), _WIDTH - 1)
            # `cumsum` and the node's own sum round differently, so `rest` can lie beyond the last child that is not 0.
            beyond = children[rows, child] <= 0
            if beyond.any():
                child[beyond] = _WIDTH - 1 - (children[beyond, ::-1] > 0).argmax(1)
            rest = np.maximum(rest - (sums[rows, child] - children[rows, child]), 0.0)
            ix = ix * _WIDTH + child
        return ix, total


class PrioritizedSampler(ReplaySampler):
    """Proportional prioritisation with stratified draws and importance weights (Schaul et al., 2016).

    A row's priority is p = (|error| + ε)^α; a new row has the largest priority so far. Row i is sampled with the
    probability P(i) = p_i/Σp. Its weight is (N·P(i))^-β, divided by the largest weight of the batch.
    """

    def __init__(self, config: PrioritizedConfig, rng: np.random.Generator) -> None:
        self._config = config
        self._rng = rng
        self._max_priority = 1.0
        self._batches = 0

    def begin(self, n_slots: int) -> None:
        self._sums = SumTree(n_slots)

    def added(self, slots: Array) -> None:
        """Give these slots the largest priority so far."""
        self._sums.set(slots, self._max_priority)

    def removed(self, slots: Array) -> None:
        self._sums.set(slots, 0.0)

    def sample(self, size: int, is_ready: Array, n_used: int, n_ready: int) -> tuple[Array, Array]:
        """See `ReplaySampler`. One row is drawn from each of `size` equal parts of the sum of all priorities."""
        slots, total = self._sums.find((np.arange(size) + self._rng.random(size)) / size)
        weights = (n_ready * self._sums.leaves.take(slots) / total) ** -self.beta()
        weights /= weights.max()
        self._batches += 1
        return slots, weights.astype(np.float32)

    def update(self, slots: Array, td_error: Array) -> None:
        """New priorities, except for slots whose row was overwritten. Raises ValueError for an error that is not finite."""
        if not np.isfinite(td_error).all():
            raise ValueError("an error for a priority is not finite")
        priorities = (np.abs(td_error, dtype=np.float64) + self._config.priority_eps) ** self._config.alpha
        is_kept = self._sums.leaves[slots] > 0
        if not is_kept.all():
            slots, priorities = slots[is_kept], priorities[is_kept]
        self._sums.set(slots, priorities)
        self._max_priority = max(self._max_priority, float(priorities.max(initial=0.0)))

    def beta(self) -> float:
        """β, which grows linearly with the number of sampled batches, that is, of opt steps."""
        c = self._config
        share = min(self._batches / (c.beta_opt_steps or DEFAULT_BETA_OPT_STEPS), 1.0)
        return c.beta_start + share * (c.beta_final - c.beta_start)

    def generator_state(self) -> dict[str, Any]:
        """The generator, and what continues even without saved rows: the batches so far and the largest priority."""
        state = dict(self._rng.bit_generator.state)
        return {"generator": state, "batches": self._batches, "max_priority": self._max_priority}

    def load_generator_state(self, state: dict[str, Any], is_ready: Array, n_used: int, n_ready: int) -> None:
        kinds = {"generator": None, "batches": 0, "max_priority": 0.0}
        check_like(State({}, state), State({}, kinds), "the replay's generator")
        if not 0 < (state["max_priority"] or 0) < np.inf:
            raise IncompatibleStateError(f"the largest priority is {state['max_priority']}")
        restore(self._rng, state["generator"])
        self._max_priority, self._batches = state["max_priority"], state["batches"]

    def priorities(self, slots: Array) -> dict[str, Array]:
        """Priorities, 0 for slots that cannot be sampled."""
        return {"priority": self._sums.leaves[slots]}

    def load_priorities(self, slots: Array, columns: dict[str, Array]) -> None:
        """See `ReplaySampler`. Exactly the rows that can be sampled must have a priority."""
        priorities, ready = columns["priority"], self._sums.leaves[slots] > 0
        is_positive = (priorities > 0) & np.isfinite(priorities)
        if priorities.shape != ready.shape or (is_positive != ready).any():
            raise IncompatibleStateError("the saved priorities are not those of the saved rows")
        self._sums.set(slots[ready], priorities[ready])
