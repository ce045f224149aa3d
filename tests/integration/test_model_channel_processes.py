"""The model channel between processes: four readers never see a mixture, whatever the writer does."""

from __future__ import annotations

import multiprocessing
from dataclasses import dataclass
from multiprocessing.connection import Connection

import numpy as np

from border_cli.core.types import ModelInfo
from border_cli.runtime import forkserver
from border_cli.runtime.clock import Backoff
from border_cli.transport import ModelChannel, model_layout
from tests.fakes import LIGHT_PRELOAD
from tests.faults.amounts import times

N_READERS = 4
READS = times(6_500, 26_000)
"""Each, so that together there are more than 1e5 in the full count."""
MODELS, TORN = 50, 1
"""Each reader reads on until it has met so many new models and so many torn copies: else nothing is shown."""
MOST_READS = 104_000
SLOW_READS = 50
SLOW_PERIOD_S = 1e-3


@dataclass
class Account:
    """What one reader saw. models: reads that brought a newer model than the one before.

    polls, torn: tries to copy, and those that were overtaken. All these are of the fast part. worst_lag: publications
    it was behind after a look, while the writer was slow.
    """

    reads: int = 0
    models: int = 0
    mixed: int = 0
    backward: int = 0
    polls: int = 0
    torn: int = 0
    worst_lag: int = 0


def model(version: int) -> ModelInfo:
    """Every value is the version, so that a mixture shows; large enough to be overtaken."""
    return ModelInfo(
        version, {name: np.full((64, 64), version, np.float32) for name in ("first", "second", "last")}
    )


def reader(models: ModelChannel, pipe: Connection) -> None:
    """Read at full speed; say so; then read on beside the slow writer."""
    account, version = Account(), -1
    while account.reads < READS or (lacks_overlap(models, account) and account.reads < MOST_READS):
        version = read_once(models, account, version)
    account.polls, account.torn = models.polls, models.torn
    new_models = account.models
    pipe.send("fast part done")
    pipe.recv()
    for _ in range(SLOW_READS):
        newest = models.publications
        backoff = Backoff(last_s=SLOW_PERIOD_S)
        while models.publications == newest:
            backoff.sleep()
        newest = models.publications
        version = read_once(models, account, version)
        account.worst_lag = max(account.worst_lag, newest - models.seen)
    account.models = new_models
    pipe.send(account)


def lacks_overlap(models: ModelChannel, account: Account) -> bool:
    return account.models < MODELS or models.torn < TORN


def read_once(models: ModelChannel, account: Account, version: int) -> int:
    """One look; the version the reader has then.

    The reader forgets what it has seen, so that it copies at full speed also where a new model is rare
    because the processes share a core.
    """
    seen, models.seen = models.seen, 0
    got = models.poll()
    if got is None:
        models.seen = seen
        return version
    account.reads += 1
    account.mixed += any(np.any(array != got.version) for array in got.arrays.values())
    account.backward += got.version < version
    account.models += got.version > version
    return got.version


def test_a11_no_reader_uses_a_mixture_or_goes_back(capsys) -> None:
    forkserver.start_early(LIGHT_PRELOAD)
    models = ModelChannel(model_layout(model(0)))
    pipes, processes = [], []
    for i in range(N_READERS):
        ours, theirs = multiprocessing.Pipe()
        processes.append(forkserver.start_process(reader, (models, theirs), f"reader-{i}"))
        theirs.close()
        pipes.append(ours)
    try:
        version = publish_fast(models, pipes)
        accounts = publish_slowly(models, pipes, version)
    finally:
        for process in processes:
            forkserver.end_process(process)
        for pipe in pipes:
            pipe.close()
    report(accounts, capsys)
    assert sum(a.reads for a in accounts) >= N_READERS * READS
    assert min(a.models for a in accounts) >= MODELS
    assert min(a.torn for a in accounts) >= TORN
    assert [a.mixed for a in accounts] == [0] * N_READERS
    assert [a.backward for a in accounts] == [0] * N_READERS
    assert max(a.worst_lag for a in accounts) <= 3


def publish_fast(models: ModelChannel, pipes: list[Connection]) -> int:
    """Publish without a pause until every reader has read enough; the next version."""
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


def publish_slowly(models: ModelChannel, pipes: list[Connection], version: int) -> list[Account]:
    """Publish every millisecond until every reader has given account."""
    for pipe in pipes:
        pipe.send("slow part")
    accounts: list[Account] = []
    while len(accounts) < N_READERS:
        models.publish(model(version))
        version += 1
        for pipe in multiprocessing.connection.wait(pipes, SLOW_PERIOD_S):
            accounts.append(pipe.recv())
            pipes.remove(pipe)
            pipe.close()
    return accounts


def report(accounts: list[Account], capsys) -> None:
    polls, torn = sum(a.polls for a in accounts), sum(a.torn for a in accounts)
    with capsys.disabled():
        print(
            f"\nmodel channel: {sum(a.reads for a in accounts)} whole reads of "
            f"{sum(a.models for a in accounts)} new models, {torn / polls:.2%} of tries torn"
        )
