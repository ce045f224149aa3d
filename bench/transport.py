"""Transitions per second from one process to another: the actors' ring beside `multiprocessing.Queue`."""

from __future__ import annotations

import multiprocessing
import queue
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from bench.report import Figure
from border_cli.config.schema import EnvConfig
from border_cli.core.types import Chunk, Items, empty_items, item_columns
from border_cli.envs.group import GymEnv
from border_cli.runtime.transport import Ring

CHUNK = 64
RING_CHUNKS, QUEUE_CHUNKS, QUEUE_ROWS = 100_000, 10_000, 100_000
_RING_ROWS = 8192
_PAUSE_S = 1e-4


def measure(repetitions: int) -> list[Figure]:
    """Measure the ring, a queue of chunks and a queue of single transitions in turn."""
    ring: list[float] = []
    chunks: list[float] = []
    rows: list[float] = []
    for _ in range(repetitions):
        ring.append(_ring_rate())
        chunks.append(_queue_rate(QUEUE_CHUNKS, CHUNK))
        rows.append(_queue_rate(QUEUE_ROWS, 1))
    return [
        Figure(f"ring, chunks of {CHUNK}", ring, "transitions/s"),
        Figure(f"multiprocessing.Queue, chunks of {CHUNK}", chunks, "transitions/s"),
        Figure("multiprocessing.Queue, one by one", rows, "transitions/s"),
        Figure("ring over queue, chunks", [a / b for a, b in zip(ring, chunks, strict=True)], ""),
        Figure("ring over queue, one by one", [a / b for a, b in zip(ring, rows, strict=True)], ""),
    ]


def _ring_rate() -> float:
    ring = Ring(item_columns(GymEnv(EnvConfig(id="CartPole-v1")).spec), _RING_ROWS)

    def receive() -> int:
        rows = sum(chunk.rows for chunk in ring.pop_all())
        if not rows:
            time.sleep(_PAUSE_S)
        return rows

    return _rate(push_into_ring, (ring,), receive, RING_CHUNKS * CHUNK)


def _queue_rate(puts: int, rows: int) -> float:
    context = multiprocessing.get_context("spawn")
    channel: Any = context.Queue(maxsize=_RING_ROWS // rows)

    def receive() -> int:
        try:
            return len(channel.get(timeout=1.0)["env"])
        except queue.Empty:
            return 0

    return _rate(put_into_queue, (channel, puts, rows), receive, puts * rows)


def _rate(
    target: Callable[..., None], args: tuple[Any, ...], receive: Callable[[], int], total: int
) -> float:
    """Return the transitions/s, counted from the first arrival."""
    sender = multiprocessing.get_context("spawn").Process(target=target, args=args)
    sender.start()
    first = 0
    while not first:
        first = receive()
    began, arrived = time.perf_counter(), first
    while arrived < total:
        arrived += receive()
    rate = (total - first) / (time.perf_counter() - began)
    sender.join()
    return rate


def push_into_ring(ring: Ring) -> None:
    """Send through the ring."""
    items = _items(ring.columns, CHUNK)
    for sequence in range(RING_CHUNKS):
        while (room := ring.reserve(CHUNK)) is None:
            time.sleep(_PAUSE_S)
        for name, column in room.items():
            column[:] = items[name]
        ring.push(Chunk(0, 0, sequence, CHUNK, 0, room))


def put_into_queue(channel: Any, puts: int, rows: int) -> None:
    """Send through the queue."""
    items = _items(item_columns(GymEnv(EnvConfig(id="CartPole-v1")).spec), rows)
    for _ in range(puts):
        channel.put(items)


def _items(columns: Any, rows: int) -> Items:
    items = empty_items(columns, rows)
    items["reward"][:] = np.arange(rows)
    return items
