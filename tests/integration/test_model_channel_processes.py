"""The model channel between processes: four readers never read a mixture of two models."""

from __future__ import annotations

import multiprocessing
from dataclasses import dataclass
from multiprocessing.connection import Connection

import numpy as np

from border_cli.core.types import ModelInfo
from border_cli.runtime import forkserver
from border_cli.runtime.child import Child
from border_cli.runtime.clock import Backoff
from border_cli.runtime.transport import ModelChannel, model_layout
from border_cli.runtime.worker import Reporter
from tests.fakes import LIGHT_PRELOAD
from tests.faults.amounts import times

N_READERS = 4
READS = times(6_500, 26_000)
"""Reads of each reader; together more than 1e5 with TEST_FULL=1."""
MODELS, TORN = 50, 1
"""Each reader continues until it has read this many new models and torn copies; fewer would prove nothing."""
MAX_READS = 104_000
SLOW_READS = 50
SLOW_PERIOD_S = 1e-3


@dataclass
class Counts:
    """Counts of one reader.

    models: reads that returned a newer model than the read before · polls, torn: attempts to copy, and those that the
    writer overtook; all from the fast part · worst_lag: most publications missed after a read in the slow part.
    """

    reads: int = 0
    models: int = 0
    mixed: int = 0
    backward: int = 0
    polls: int = 0
    torn: int = 0
    worst_lag: int = 0


def model(version: int) -> ModelInfo:
    """Every value is the version, so a mixture is visible. The arrays are so large that the writer overtakes copies."""
    return ModelInfo(
        version, {name: np.full((64, 64), version, np.float32) for name in ("first", "second", "last")}
    )


def reader(reporter: Reporter, models: ModelChannel, pipe: Connection) -> None:
    """Read at full speed, report it, then read while the writer is slow."""
    counts, version = Counts(), -1
    while counts.reads < READS or (needs_more_reads(models, counts) and counts.reads < MAX_READS):
        version = read_once(models, counts, version)
    counts.polls, counts.torn = models.polls, models.torn
    new_models = counts.models
    pipe.send("fast part done")
    pipe.recv()
    for _ in range(SLOW_READS):
        newest = models.publications
        backoff = Backoff(last_s=SLOW_PERIOD_S)
        while models.publications == newest:
            backoff.sleep()
        newest = models.publications
        version = read_once(models, counts, version)
        counts.worst_lag = max(counts.worst_lag, newest - models.seen)
    counts.models = new_models
    pipe.send(counts)


def needs_more_reads(models: ModelChannel, counts: Counts) -> bool:
    return counts.models < MODELS or models.torn < TORN


def read_once(models: ModelChannel, counts: Counts, version: int) -> int:
    """Poll once and return the version that the reader has then.

    The reader resets `seen`, so that each poll copies, even if new models are rare because the processes share a core.
    """
    seen, models.seen = models.seen, 0
    got = models.poll()
    if got is None:
        models.seen = seen
        return version
    counts.reads += 1
    counts.mixed += any(np.any(array != got.version) for array in got.arrays.values())
    counts.backward += got.version < version
    counts.models += got.version > version
    return got.version


def test_a11_no_reader_returns_a_mixture_or_an_older_model(capsys) -> None:
    forkserver.start_early(LIGHT_PRELOAD)
    models = ModelChannel(model_layout(model(0)))
    pipes, processes = [], []
    for i in range(N_READERS):
        ours, theirs = multiprocessing.Pipe()
        processes.append(Child(f"reader {i}", reader, (models, theirs)))
        theirs.close()
        pipes.append(ours)
    try:
        version = publish_fast(models, pipes)
        all_counts = publish_slowly(models, pipes, version)
    finally:
        for process in processes:
            process.end()
        for pipe in pipes:
            pipe.close()
    report(all_counts, capsys)
    assert sum(a.reads for a in all_counts) >= N_READERS * READS
    assert min(a.models for a in all_counts) >= MODELS
    assert min(a.torn for a in all_counts) >= TORN
    assert [a.mixed for a in all_counts] == [0] * N_READERS
    assert [a.backward for a in all_counts] == [0] * N_READERS
    assert max(a.worst_lag for a in all_counts) <= 3


def publish_fast(models: ModelChannel, pipes: list[Connection]) -> int:
    """Publish without a pause until every reader has read enough. Returns the next version."""
    version, reading = 0, list(pipes)
    ready = model(0)
    while reading:
        for _ in range(256):
            for array in ready.arrays.values():
                array.fill(version)
            models.publish(ModelInfo(version, ready.arrays))
            version += 1
        for pipe in [pipe for pipe in reading if pipe.poll()]:
            assert pipe.recv() == "fast part done"
            reading.remove(pipe)
    return version


def publish_slowly(models: ModelChannel, pipes: list[Connection], version: int) -> list[Counts]:
    """Publish every millisecond until every reader has sent its counts."""
    for pipe in pipes:
        pipe.send("slow part")
    all_counts: list[Counts] = []
    while len(all_counts) < N_READERS:
        models.publish(model(version))
        version += 1
        for pipe in multiprocessing.connection.wait(pipes, SLOW_PERIOD_S):
            all_counts.append(pipe.recv())
            pipes.remove(pipe)
            pipe.close()
    return all_counts


def report(all_counts: list[Counts], capsys) -> None:
    polls, torn = sum(a.polls for a in all_counts), sum(a.torn for a in all_counts)
    with capsys.disabled():
        print(
            f"\nmodel channel: {sum(a.reads for a in all_counts)} whole reads of "
            f"{sum(a.models for a in all_counts)} new models, {torn / polls:.2%} of tries torn"
        )
