"""The uniform replay against a naive one that keeps whole transitions."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from border_cli.config.schema import BufferConfig
from border_cli.core.items import Items
from border_cli.replay.buffer import RowReplayBuffer
from border_cli.replay.step_processor import NStepProcessor
from border_cli.replay.uniform import UniformDrawing, buffer_bytes, make_buffer
from tests.unit.test_step_processor import SPEC, step


def buffer(capacity: int, seed: int = 0) -> RowReplayBuffer:
    return RowReplayBuffer(capacity, SPEC, UniformDrawing(np.random.default_rng(seed)))


def episode(processor: NStepProcessor, start: int, length: int, env: int = 0) -> list[Items]:
    return [
        processor.process(step(start + t, 1.0, terminated=t == length - 1, env=env)) for t in range(length)
    ]


def test_a_row_waits_for_its_next_observation() -> None:
    b, p = buffer(10), NStepProcessor(SPEC, 1, 1, 0.5)
    b.push(p.process(step(0, 1.0)))
    assert len(b) == 0
    b.push(p.process(step(1, 1.0)))
    assert len(b) == 1
    batch = b.batch(1)
    assert (batch.obs["obs"].item(), batch.next_obs["obs"].item()) == (0.0, 1.0)
    with pytest.raises(ValueError, match="a batch of 2 from 1 rows"):
        b.batch(2)


def test_the_final_observation_is_no_transition() -> None:
    b, p = buffer(10), NStepProcessor(SPEC, 1, 1, 0.5)
    for items in episode(p, 0, 2) + episode(p, 100, 2):
        b.push(items)
    assert len(b) == 4
    batch = b.batch(4)
    for _ in range(50):
        batch = b.batch(4)
        assert (batch.next_obs["obs"] == batch.obs["obs"] + 1).all()
        assert (batch.terminated == np.isin(batch.obs["obs"][:, 0], [1, 101])).all()


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 5),
    st.integers(30, 60),
    st.lists(st.tuples(st.integers(0, 1), st.integers(0, 2), st.integers(1, 9)), min_size=1, max_size=40),
)
def test_against_whole_transitions(n: int, capacity: int, plan: list[tuple[int, int, int]]) -> None:
    """Every sampled row is one that a buffer of whole transitions would hold; every such row can be sampled."""
    b = buffer(capacity)
    processors = {(actor, env): NStepProcessor(SPEC, 3, n, 0.5) for actor in range(2) for env in range(3)}
    times = dict.fromkeys(processors, 0)
    for actor, env, length in plan:
        key = (actor, env)
        start = 1000 * actor + 10_000 * env + times[key]
        times[key] += length + 1
        for items in episode(processors[key], start, length, env):
            if len(items["span"]):
                b.push(items, actor)
    if len(b) == 0:
        return
    for _ in range(5):
        batch = b.batch(len(b))
        span = np.round(np.log2(1 / batch.discount)).astype(int)
        assert (batch.next_obs["obs"][:, 0] - batch.obs["obs"][:, 0] == span).all()
        assert ((span >= 1) & (span <= n)).all()
        assert np.allclose(batch.reward, 2 - 2.0 ** (1 - span))


def test_a_broken_stream_is_not_continued() -> None:
    b = buffer(10)
    b.push(NStepProcessor(SPEC, 1, 1, 0.5).process(step(0, 1.0)), actor=3)
    b.break_streams(3)
    b.push(NStepProcessor(SPEC, 1, 1, 0.5).process(step(500, 1.0)), actor=3)
    b.push(NStepProcessor(SPEC, 1, 1, 0.5).process(step(0, 1.0)), actor=4)
    assert len(b) == 0


def test_what_waits_keeps_blocks_open_until_its_streams_are_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("border_cli.replay.buffer.rows_per_block", lambda capacity, row_bytes: 4)
    b, processors = buffer(100), [NStepProcessor(SPEC, 1, 1, 0.9, None) for _ in range(2)]
    for actor in (0, 1):
        b.push(episode(processors[actor], 10 * actor, 9)[0], actor)  # each waits for a second row
    for items in episode(NStepProcessor(SPEC, 1, 1, 0.9, None), 20, 20):
        b.push(items, 2)
    assert not any(block.sealed for block in b.state().blocks)
    b.break_streams(0)
    assert not any(block.sealed for block in b.state().blocks)
    b.break_streams()
    assert [block.sealed for block in b.state().blocks[:-1]] == [True] * (len(b.state().blocks) - 1)
    assert len(b.state().arrays["streams"]) == 0


def test_a_row_that_waited_until_it_was_overwritten_keeps_no_block_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("border_cli.replay.buffer.rows_per_block", lambda capacity, row_bytes: 4)
    b = buffer(12)
    b.push(episode(NStepProcessor(SPEC, 1, 1, 0.9, None), 0, 9)[0], 0)
    for items in episode(NStepProcessor(SPEC, 1, 1, 0.9, None), 20, 19):
        b.push(items, 1)
    live = [block.sealed for block in b.state().blocks]
    assert live.count(True) >= 2
    assert len(b.state().arrays["streams"]) == 1  # it is still waited for, by nobody


def test_seeded() -> None:
    def draws(seed: int) -> list[float]:
        b, p = make_buffer(BufferConfig(capacity=50), SPEC, seed), NStepProcessor(SPEC, 1, 1, 0.5)
        for items in episode(p, 0, 30):
            b.push(items)
        return [float(x) for _ in range(3) for x in b.batch(8).obs["obs"][:, 0]]

    assert draws(1) == draws(1) != draws(2)


def test_a_batch_is_filled_anew_only_when_it_is_given_back() -> None:
    b, p = buffer(40), NStepProcessor(SPEC, 1, 1, 0.5)
    for items in episode(p, 0, 30):
        b.push(items)
    first = b.batch(8)
    seen = {name: array.copy() for name, array in vars(first).items() if isinstance(array, np.ndarray)}
    other = b.batch(8)
    assert other is not first
    for name, array in seen.items():
        assert (getattr(first, name) == array).all(), name
    obs = first.obs["obs"]
    again = b.batch(8, into=first)
    assert again is first and again.obs["obs"] is obs
    assert (again.ix == obs[:, 0] + 1).all() and (again.next_obs["obs"] == obs + 1).all()
    assert (again.ix != seen["ix"]).any()
    assert b.batch(4, into=first) is not first


def test_the_state_of_the_draws_leads_to_the_same_batches_and_taking_it_changes_nothing() -> None:
    def filled() -> RowReplayBuffer:
        b, p = buffer(40), NStepProcessor(SPEC, 1, 1, 0.5)
        for items in episode(p, 0, 30):
            b.push(items)
        return b

    plain, watched, resumed = filled(), filled(), filled()
    for _ in range(20):
        assert (watched.batch(4).ix == plain.batch(4).ix).all()
        state = watched.generator_state()
        assert json.loads(json.dumps(state)) == state
        resumed._drawing.pushed()
        resumed._drawing._rng.bit_generator.state = state["generator"]
        for _ in range(state["batches_taken"]):
            resumed.batch(state["batch_size"])
        assert (resumed.batch(4).ix == watched.batch(4).ix).all()
        plain.batch(4)


def test_bytes_are_what_it_takes() -> None:
    b = make_buffer(BufferConfig(capacity=1000), SPEC, 0)
    taken = b._data.nbytes + b._next.nbytes
    assert buffer_bytes(BufferConfig(capacity=1000), SPEC) == taken
