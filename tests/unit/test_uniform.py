"""The uniform replay: pending rows, sealed blocks. See also `tests/contract/test_every_buffer.py`."""

from __future__ import annotations

import numpy as np
import pytest

from border_cli.core.types import Items
from border_cli.replay.buffer import RowReplayBuffer
from border_cli.replay.n_step import NStepProcessor
from border_cli.replay.samplers import UniformSampler
from tests.rows import processed
from tests.unit.test_step_processor import SPEC, step


def buffer(capacity: int) -> RowReplayBuffer:
    return RowReplayBuffer(capacity, SPEC, UniformSampler(np.random.default_rng(0)))


def episode(start: int, length: int) -> list[Items]:
    processor = NStepProcessor(SPEC, 1, 1, 0.5)
    return [processed(processor, step(start + t, 1.0, terminated=t == length - 1)) for t in range(length)]


def test_a_row_is_sampleable_once_its_next_observation_arrived() -> None:
    b, p = buffer(10), NStepProcessor(SPEC, 1, 1, 0.5)
    b.push(processed(p, step(0, 1.0)))
    assert len(b) == 0
    b.push(processed(p, step(1, 1.0)))
    assert len(b) == 1
    batch = b.batch(1)
    assert (batch.obs["obs"].item(), batch.next_obs["obs"].item()) == (0.0, 1.0)
    with pytest.raises(ValueError, match="a batch of 2 from 1 rows"):
        b.batch(2)
    b.push(processed(p, step(2, 1.0)))
    assert b.batch(2, into=batch) is not batch


def test_a_cut_stream_is_not_continued() -> None:
    b = buffer(10)
    b.push(processed(NStepProcessor(SPEC, 1, 1, 0.5), step(0, 1.0)), actor=3)
    b.break_streams(3)
    b.push(processed(NStepProcessor(SPEC, 1, 1, 0.5), step(500, 1.0)), actor=3)
    b.push(processed(NStepProcessor(SPEC, 1, 1, 0.5), step(0, 1.0)), actor=4)
    assert len(b) == 0


def test_pending_rows_keep_blocks_open_until_the_stream_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("border_cli.replay.buffer.rows_per_block", lambda capacity, row_bytes: 4)
    b = buffer(100)
    for actor in (0, 1):
        b.push(episode(10 * actor, 9)[0], actor)  # each environment waits for a second row
    for items in episode(20, 20):
        b.push(items, 2)
    assert not any(block.sealed for block in b.state().blocks)
    b.break_streams(0)
    assert not any(block.sealed for block in b.state().blocks)
    b.break_streams()
    assert all(block.sealed for block in b.state().blocks[:-1])
    assert len(b.state().arrays["streams"]) == 0


def test_a_pending_row_that_was_overwritten_keeps_no_block_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("border_cli.replay.buffer.rows_per_block", lambda capacity, row_bytes: 4)
    b = buffer(12)
    b.push(episode(0, 9)[0], 0)
    for items in episode(20, 19):
        b.push(items, 1)
    assert [block.sealed for block in b.state().blocks].count(True) >= 2
    assert len(b.state().arrays["streams"]) == 1  # its stream can still continue
