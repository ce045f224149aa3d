"""Shared memory: chunks in a ring, models in a channel between processes, wake-ups, and too little of it."""

from __future__ import annotations

import errno
import gc
import multiprocessing
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from border_cli.core.errors import ResourceError
from border_cli.core.types import Chunk, Column, ModelInfo
from border_cli.runtime import forkserver
from border_cli.runtime.child import Child
from border_cli.runtime.transport import ModelChannel, Ring, SharedBlock, SharedEvent, model_layout
from border_cli.runtime.worker import Reporter
from tests.fakes import COUNTING_COLUMNS, LIGHT_PRELOAD
from tests.faults.amounts import times

COLUMNS = (Column("obs", (2,), "float32"), Column("env", (), "int32"))


# -- the ring ------------------------------------------------------------------


def push(ring: Ring, first: int, n: int, sequence: int = 0, env_steps: int = 0) -> int:
    """Push a chunk of up to n rows, numbered from `first`. Returns the number of rows that had room, -1 if none had."""
    items = ring.reserve(n)
    if items is None:
        return -1
    items["env"][:] = number = np.arange(first, first + len(items["env"]))
    items["obs"][:] = np.stack([number, -number], axis=1)
    ring.push(Chunk(3, 1, sequence, env_steps, 7, items))
    return len(number)


def test_a_full_ring_accepts_no_rows_and_popped_rows_stay_until_the_next_pop() -> None:
    ring = Ring(COLUMNS, 8)
    assert [push(ring, 0, 5), push(ring, 4, 4), push(ring, 8, 1)] == [4, 4, -1]
    chunks = ring.pop_all()
    assert push(ring, 8, 1) == -1
    assert [chunk.items["env"].tolist() for chunk in chunks] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert ring.pop_all() == []
    assert push(ring, 8, 9) == 4


@settings(max_examples=100, deadline=None)
@given(st.lists(st.one_of(st.integers(0, 7), st.none()), max_size=60))
def test_any_interleaving_keeps_every_row_in_order(actions: list[int | None]) -> None:
    """actions: a number pushes up to that many rows, None pops everything."""
    ring = Ring(COLUMNS, 7)
    pushed, popped, sequences, sequence = 0, list[int](), list[int](), 0
    for action in [*actions, None]:
        if action is None:
            for chunk in ring.pop_all():
                sequences.append(chunk.sequence)
                popped += chunk.items["env"].tolist()
        elif (n := push(ring, pushed, action, sequence)) >= 0:
            pushed += n
            sequence += 1
    assert sequences == list(range(sequence))
    assert popped == list(range(pushed))


# -- the model channel -----------------------------------------------------------


def model(version: int, n: int = 3) -> ModelInfo:
    """Every value is the version, so that a mixture shows."""
    arrays: dict[str, Any] = {
        "weight": np.full((n, n), version, np.float32),
        "bias": np.full(n, version, np.float64),
        "scale": np.array(version, np.int64),
    }
    return ModelInfo(version, arrays)


def test_a_reader_gets_the_newest_publication_once() -> None:
    """The version does not matter: an evaluator may get an older model after a newer one."""
    channel = ModelChannel(model_layout(model(0)))
    assert (channel.poll(), channel.publications) == (None, 0)
    for version in (0, 10, 20, 5):
        channel.publish(model(version))
    got = channel.poll()
    assert got is not None and got.version == 5
    assert channel.poll() is None
    for version in (2, 3, 4):
        channel.publish(model(version))
    # an earlier read does not change
    kinds = {name: (array.dtype.name, array.shape) for name, array in got.arrays.items()}
    assert kinds == {"weight": ("float32", (3, 3)), "bias": ("float64", (3,)), "scale": ("int64", ())}
    assert all((array == 5).all() for array in got.arrays.values())
    with pytest.raises(ValueError, match="differ"):
        channel.publish(ModelInfo(1, {"weight": np.zeros(2, np.float32)}))


