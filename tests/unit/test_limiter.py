"""The ratio limiter: bounds and progress under random operations, and cases by hand."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from border_cli.training.ratio_limiter import RatioLimiter
from tests.faults.amounts import times

INTERVALS = [0.1, 0.25, 0.5, 1.0, 1.5, 2.0, 4.0, 7.3]


class Actors:
    """Simulated actors that use credit, publish rows, die, leave and return. `check` asserts every bound.

    least: credit that an actor waits for before it acts.
    """

    def __init__(self, limiter: RatioLimiter, n: int, least: int = 1) -> None:
        self.limiter, self.least = limiter, least
        self.taken, self.published, self.present = [0] * n, [0] * n, [True] * n

    def act(self, actor: int, steps: int) -> None:
        credit = self.limiter.credits[actor] - self.taken[actor]
        if self.present[actor] and credit >= self.least:
            self.taken[actor] += min(steps, credit)

    def publish(self, actor: int) -> None:
        self.limiter.inserted(actor, self.taken[actor] - self.published[actor])
        self.published[actor] = self.taken[actor]

    def die(self, actor: int) -> None:
        """Lose the unpublished rows. The next incarnation continues from the published ones."""
        self.taken[actor] = self.published[actor]

    def leave_or_come_back(self, actor: int) -> None:
        self.die(actor)
        self.present[actor] = not self.present[actor]
        left = self.limiter.set_present(self.present)
        assert left == ([] if self.present[actor] else [actor])
        assert self.present[actor] or self.limiter.credits[actor] == self.taken[actor]

    def grant(self) -> None:
        before = list(self.limiter.credits)
        self.limiter.grant()
        for is_present, old, new in zip(self.present, before, self.limiter.credits, strict=True):
            assert new >= old if is_present else new == old

    def act_and_publish(self, actors: range, steps: int) -> None:
        self.grant()
        for actor in actors:
            self.act(actor, steps)
            self.publish(actor)

    def check(self) -> None:
        assert sum(self.limiter.credits) <= self.limiter.allowed_env_steps
        assert sum(self.taken) <= self.limiter.allowed_env_steps
        assert all(taken <= credit for taken, credit in zip(self.taken, self.limiter.credits, strict=True))


def operate(actors: Actors, what: str, actor: int, steps: int) -> None:
    limiter, actor = actors.limiter, actor % len(actors.taken)
    match what:
        case "act":
            actors.act(actor, steps)
        case "publish":
            actors.publish(actor)
        case "grant":
            actors.grant()
        case "die":
            actors.die(actor)
        case "leave":
            actors.leave_or_come_back(actor)
        case "opt" if limiter.may_opt():
            limiter.count_opt()


KINDS = ["act", "act", "act", "publish", "publish", "opt", "opt", "grant", "grant", "die", "leave"]
OPERATIONS = st.lists(st.tuples(st.sampled_from(KINDS), st.integers(0, 7), st.integers(1, 16)), max_size=300)
SHAPE = {
    "warmup": st.integers(0, 50),
    "n": st.integers(1, 8),
    "envs": st.integers(1, 4),
    "more": st.integers(0, 80),
}
"""more: tolerance above the least one."""


@settings(max_examples=times(100, 2_000), deadline=None)
@given(
    interval=st.sampled_from([*INTERVALS, None]),
    budget=st.sampled_from([None, 101, 300]),
    operations=OPERATIONS,
    willing=st.integers(0, 7),
    others_leave=st.booleans(),
    as_one=st.booleans(),
    **SHAPE,
)
def test_b1_bounds_hold_and_one_willing_actor_is_enough(
    interval: float | None, budget: int | None, operations: Any, willing: int, others_leave: bool,
    as_one: bool, n: int, envs: int, warmup: int, more: int,
) -> None:  # fmt: skip
    """At the end all other actors are gone, or hold all their credit and never act.

    as_one: an actor steps all its environments or none, and of some of them, which reset, no env step counts.
    """
    tolerance, least = (2 if as_one else 1) * n * envs + more, envs if as_one else 1
    limiter = RatioLimiter(interval, warmup, tolerance, budget, n, envs, least)
    actors, willing = Actors(limiter, n, least), willing % n

    def check() -> None:
        actors.check()
        if interval is not None and limiter.opt_steps:
            ahead = limiter.env_steps - warmup - interval * limiter.opt_steps
            assert -1e-6 <= ahead <= tolerance + interval + 1e-6

    for operation in operations:
        operate(actors, *operation)
        check()
    are_gone = budget is not None or others_leave
    for actor in range(n):
        if actors.present[actor] != (actor == willing or not are_gone):
            actors.leave_or_come_back(actor)
    goal, rounds = limiter.opt_steps + 50, 0
    while limiter.opt_steps < goal and not limiter.budget_used(limiter.may_opt()):
        actors.act_and_publish(range(willing, willing + 1), envs)
        while limiter.may_opt() and limiter.opt_steps < goal:
            limiter.count_opt()
            check()
        rounds += 1
        assert rounds < 5000, "deadlock"


def test_a_fraction_is_computed_from_the_typed_decimal() -> None:
    limiter = RatioLimiter(0.1, 0, 10, None, 1, 1)
    limiter.inserted(0, 3)
    while limiter.may_opt():
        limiter.count_opt()
    assert limiter.opt_steps == 30  # in binary, 30·0.1 > 3


def test_b1_lost_rows_make_the_warm_up_longer() -> None:
    """All env steps allowed before the first opt step were taken, and two of their rows were lost with an actor."""
    limiter = RatioLimiter(1.0, 4, 3, None, 1, 1)
    while limiter.grant(missing=2 if limiter.env_steps == 8 else 0):
        limiter.inserted(0, limiter.credits[0] - limiter.env_steps)
    assert limiter.env_steps == 10
    for _ in range(4):
        assert limiter.may_opt()
        limiter.count_opt()
    assert not limiter.may_opt() and limiter.ratio == 1.0


def test_credit_that_is_too_little_for_a_step_of_all_environments_blocks_nothing() -> None:
    """Of 8 environments three reset in the third step, so 3 of 24 env steps of credit are left over."""
    limiter = RatioLimiter(1.0, 7, 16, 40, 1, 8, 8)
    limiter.grant()
    assert limiter.credits == [16]
    limiter.inserted(0, 8)
    limiter.grant()
    limiter.inserted(0, 13)
    assert limiter.credits == [24] and not limiter.grant()
    granted = []
    while limiter.grant(missing=2 if limiter.credits[0] - limiter.env_steps < 8 else 0):
        granted += limiter.credits
    assert granted == [26, 28, 30]  # the warm-up is longer until there is a batch
    limiter.inserted(0, 8)
    while limiter.may_opt():
        limiter.count_opt()
    limiter.grant()
    assert limiter.credits == [40] and not limiter.budget_used(may_opt=False)
    limiter.inserted(0, 5)
    assert limiter.env_steps == 34 and limiter.budget_used(may_opt=False)


def test_a_tolerance_that_could_deadlock_is_refused() -> None:
    with pytest.raises(ValueError, match="tolerance 7"):
        RatioLimiter(1.0, 0, 7, None, 4, 2)


@pytest.mark.parametrize(
    ("interval", "tolerance", "n_actors", "opt_steps"),
    [
        (2.0, 64, 1, 15),  # 64 of 66 are granted at the start; 32, half of the share, is enough for a grant
        (2.0, 64, 8, 7),  # a quarter of the tolerance, although half of the share is 4
    ],
)
def test_what_is_enough_for_a_grant(interval: float, tolerance: int, n_actors: int, opt_steps: int) -> None:
    limiter = RatioLimiter(interval, 0, tolerance, None, n_actors, 1)
    assert limiter.grant()
    for actor, credit in enumerate(limiter.credits):
        limiter.inserted(actor, credit)
    for left in range(opt_steps, 0, -1):
        assert limiter.opt_steps_until_grant() == left
        limiter.count_opt()
    assert limiter.grant()
    assert RatioLimiter(None, 10, 64).opt_steps_until_grant() > 10**9  # only insertions bring credit


def act_to_the_end(limiter: RatioLimiter, taken: list[int]) -> None:
    """Let actors use all their credit and the learner take every allowed opt step, until neither can continue."""
    while not limiter.budget_used(limiter.may_opt()):
        assert sum(limiter.credits) <= limiter.allowed_env_steps
        before = limiter.env_steps
        for actor, credit in enumerate(limiter.credits):
            assert credit >= taken[actor]
            limiter.inserted(actor, credit - taken[actor])
            taken[actor] = credit
        changed = limiter.grant()
        if limiter.may_opt():
            limiter.count_opt()
            changed = True
        assert changed or limiter.env_steps > before, "deadlock"


@pytest.mark.parametrize(("n_actors", "then"), [(1, 3), (2, 4)])
def test_b1_a_budget_is_not_exceeded_when_the_number_of_actors_changes(n_actors: int, then: int) -> None:
    """An actor continues its count, even if it was missing in a launch in between."""
    taken = [0] * 4
    limiter = RatioLimiter(1.0, 0, 16, 150, 3, 1)
    act_to_the_end(limiter, taken)
    for n, budget in ((n_actors, 170), (then, 240)):
        state, limiter = limiter.state(), RatioLimiter(1.0, 0, 16, budget, n, 1)
        limiter.load_state(state)
        act_to_the_end(limiter, taken)
        assert limiter.env_steps == sum(taken) == limiter.opt_steps == budget


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("used", used) for used in ([], [-1, 11], [3, 3], None)),
        ("base_env_steps", 11),
        ("base_opt_steps", -1),
    ],
)
def test_i4_a_state_that_would_block_for_ever_is_refused(name: str, value: object) -> None:
    state = {"env_steps": 10, "opt_steps": 5, "used": [4, 6], "base_env_steps": 0, "base_opt_steps": 0}
    RatioLimiter(1.0, 0, 16, None, 2, 1).load_state(state)
    with pytest.raises(ValueError, match=r"env steps|ratio"):
        RatioLimiter(1.0, 0, 16, None, 2, 1).load_state(state | {name: value})
