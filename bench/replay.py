"""Prioritised sampling and updating beside cpprb's."""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from bench.report import Figure
from border_cli.core.spaces import ActionSpec, EnvSpec, ObsLeaf, ObsSpec
from border_cli.core.types import MAX_STEP, empty_items, item_columns
from border_cli.replay.buffer import RowReplayBuffer, make_buffer
from border_cli.replay.config import PrioritizedConfig

BATCH = 256
CAPACITIES = (10_000, 100_000, 1_000_000, 10_000_000)
SMALL = EnvSpec(ObsSpec((ObsLeaf("obs", (), "box", (4,), "float32"),)), ActionSpec("discrete", n=2))
ROUNDS = 300
PROMISED = "at most 1"


def measure(repetitions: int) -> list[Figure]:
    """Measure both replays at each capacity in turn."""
    figures = []
    for capacity in CAPACITIES:
        ours, theirs = _ours(capacity), _cpprb(capacity)
        both_us, ratio = [], []
        for _ in range(repetitions):
            sampling = _microseconds(ours.sample)
            ratio.append(sampling / _microseconds(theirs.sample))
            both_us.append(sampling + _microseconds(ours.update))
        figures += [
            Figure(f"sample and update {BATCH} of {capacity:.0e} rows, prioritised", both_us, "µs"),
            Figure(f"sampling alone over cpprb's, {capacity:.0e} rows", ratio, "", PROMISED),
        ]
    return figures


@dataclass(frozen=True)
class _Replay:
    """One sample and one update of a replay."""

    sample: Callable[[], object]
    update: Callable[[], object]


def _filled(capacity: int) -> RowReplayBuffer:
    buffer = make_buffer(PrioritizedConfig(capacity=capacity), SMALL, 0)
    columns, step = item_columns(SMALL), min(capacity, 100_000)
    for _ in range(0, capacity, step):
        items = empty_items(columns, step)
        items["step"][:] = np.arange(step) % MAX_STEP
        buffer.push(items)
    return buffer


def _ours(capacity: int) -> _Replay:
    buffer = _filled(capacity)
    room, turns = buffer.batch(BATCH), _errors()
    return _Replay(
        lambda: buffer.batch(BATCH, into=room), lambda: buffer.update_priority(room.ix, next(turns))
    )


def _errors() -> Iterator[np.ndarray]:
    return itertools.cycle(np.random.default_rng(0).random((ROUNDS, BATCH), np.float32))


def _cpprb(capacity: int) -> _Replay:
    from cpprb import PrioritizedReplayBuffer

    scalar = {"shape": 1, "dtype": np.float32}
    columns = {"obs": {"shape": 4, "dtype": np.float32}, "next_obs": {"shape": 4, "dtype": np.float32}}
    columns |= {"act": {"shape": 1, "dtype": np.int64}, "rew": scalar, "done": scalar, "discount": scalar}
    buffer = PrioritizedReplayBuffer(capacity, columns, alpha=0.5)
    n = min(capacity, 100_000)
    rows = {name: np.zeros((n, column["shape"]), column["dtype"]) for name, column in columns.items()}
    for _ in range(0, capacity, n):
        buffer.add(**rows)
    indexes, turns = buffer.sample(BATCH, beta=0.4)["indexes"], _errors()
    return _Replay(
        lambda: buffer.sample(BATCH, beta=0.4), lambda: buffer.update_priorities(indexes, next(turns))
    )


def _microseconds(once: Callable[[], object]) -> float:
    """Return the median over batches of ten calls, which a single pause does not change."""
    for _ in range(20):
        once()
    times = []
    for _ in range(ROUNDS // 10):
        began = time.perf_counter()
        for _ in range(10):
            once()
        times.append((time.perf_counter() - began) / 10)
    return 1e6 * statistics.median(times)
