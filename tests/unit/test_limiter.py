"""The ratio limiter over every interleaving that hypothesis thinks of (acceptance: the limiter)."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from border_cli.replay.limiter import RatioLimiter
from tests.faults.amounts import seeded, times

INTERVALS = [0.1, 0.25, 0.5, 1.0, 1.5, 2.0, 4.0, 7.3]


class Actors:
    """Actors that use the credit they see, hand over when told to, and may be late for ever."""

    def __init__(self, n: int) -> None:
        self.taken = [0] * n
        self.published = [0] * n

    def act(self, limiter: RatioLimiter, actor: int, steps: int) -> None:
        room = limiter.credits[actor] - self.taken[actor]
        self.taken[actor] += min(steps, room)

    def publish(self, limiter: RatioLimiter, actor: int) -> None:
        limiter.inserted(actor, self.taken[actor] - self.published[actor])
        self.published[actor] = self.taken[actor]

    def die(self, actor: int) -> None:
        """What it had not published never happened; whoever replaces it goes on from what it had."""
        self.taken[actor] = self.published[actor]


def bounds_hold(limiter: RatioLimiter, interval: float, warmup: int, tolerance: int) -> None:
    ahead = limiter.env_steps - warmup - interval * limiter.opt_steps
    assert -1e-6 <= ahead <= tolerance + interval + 1e-6


@settings(max_examples=150, deadline=None)
@given(
    st.data(),
    st.sampled_from(INTERVALS),
    st.integers(0, 50),
    st.integers(1, 8),
    st.integers(1, 4),
    st.integers(0, 40),
)
def test_b1_bounds_at_every_opt_step(
    data: st.DataObject, interval: float, warmup: int, n: int, envs: int, extra: int
) -> None:
    tolerance = n * envs + extra
    limiter, actors = RatioLimiter(interval, warmup, tolerance, None, n, envs), Actors(n)
    for _ in range(data.draw(st.integers(1, 150))):
        what = data.draw(st.sampled_from(["act", "publish", "opt", "grant"]))
        actor = data.draw(st.integers(0, n - 1))
        if what == "act":
            actors.act(limiter, actor, data.draw(st.integers(1, 16)))
        elif what == "publish":
            actors.publish(limiter, actor)
        elif what == "grant":
            limiter.grant()
        elif limiter.may_opt():
            limiter.opted()
            bounds_hold(limiter, interval, warmup, tolerance)
        assert sum(limiter.credits) <= limiter.allowance
        assert sum(actors.taken) <= limiter.allowance


@pytest.mark.parametrize("seed", range(times(3, 200)))
def test_b1_bounds_over_many_operations(seed: int) -> None:
    """Of each seed more than hypothesis goes through; actors die as well, and others take their seats."""
    rng = seeded(f"limiter {seed}")
    interval, warmup, n, envs = rng.choice(INTERVALS), rng.randrange(51), rng.randint(1, 8), rng.randint(1, 4)
    tolerance = n * envs + rng.randrange(41)
    limiter, actors = RatioLimiter(interval, warmup, tolerance, None, n, envs), Actors(n)
    for _ in range(times(2_000, 10_000)):
        actor = rng.randrange(n)
        match rng.choice(["act", "act", "publish", "opt", "opt", "grant", "die"]):
            case "act":
                actors.act(limiter, actor, rng.randint(1, 16))
            case "publish":
                actors.publish(limiter, actor)
            case "grant":
                limiter.grant()
            case "die":
                actors.die(actor)
            case "opt" if limiter.may_opt():
                limiter.opted()
                bounds_hold(limiter, interval, warmup, tolerance)
        assert sum(limiter.credits) <= limiter.allowance
        assert sum(actors.taken) <= limiter.allowance
    before = limiter.opt_steps
    for _ in range(1_000):  # and it is stuck nowhere
        limiter.grant()
        for actor in range(n):
            actors.act(limiter, actor, envs)
            actors.publish(limiter, actor)
        while limiter.may_opt():
            limiter.opted()
            bounds_hold(limiter, interval, warmup, tolerance)
    assert limiter.opt_steps > before


@settings(max_examples=80, deadline=None)
@given(
    st.sampled_from([0.1, 0.5, 1.0, 2.0, 4.0, 7.3]),
    st.integers(0, 50),
    st.integers(1, 8),
    st.integers(1, 4),
    st.integers(0, 40),
    st.data(),
)
def test_b1_one_willing_actor_is_enough(
    interval: float, warmup: int, n: int, envs: int, extra: int, data: st.DataObject
) -> None:
    """All others are late for ever, holding all the credit they can get: the run goes on."""
    limiter, actors = RatioLimiter(interval, warmup, n * envs + extra, None, n, envs), Actors(n)
    willing = data.draw(st.integers(0, n - 1))
    rounds = 0
    while limiter.opt_steps < 50:
        limiter.grant()
        while actors.taken[willing] + envs <= limiter.credits[willing]:
            actors.act(limiter, willing, envs)
        actors.publish(limiter, willing)
        while limiter.may_opt():
            limiter.opted()
        rounds += 1
        assert rounds < 5000, "deadlock"


@pytest.mark.parametrize("interval", [0.5, 1.0, 3.0, None])
@pytest.mark.parametrize("budget", [101, 128, 999])
def test_a_budget_is_used_up_and_never_overrun(interval: float | None, budget: int) -> None:
    limiter, actors = RatioLimiter(interval, 20, 64, budget, 3, 4), Actors(3)
    rounds = 0
    while not limiter.budget_used(limiter.may_opt()):
        limiter.grant()
        for actor in range(3):
            actors.act(limiter, actor, 4)
            actors.publish(limiter, actor)
        if limiter.may_opt():
            limiter.opted()
        rounds += 1
        assert rounds < 10_000, "deadlock"
    assert sum(actors.taken) == limiter.env_steps == budget
    if interval is not None:
        assert limiter.opt_steps == int((budget - 20) / interval)


def test_a_fraction_is_the_decimal_that_was_typed() -> None:
    limiter = RatioLimiter(0.1, 0, 10, None, 1, 1)
    limiter.inserted(0, 3)
    while limiter.may_opt():
        limiter.opted()
    assert limiter.opt_steps == 30  # in binary, 30·0.1 > 3


def test_what_a_dead_actor_held_goes_to_the_others() -> None:
    limiter = RatioLimiter(1.0, 0, 8, 8, 2, 1)
    limiter.grant()
    assert limiter.credits == [4, 4]
    limiter.inserted(0, 2)
    limiter.forfeit(0)
    limiter.inserted(1, 4)
    limiter.attend([False, True])
    limiter.grant()
    assert limiter.credits == [2, 6]


def test_b1_a_warm_up_whose_rows_were_lost_is_that_much_longer() -> None:
    """All that may precede the first opt step was taken, and two rows of it were lost with an actor."""
    limiter = RatioLimiter(1.0, 4, 3, None, 1, 1)
    while limiter.grant(missing=2 if limiter.env_steps == 8 else 0):
        limiter.inserted(0, limiter.credits[0] - limiter.env_steps)
    assert limiter.env_steps == 10
    for _ in range(4):
        assert limiter.may_opt()
        limiter.opted()
    assert not limiter.may_opt() and limiter.ratio == 1.0


def test_a_batch_that_is_missing_adds_nothing_to_a_budget_or_while_there_is_credit() -> None:
    limiter = RatioLimiter(1.0, 4, 3, 8, 1, 1)
    while limiter.grant(missing=2):
        limiter.inserted(0, limiter.credits[0] - limiter.env_steps)
    assert limiter.env_steps == 8
    assert limiter.state()["base"] == [0, 0]
    limiter = RatioLimiter(1.0, 4, 8, None, 1, 1)
    limiter.grant()
    assert not limiter.grant(missing=2)
    assert limiter.state()["base"] == [0, 0]


def test_a_tolerance_that_could_deadlock_is_refused() -> None:
    with pytest.raises(ValueError, match="tolerance 7"):
        RatioLimiter(1.0, 0, 7, None, 4, 2)


@settings(max_examples=200, deadline=None)
@given(
    st.sampled_from([0.1, 0.5, 1.0, 2.0, 7.3]),
    st.integers(0, 40),
    st.integers(1, 8),
    st.integers(1, 4),
    st.integers(0, 80),
)
def test_all_that_may_precede_the_first_opt_step_is_acted(
    interval: float, warmup: int, n: int, envs: int, extra: int
) -> None:
    """A batch may need every one of these env steps, so none of them may be held back (as `config.checks` promises)."""
    tolerance = n * envs + extra
    limiter, actors = RatioLimiter(interval, warmup, tolerance, None, n, envs), Actors(n)
    for _ in range(1000):
        limiter.grant()
        for actor in range(n):
            actors.act(limiter, actor, envs)
            actors.publish(limiter, actor)
    assert limiter.env_steps == int(warmup + interval + tolerance)


def test_small_rests_are_held_back_while_the_learner_is_busy() -> None:
    limiter = RatioLimiter(2.0, 0, 64)
    limiter.grant()
    limiter.inserted(0, 64)
    for _ in range(10):
        limiter.opted()
        limiter.grant()
    assert limiter.credits == [64]  # 20 more may be acted, but not in ten hand-overs


@pytest.mark.parametrize(
    ("interval", "tolerance", "n_actors", "opt_steps"),
    [
        (2.0, 64, 1, 15),  # of 66 at the start 64 are given; half of the one share, 32, is worth giving
        (0.5, 64, 1, 63),
        (100.0, 64, 1, 1),
        (2.0, 64, 8, 7),  # a quarter of the tolerance, although half of a share is 4
        (1.0, 8, 8, 1),
    ],
)
def test_when_there_is_credit_worth_giving(
    interval: float, tolerance: int, n_actors: int, opt_steps: int
) -> None:
    limiter = RatioLimiter(interval, 0, tolerance, None, n_actors, 1)
    assert limiter.grant()
    for actor, credit in enumerate(limiter.credits):
        limiter.inserted(actor, credit)
    for left in range(opt_steps, 0, -1):
        assert limiter.opt_steps_until_grant() == left
        limiter.opted()
    assert limiter.grant()


def test_only_insertions_bring_credit_when_free_or_at_the_end() -> None:
    assert RatioLimiter(None, 10, 64).opt_steps_until_grant() > 10**9
    assert RatioLimiter(1.0, 10, 64, max_env_steps=50).opt_steps_until_grant() > 10**9


@settings(max_examples=200, deadline=None)
@given(
    st.data(),
    st.sampled_from([0.25, 0.5, 1.0, 2.0, 7.3, None]),
    st.integers(1, 5),
    st.integers(1, 3),
    st.integers(0, 40),
    st.sampled_from([None, 60, 137]),
)
def test_b1_no_overrun_with_actors_that_leave_and_come_back(
    data: st.DataObject, interval: float | None, n: int, envs: int, extra: int, budget: int | None
) -> None:
    tolerance = n * envs + extra
    limiter, actors = RatioLimiter(interval, 10, tolerance, budget, n, envs), Actors(n)
    present = [True] * n
    for _ in range(data.draw(st.integers(1, 150))):
        what = data.draw(st.sampled_from(["act", "act", "publish", "opt", "grant", "leave", "come back"]))
        actor = data.draw(st.integers(0, n - 1))
        if what == "act" and present[actor]:
            actors.act(limiter, actor, data.draw(st.integers(1, 16)))
        elif what == "publish" and present[actor]:
            actors.publish(limiter, actor)
        elif what == "grant":
            before = list(limiter.credits)
            limiter.grant()
            assert all(limiter.credits[i] == before[i] for i in range(n) if not present[i])
        elif what == "opt" and limiter.may_opt():
            limiter.opted()
        elif what == "leave" and present[actor]:
            actors.die(actor)
            present[actor] = False
            assert limiter.attend(present)
            assert limiter.credits[actor] == actors.taken[actor]
        elif what == "come back" and not present[actor]:
            present[actor] = True
            assert not limiter.attend(present)
        assert sum(limiter.credits) <= limiter.allowance
        assert sum(actors.taken) <= limiter.allowance
        assert all(taken <= credit for taken, credit in zip(actors.taken, limiter.credits, strict=True))


def come_and_go(
    data: st.DataObject, limiter: RatioLimiter, actors: Actors, present: list[bool], envs: int
) -> None:
    for actor in range(len(present)):
        if data.draw(st.integers(0, 5)) == 0:
            present[actor] = not present[actor]
            actors.die(actor)
    limiter.attend(present)
    limiter.grant()
    for actor in [actor for actor, there in enumerate(present) if there]:
        actors.act(limiter, actor, envs)
        if data.draw(st.booleans()):
            actors.publish(limiter, actor)
    if limiter.may_opt():
        limiter.opted()


@settings(max_examples=100, deadline=None)
@given(
    st.sampled_from([0.1, 0.5, 1.0, 2.0, 7.3]),
    st.integers(2, 6),
    st.integers(1, 4),
    st.integers(0, 40),
    st.sampled_from([None, 101, 200]),
    st.data(),
)
def test_b1_whoever_is_left_is_enough(
    interval: float, n: int, envs: int, extra: int, budget: int | None, data: st.DataObject
) -> None:
    """They come and go for a while; then all of them are gone at once, and one comes back."""
    limiter, actors = RatioLimiter(interval, 20, n * envs + extra, budget, n, envs), Actors(n)
    present = [True] * n
    for _ in range(30):
        come_and_go(data, limiter, actors, present, envs)
    for actor in range(n):
        actors.die(actor)
    limiter.attend([False] * n)
    left = data.draw(st.integers(0, n - 1))
    limiter.attend([actor == left for actor in range(n)])
    rounds = 0
    while limiter.opt_steps < 50 and not limiter.budget_used(limiter.may_opt()):
        limiter.grant()
        actors.act(limiter, left, envs)
        actors.publish(limiter, left)
        while limiter.may_opt() and limiter.opt_steps < 50:
            limiter.opted()
        rounds += 1
        assert rounds < 5000, "deadlock"
    assert budget is None or limiter.env_steps <= budget


def test_one_that_is_back_gets_credit_again() -> None:
    limiter = RatioLimiter(1.0, 0, 8, None, 2, 1)
    limiter.grant()
    limiter.inserted(0, 3)
    assert limiter.attend([False, True])
    assert limiter.credits == [3, 4]
    assert not limiter.attend([False, True])
    assert not limiter.grant()  # what the other one holds is all it may
    assert not limiter.attend([True, True])
    limiter.grant()
    assert limiter.credits[0] > 3


def resumed(limiter: RatioLimiter, n_actors: int, max_env_steps: int) -> RatioLimiter:
    """A limiter of another launch, with so many actors and this budget."""
    again = RatioLimiter(1.0, 0, 16, max_env_steps, n_actors, 1)
    again.load_state(limiter.state())
    return again


def act_to_the_end(limiter: RatioLimiter, taken: list[int]) -> None:
    """Whoever has credit beyond what its seat has taken uses it; whenever the ratio allows an opt step, it is done."""
    while not limiter.budget_used(limiter.may_opt()):
        assert sum(limiter.credits) <= limiter.allowance
        before = limiter.env_steps
        for actor, credit in enumerate(limiter.credits):
            assert credit >= taken[actor]
            limiter.inserted(actor, credit - taken[actor])
            taken[actor] = credit
        changed = limiter.grant()
        if limiter.may_opt():
            limiter.opted()
            changed = True
        assert changed or limiter.env_steps > before, "deadlock"


@pytest.mark.parametrize(("n_actors", "then"), [(1, 3), (2, 2), (1, 1), (2, 4)])
def test_b1_no_overrun_with_fewer_actors_and_then_more_again(n_actors: int, then: int) -> None:
    """A seat goes on from what was taken in it, however long nobody had it."""
    taken = [0] * 4
    limiter = RatioLimiter(1.0, 0, 16, 150, 3, 1)
    act_to_the_end(limiter, taken)
    for n, budget in ((n_actors, 170), (then, 240)):
        limiter = resumed(limiter, n, budget)
        act_to_the_end(limiter, taken)
        assert limiter.env_steps == sum(taken) == limiter.opt_steps == budget
