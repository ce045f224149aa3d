"""The replay: streams and sealed blocks, prioritised sampling by hand, and its trees against plain sums.

See also `tests/contract/test_every_buffer.py`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from border_cli.actors.sampler import RowProcessor
from border_cli.agents.dqn.config import DqnConfig
from border_cli.config.schema import ActorManagerConfig, BufferConfig, EnvConfig, TrainConfig, TrainerConfig
from border_cli.config.validate import least_capacity
from border_cli.core.errors import IncompatibleStateError
from border_cli.core.spaces import ActionSpec, EnvSpec, ObsLeaf, ObsSpec
from border_cli.core.types import Items, empty_items, item_columns
from border_cli.replay.buffer import RowReplayBuffer, make_buffer
from border_cli.replay.config import PrioritizedConfig
from border_cli.replay.samplers import PrioritizedSampler, SumTree, UniformSampler
from tests.fakes import processed
from tests.faults.amounts import times
from tests.unit.test_step_processor import SPEC, joined, step, transitions


def buffer(capacity: int) -> RowReplayBuffer:
    return RowReplayBuffer(capacity, SPEC, UniformSampler(np.random.default_rng(0)))


def row(t: int, terminated: bool = False) -> Items:
    """Return the row of an env step that begins a stream."""
    return processed(RowProcessor(SPEC, 1), step(t, 1.0, terminated=terminated))


def episode(start: int, length: int) -> list[Items]:
    processor = RowProcessor(SPEC, 1)
    return [processed(processor, step(start + t, 1.0, terminated=t == length - 1)) for t in range(length)]


def test_a_cut_stream_is_not_continued() -> None:
    replay = buffer(10)
    replay.push(row(0), actor=3)
    replay.break_streams(3)
    replay.push(row(500), actor=3)
    replay.push(row(0), actor=4)
    assert len(replay) == 0


def test_a_block_is_sealed_once_none_of_its_rows_can_change(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("border_cli.replay.buffer.rows_per_block", lambda capacity, row_bytes: 4)
    replay = buffer(22)

    def sealed() -> list[bool]:
        return [block.sealed for block in replay.state().blocks]

    def names() -> list[str]:
        return [block.name for block in replay.state().blocks]

    for actor in (0, 1):
        replay.push(row(10 * actor), actor)
    for items in episode(20, 7):  # 8 rows, with the final observation
        replay.push(items, 2)
    assert sealed() == [False, True, False]
    replay.break_streams(0)
    assert sealed() == [False, True, False]
    replay.break_streams(1)
    assert sealed() == [True, True, False]
    for items in episode(40, 11):
        replay.push(items, 2)
    assert sealed() == [True] * 6 and names()[5] == "rows-000000005-000000000"  # the last one has two rows
    before = names()
    replay.push(row(0), 2)
    assert sealed() == [False, True, True, True, True, True]
    assert names() == ["rows-000000000-000000001", *before[1:]]


def test_rows_of_more_environments_than_slots_are_kept_as_far_as_there_is_room() -> None:
    replay = RowReplayBuffer(8, SPEC, UniformSampler(np.random.default_rng(0)))
    processor = RowProcessor(SPEC, 50)
    for t in range(5):
        processor.add(joined(*(step(t, 1.0, env=env) for env in range(50))))
        replay.push(processor.take())
    assert len(replay) == 0  # the next row of each overwrites it
    for t in range(5, 8):
        processor.add(step(t, 1.0))
        replay.push(processor.take())
    assert {transition[0] for transition in transitions(replay)} == {5.0, 6.0}


@settings(max_examples=times(30, 400), deadline=None)
@given(
    st.sampled_from([None, 1, 2, 7]),
    st.integers(1, 16),
    st.integers(1, 20),
    st.integers(1, 32),
    st.integers(1, 256),
)
def test_the_least_capacity_always_offers_a_batch(
    length: int | None, stack: int, n_step: int, n_envs: int, batch: int
) -> None:
    """Endless episodes."""
    leaf = ObsLeaf("obs", (), "box", (1,) if stack == 1 else (stack, 1), "float32", stack=stack)
    spec = EnvSpec(ObsSpec((leaf,)), ActionSpec("discrete", n=2))
    config = TrainConfig(
        agent=DqnConfig(batch_size=batch, gru=length, sequence_length=length or 1, burn_in=length or 0),
        buffer=BufferConfig(n_step=n_step),
        env=EnvConfig(frame_stack=stack),
        trainer=TrainerConfig(type="sync"),
        actor_manager=ActorManagerConfig(envs_per_actor=n_envs),
    )
    config.buffer.capacity = least_capacity(config)
    shape = config.agent.sequences
    replay = make_buffer(config.buffer, spec, 0, sequences=shape)
    ready = []
    for t in range(2 * config.buffer.capacity // n_envs + 600):
        items = empty_items(item_columns(spec), n_envs)
        items["env"][:], items["step"][:] = np.arange(n_envs), t
        replay.push(items)
        ready.append(len(replay))
    full = next(t for t, n in enumerate(ready) if n >= batch)
    assert min(ready[full:]) >= batch


def make_sampler(n: int = 4, **options: Any) -> PrioritizedSampler:
    """Return a sampler with slots 1 to n."""
    config = PrioritizedConfig(capacity=n, **{"alpha": 1.0, "priority_eps": 1e-9, **options})
    sampler = PrioritizedSampler(config, np.random.default_rng(0))
    sampler.begin(n + 1)
    sampler.added(np.arange(1, n + 1))
    return sampler


def sample(sampler: PrioritizedSampler, size: int, n: int = 4) -> tuple[np.ndarray, np.ndarray]:
    return sampler.sample(size, np.arange(n + 1) > 0, n + 1, n)


@pytest.mark.parametrize(("alpha", "errors"), [(1.0, [1.0, 2.0, 3.0, 4.0]), (0.5, [1.0, 4.0, 9.0, 16.0])])
def test_draws_are_stratified_and_proportional_to_error_to_alpha(alpha: float, errors: list[float]) -> None:
    sampler = make_sampler(alpha=alpha)
    sampler.update(np.array([1, 2, 3, 4]), np.array(errors))
    slots, _ = sample(sampler, 1000)
    assert np.bincount(slots)[1:].tolist() == pytest.approx([100, 200, 300, 400], abs=1)


def test_weights_by_hand() -> None:
    """With β = 0.5 and 4 rows, a row with probability p has the weight (4·p)^-0.5."""
    sampler = make_sampler(beta_start=0.5, beta_final=0.5)
    # Probabilities 1/16, 1/8, 3/16, 5/8. The two stratified draws never give the rare slot 1 with this seed.
    sampler.update(np.array([1, 2, 3, 4]), np.array([1.0, 2.0, 3.0, 10.0]))
    weight_of = {slot: (4 * share) ** -0.5 for slot, share in enumerate((1 / 16, 1 / 8, 3 / 16, 5 / 8), 1)}
    slots, weights = next(
        drawn for _ in range(100) if 1 not in (drawn := sample(sampler, 2))[0] and 2 in drawn[0]
    )
    greatest = max(weight_of[slot] for slot in slots)
    assert greatest == pytest.approx(2.0**0.5)
    assert weights.tolist() == pytest.approx([weight_of[slot] / greatest for slot in slots])
    assert weights.dtype == np.float32


def test_a_new_row_has_the_largest_priority_so_far() -> None:
    sampler = make_sampler()
    assert sampler.priorities(np.array([1]))["priority"].tolist() == [1.0]
    sampler.update(np.array([1]), np.array([7.0]))
    sampler.update(np.array([1]), np.array([0.5]))
    sampler.removed(np.array([2]))
    sampler.added(np.array([2]))
    assert sampler.priorities(np.array([1, 2, 3]))["priority"].tolist() == pytest.approx([0.5, 7.0, 1.0])


def test_removed_rows_are_never_drawn_even_after_an_update() -> None:
    sampler = make_sampler()
    sampler.removed(np.array([2, 3]))
    sampler.update(np.array([2, 4]), np.array([100.0, 1.0]))
    assert set(sample(sampler, 64)[0]) == {1, 4}


def test_huge_and_tiny_errors_work_together() -> None:
    sampler = make_sampler(alpha=4.0)
    sampler.update(np.array([1, 2, 3, 4]), np.array([3e38, 1e-30, 0.0, 1.0], np.float32))
    slots, weights = sample(sampler, 32)
    assert set(slots) == {1}
    assert np.isfinite(weights).all()


def test_beta_grows_with_the_batches_and_is_restored_with_the_max_priority() -> None:
    sampler = make_sampler(beta_start=0.4, beta_final=1.0, beta_opt_steps=4)
    sampler.update(np.array([1]), np.array([7.0]))
    betas, states = [], []
    for _ in range(6):
        betas.append(sampler.beta())
        states.append(sampler.generator_state())
        sample(sampler, 2)
    assert betas == pytest.approx([0.4, 0.55, 0.7, 0.85, 1.0, 1.0])
    other = make_sampler(beta_start=0.4, beta_final=1.0, beta_opt_steps=4)
    other.load_generator_state(states[2])
    assert other.beta() == pytest.approx(0.7)
    other.added(np.array([2]))
    assert other.priorities(np.array([2]))["priority"].tolist() == pytest.approx([7.0])
    with pytest.raises(IncompatibleStateError):
        other.load_generator_state(states[2] | {"max_priority": -1.0})


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 700), st.sampled_from([1, 4, 8192]), st.integers(0, 2**32 - 1))
def test_the_tree_sums_and_depends_only_on_its_leaves(n: int, most_on_top: int, seed: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("border_cli.replay.samplers._MAX_TOP", most_on_top)
        rng, sums, again = np.random.default_rng(seed), SumTree(n), SumTree(n)
    plain = np.zeros(n)
    for _ in range(5):
        ix = rng.integers(0, n, rng.integers(1, 20))
        values = rng.random(len(ix)) * 10.0 ** rng.integers(-9, 9)
        plain[ix] = values
        sums.set(ix, values)
    again.set(np.arange(n), plain)
    assert (sums.leaves == plain).all()
    share = np.append(rng.random(50), np.nextafter(1.0, 0.0))
    leaves, total = sums.find(share)
    assert (again.find(share)[0] == leaves).all() and again.find(share)[1] == total
    assert total == pytest.approx(plain.sum())
    assert (plain[leaves] > 0).all()
    edges, slack = np.concatenate([[0.0], plain.cumsum()]), 1e-9 * total
    assert (edges[leaves] <= share * total + slack).all()
    assert (share * total <= edges[leaves + 1] + slack).all()
