"""Shared memory: layout, inheritance by child processes, and errors when there is too little of it."""

from __future__ import annotations

import errno
import gc
import multiprocessing
import os
import pickle
from pathlib import Path

import numpy as np
import pytest

from border_cli.core.errors import ResourceError
from border_cli.runtime import transport as shared_memory
from border_cli.runtime.clock import Backoff
from border_cli.runtime.transport import Ring
from tests.fakes import COUNTING_COLUMNS


def open_descriptors() -> set[str]:
    gc.collect()  # reference cycles of other tests must not close descriptors between two counts
    return {path.name for path in Path("/proc/self/fd").iterdir()}


def test_words_and_arrays_are_views_of_one_block() -> None:
    layout = shared_memory.Layout()
    first, second = layout.reserve(8), layout.reserve(3 * 4)
    assert (first, second, layout.size) == (0, 64, 128)
    block = shared_memory.SharedBlock(layout.size, "test")
    block.words(first, 1)[0] = -5
    block.array(second, (3,), "float32")[:] = [1, 2, 3]
    assert block.words(first, 1)[0] == -5
    np.testing.assert_array_equal(block.array(second, (3,), "float32"), [1, 2, 3])
    assert block.array(0, (128,), "uint8").sum() > 0


def test_a_block_can_only_be_inherited_by_a_child() -> None:
    with pytest.raises(RuntimeError, match="inheritance"):
        pickle.dumps(shared_memory.SharedBlock(64, "test"))


@pytest.mark.parametrize("kind", ["eventfd", "pipe"])
def test_a_child_sleeps_until_its_parent_sets_the_event(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if kind == "pipe":
        monkeypatch.delattr(os, "eventfd")
    before = open_descriptors()
    event, fork = shared_memory.SharedEvent(), multiprocessing.get_context("fork")
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


def test_a_ring_leaves_no_descriptor() -> None:
    before = open_descriptors()
    ring = Ring(COUNTING_COLUMNS, 64)
    assert len(open_descriptors()) > len(before)
    del ring
    assert open_descriptors() == before


def test_too_little_memory_is_an_error_with_both_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    before = open_descriptors()

    def no_space(fd: int, offset: int, size: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", no_space)
    with pytest.raises(ResourceError, match=r"an actor's ring needs \d+\.\d MiB, \d+\.\d MiB are free"):
        Ring(COUNTING_COLUMNS, 4096)
    assert open_descriptors() == before


def test_running_out_of_descriptors_names_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_descriptor(name: str) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(os, "memfd_create", no_descriptor)
    with pytest.raises(ResourceError, match="ulimit -n"):
        shared_memory.SharedBlock(64, "test")


def test_without_memfd_create_an_unlinked_file_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "memfd_create")
    monkeypatch.delattr(os, "posix_fallocate")
    block = shared_memory.SharedBlock(3 << 20, "test")
    block.words((3 << 20) - 8, 1)[0] = 7
    assert block.words((3 << 20) - 8, 1)[0] == 7


def test_the_fence_for_other_processors_does_not_block(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_memory, "_IN_ORDER", False)
    for _ in range(2):
        shared_memory.fence()


def test_backoff_grows_to_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr("border_cli.runtime.clock.sleep", slept.append)
    backoff = Backoff()
    for _ in range(8):
        backoff.sleep()
    assert slept == pytest.approx([1e-4, 2e-4, 4e-4, 8e-4, 1.6e-3, 3.2e-3, 5e-3, 5e-3])
