"""How rows are sampled: uniformly, or by priority (Schaul et al., 2016), with a wide tree of their sums."""

from __future__ import annotations

from typing import Any

import numpy as np

from border_cli.core.errors import IncompatibleStateError
from border_cli.core.spaces import Array
from border_cli.core.state import State, check_like
from border_cli.replay.config import DEFAULT_BETA_OPT_STEPS, PrioritizedConfig
from border_cli.runtime.seeding import restore


class UniformSampler:
    """Samples every row with the same probability. Other samplers override its methods."""

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng

    def begin(self, n_slots: int) -> None:
        """Forget everything. The buffer has this many slots."""

    def sample(self, size: int, is_ready: Array, n_used: int, n_ready: int) -> tuple[Array, Array | None]:
        """Sample a batch of size <= n_ready: (size,) slots, and (size,) float32 importance weights or None.

        is_ready: (slots,) whether a slot can be sampled · n_used: only slots below this can be · n_ready: how many can be.
        """

        def usable() -> Array:
            draws = self._rng.random(size * n_used // n_ready + size // 8)
            draws *= n_used  # not uniform by n/2^53, in a third of the time of `integers`
            slots = draws.astype(np.int64)
            return slots[is_ready[slots]]

        slots = usable()
        while len(slots) < size:
            slots = np.concatenate((slots, usable()))
        return slots[:size], None

    def added(self, slots: Array) -> None:
        """These slots can be sampled from now on."""

    def removed(self, slots: Array) -> None:
        """These slots cannot be sampled any more."""

    def update(self, slots: Array, td_error: Array) -> None:
        """(k,) absolute errors of sampled rows."""

    def generator_state(self) -> dict[str, Any]:
        """What determines the next batches together with the rows, as JSON values."""
        return {"generator": dict(self._rng.bit_generator.state)}

    def load_generator_state(self, state: dict[str, Any]) -> None:
        """Continue from a saved state. Raises ValueError."""
        check_like(
            State({}, state),
            State({}, self.generator_state() | {"generator": None}),
            "the replay's generator",
        )
        restore(self._rng, state["generator"])

    def priorities(self, slots: Array) -> dict[str, Array]:
        """What has to be saved of these slots in addition to their rows, by column."""
        return {}

    def load_priorities(self, slots: Array, columns: dict[str, Array]) -> None:
        """Restore saved columns, after `added` was called for the slots that can be sampled. Raises ValueError."""


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


class PrioritizedSampler(UniformSampler):
    """Proportional prioritisation with stratified draws and importance weights (Schaul et al., 2016).

    A row's priority is p = (|error| + ε)^α; a new row has the largest priority so far. Row i is sampled with the
    probability P(i) = p_i/Σp. Its weight is (N·P(i))^-β, divided by the largest weight of the batch.
    """

    def __init__(self, config: PrioritizedConfig, rng: np.random.Generator) -> None:
        super().__init__(rng)
        self._config = config
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
        """See `UniformSampler`. One row is drawn from each of `size` equal parts of the sum of all priorities."""
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
        return super().generator_state() | {"batches": self._batches, "max_priority": self._max_priority}

    def load_generator_state(self, state: dict[str, Any]) -> None:
        super().load_generator_state(state)
        if not 0 < (state["max_priority"] or 0) < np.inf:
            raise IncompatibleStateError(f"the largest priority is {state['max_priority']}")
        self._max_priority, self._batches = state["max_priority"], state["batches"]

    def priorities(self, slots: Array) -> dict[str, Array]:
        """Priorities, 0 for slots that cannot be sampled."""
        return {"priority": self._sums.leaves[slots]}

    def load_priorities(self, slots: Array, columns: dict[str, Array]) -> None:
        """See `UniformSampler`. Exactly the rows that can be sampled must have a priority."""
        priorities, ready = columns["priority"], self._sums.leaves[slots] > 0
        is_positive = (priorities > 0) & np.isfinite(priorities)
        if priorities.shape != ready.shape or (is_positive != ready).any():
            raise IncompatibleStateError("the saved priorities are not those of the saved rows")
        self._sums.set(slots[ready], priorities[ready])
