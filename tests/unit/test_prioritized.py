"""Prioritised sampling against values by hand, and its trees against plain sums."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from border_cli.core.errors import IncompatibleStateError
from border_cli.replay.config import PrioritizedConfig
from border_cli.replay.samplers import MinTree, PrioritizedSampler, SumTree


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 700), st.sampled_from([1, 4, 8192]), st.integers(0, 2**32 - 1))
def test_the_trees_have_sums_and_minima(n: int, most_on_top: int, seed: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("border_cli.replay.samplers._MAX_TOP", most_on_top)
        check_trees(n, seed)


def check_trees(n: int, seed: int) -> None:
    rng, sums, least = np.random.default_rng(seed), SumTree(n), MinTree(n)
    plain = np.zeros(n)
    for _ in range(5):
        ix = rng.integers(0, n, rng.integers(1, 20))
        values = rng.random(len(ix)) * 10.0 ** rng.integers(-9, 9)
        plain[ix] = values
        sums.set(ix, values)
        least.set(ix, values)
    assert (sums.leaves == plain).all()
    assert least.min == least.leaves.min()
    share = np.append(rng.random(50), np.nextafter(1.0, 0.0))
    found, total = sums.find(share)
    assert total == pytest.approx(plain.sum())
    mass = share * total
    assert (plain[found] > 0).all()
    edges = np.concatenate([[0.0], plain.cumsum()])
    slack = 1e-9 * total
    assert ((edges[found] <= mass + slack) & (mass <= edges[found + 1] + slack)).all()


def test_a_tree_depends_only_on_its_leaves() -> None:
    rng = np.random.default_rng(0)
    n = 300_000  # two levels and the root
    one, two = SumTree(n), SumTree(n)
    for _ in range(300):
        one.set(rng.integers(0, n, 64), rng.random(64))
    two.set(np.arange(n), one.leaves)
    share = rng.random(10_000)
    for mine, others in zip(one.find(share), two.find(share), strict=True):
        assert np.array_equal(mine, others)


def sampler(n: int = 4, **options: Any) -> PrioritizedSampler:
    """Return a sampler with slots 1 to n."""
    config = PrioritizedConfig(capacity=n, **{"alpha": 1.0, "priority_eps": 1e-9, **options})
    made = PrioritizedSampler(config, np.random.default_rng(0))
    made.added(np.arange(1, n + 1))
    return made


def sample(made: PrioritizedSampler, size: int, n: int = 4) -> tuple[np.ndarray, np.ndarray]:
    slots, weights = made.sample(size, np.arange(n + 1), n, n)
    return slots[0], weights


@pytest.mark.parametrize(("alpha", "errors"), [(1.0, [1.0, 2.0, 3.0, 4.0]), (0.5, [1.0, 4.0, 9.0, 16.0])])
def test_draws_are_stratified_and_proportional_to_error_to_the_alpha(
    alpha: float, errors: list[float]
) -> None:
    made = sampler(alpha=alpha)
    made.update(np.array([1, 2, 3, 4]), np.array(errors))
    slots, _ = sample(made, 1000)
    assert np.bincount(slots)[1:].tolist() == pytest.approx([100, 200, 300, 400], abs=1)


@pytest.mark.parametrize(("normalizer", "divisor"), [("batch", 2.0**0.5), ("all", 4.0**0.5)])
def test_weights_by_hand(normalizer: str, divisor: float) -> None:
    """With β = 0.5 and 4 rows, a row with probability p has the weight (4·p)^-0.5."""
    made = sampler(normalizer=normalizer, beta_start=0.5, beta_final=0.5)
    # Probabilities 1/16, 1/8, 3/16, 5/8. The two stratified draws never give the rare slot 1 with this seed.
    made.update(np.array([1, 2, 3, 4]), np.array([1.0, 2.0, 3.0, 10.0]))
    weight_of = {slot: (4 * share) ** -0.5 for slot, share in enumerate((1 / 16, 1 / 8, 3 / 16, 5 / 8), 1)}
    slots, weights = next(
        drawn for _ in range(100) if 1 not in (drawn := sample(made, 2))[0] and 2 in drawn[0]
    )
    greatest = max(weight_of[slot] for slot in (slots if normalizer == "batch" else weight_of))
    assert greatest == pytest.approx(divisor)
    assert weights.tolist() == pytest.approx([weight_of[slot] / greatest for slot in slots])
    assert weights.dtype == np.float32


def test_a_new_row_has_the_largest_priority_so_far() -> None:
    made = sampler()
    assert made.priorities(np.array([1]))["priority"].tolist() == [1.0]
    made.update(np.array([1]), np.array([7.0]))
    made.update(np.array([1]), np.array([0.5]))
    made.removed(np.array([2]))
    made.added(np.array([2]))
    assert made.priorities(np.array([1, 2, 3]))["priority"].tolist() == pytest.approx([0.5, 7.0, 1.0])


def test_removed_rows_are_never_drawn_even_after_an_update() -> None:
    made = sampler(normalizer="all")
    made.removed(np.array([2, 3]))
    made.update(np.array([2, 4]), np.array([100.0, 1.0]))
    assert set(sample(made, 64)[0]) == {1, 4}


def test_huge_and_tiny_errors_work_together() -> None:
    made = sampler(alpha=4.0, normalizer="all")
    made.update(np.array([1, 2, 3, 4]), np.array([3e38, 1e-30, 0.0, 1.0], np.float32))
    slots, weights = sample(made, 32)
    assert set(slots) == {1}
    assert np.isfinite(weights).all()


def test_beta_grows_with_the_batches_and_is_restored_with_the_max_priority() -> None:
    made = sampler(beta_start=0.4, beta_final=1.0, beta_opt_steps=4)
    made.update(np.array([1]), np.array([7.0]))
    betas, states = [], []
    for _ in range(6):
        betas.append(made.beta())
        states.append(made.generator_state())
        sample(made, 2)
    assert betas == pytest.approx([0.4, 0.55, 0.7, 0.85, 1.0, 1.0])
    other = sampler(beta_start=0.4, beta_final=1.0, beta_opt_steps=4)
    other.load_generator_state(states[2], np.arange(5), 4, 4)
    assert other.beta() == pytest.approx(0.7)
    other.added(np.array([2]))
    assert other.priorities(np.array([2]))["priority"].tolist() == pytest.approx([7.0])
    with pytest.raises(IncompatibleStateError):
        other.load_generator_state(states[2] | {"max_priority": -1.0}, np.arange(5), 4, 4)