N_READERS = times(2, 4)
READS = times(500, 26_000)
"""Of each reader; more than 1e5 in all with TEST_FULL=1."""
MOST_READS = 100_000
NEW, TORN = 20, 1
"""Each reader continues until it has read this many new models and torn copies; fewer would prove nothing."""


def read(_: Reporter, channel: ModelChannel) -> Counter[str]:
    """Copy the newest model again and again."""
    counts, version = Counter[str](), -1
    while counts["whole"] < READS or (
        (counts["new"] < NEW or counts["torn"] < TORN) and counts["whole"] < MOST_READS
    ):
        got = channel._try_copy(channel.publications)
        if got is None:
            counts["torn"] += channel.publications > 0
            continue
        counts["whole"] += 1
        counts["mixed"] += any(np.any(array != got.version) for array in got.arrays.values())
        counts["backward"] += got.version < version
        counts["new"] += got.version > version
        version = got.version
    return counts


def test_a11_no_reader_returns_a_mixture_or_an_older_model() -> None:
    """The arrays are so large that the writer overtakes copies."""
    forkserver.start_early(LIGHT_PRELOAD)
    ready = model(0, n=64)
    channel, version = ModelChannel(model_layout(ready)), 0
    readers = [Child(f"reader {i}", read, (channel,)) for i in range(N_READERS)]
    try:
        while not all(reader.poll() for reader in readers):
            for _ in range(256):
                for array in ready.arrays.values():
                    array.fill(version)
                channel.publish(ModelInfo(version, ready.arrays))
                version += 1
        for counts in [reader.result() for reader in readers]:
            assert (counts["mixed"], counts["backward"]) == (0, 0)
            assert counts["whole"] >= READS and counts["new"] >= NEW and counts["torn"] >= TORN
    finally:
        for reader in readers:
            reader.end()


# -- wake-ups, and too little of everything ------------------------------------------


@pytest.fixture
def no_collection() -> Iterator[None]:
    """Reference cycles of other tests must not close descriptors between two counts."""
    gc.disable()
    yield
    gc.enable()


def open_descriptors() -> set[str]:
    return {path.name for path in Path("/proc/self/fd").iterdir()}


@pytest.mark.usefixtures("no_collection")
@pytest.mark.parametrize("kind", ["eventfd", "pipe"])
def test_a_child_sleeps_until_its_parent_sets_the_event(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if kind == "pipe":
        monkeypatch.delattr(os, "eventfd")
    before = open_descriptors()
    event, fork = SharedEvent(), multiprocessing.get_context("fork")
    event.set()
    event.set()
    event.wait(600)
    event.wait(0)  # it is no longer set
    child = fork.Process(target=event.wait, args=(600,))
    child.start()
    assert child.is_alive()
    event.set()
    child.join(60)
    assert child.exitcode == 0
    child.close()
    event.close()
    event.set()  # does nothing
    assert open_descriptors() == before


@pytest.mark.usefixtures("no_collection")
@pytest.mark.parametrize(
    ("call", "number", "message"),
    [
        ("posix_fallocate", errno.ENOSPC, "^an actor's ring: No space left on device\n"),
        ("memfd_create", errno.EMFILE, "ulimit -n"),
    ],
)
def test_too_little_memory_or_too_few_descriptors_are_named(
    call: str, number: int, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    before = open_descriptors()
    monkeypatch.setattr(os, call, refuse)
    with pytest.raises(ResourceError, match=message):
        Ring(COUNTING_COLUMNS, 4096)
    assert open_descriptors() == before


def test_without_memfd_create_an_unlinked_file_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "memfd_create")
    monkeypatch.delattr(os, "posix_fallocate")
    block = SharedBlock(3 << 20, "test")
    block.words((3 << 20) - 8, 1)[0] = 7
    assert block.words((3 << 20) - 8, 1)[0] == 7
