"""Environments that go on from a saved state judge what comes as they would have done without a pause (row G2)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from border_cli import parts
from border_cli.actors.sampler import ResumableSampler
from border_cli.config.schema import EnvConfig, TrainConfig
from border_cli.core.errors import ActorLostError, UnfitStateError
from border_cli.core.spaces import Array, Obs
from border_cli.envs.guarded import GuardedEnv
from border_cli.envs.gym_env import GymEnv
from border_cli.envs.taped import TapedEnv
from border_cli.replay.step_processor import NStepProcessor

INSIDE, OUTSIDE = 7, 8
"""Seeds of episodes."""
ACTION = np.zeros(1, np.int64)
TOLD = "its space says between -1.0 and 1.0; that is not told again"


class First:
    """Always action 0."""

    def begin_episode(self, env_ix: int) -> None:
        pass

    def estimates(self) -> None:
        return None

    def sample(self, obs: Obs, env_steps: int = 0, env_ix: Sequence[int] = ()) -> Array:
        return ACTION

    def train(self) -> None:
        pass

    def eval(self) -> None:
        pass


def taped(**config: Any) -> TapedEnv:
    config = {"entry_point": "tests.outside:Outside", "kwargs": {"inside": [INSIDE], "length": 5000}} | config
    return TapedEnv(GuardedEnv(GymEnv(EnvConfig(**config)), "actor 0"))


def steps(env: TapedEnv, n: int) -> None:
    for _ in range(n):
        env.step([0], ACTION)


def paused(env: TapedEnv, **config: Any) -> TapedEnv:
    """Another one that goes on where this one is."""
    other = taped(**config)
    assert other.load_state(env.state()) == []
    assert other.state().values == env.state().values
    return other


def after(observations: int) -> TapedEnv:
    """So many were inside."""
    env = taped()
    env.reset(0, INSIDE)
    steps(env, observations - 1)
    return env


def test_g2_what_is_outside_after_the_first_hundred_is_no_error_after_a_pause() -> None:
    env = paused(after(100))
    env.reset(0, OUTSIDE)
    steps(env, 3)
    again = paused(env)  # whose tape is all outside
    steps(again, 3)


def test_g2_what_is_outside_within_them_is_an_error_after_a_pause() -> None:
    """The tape, which is played once more, counts once."""
    env = paused(after(99))
    with pytest.raises(ActorLostError, match=r"observation obs\[0\] is 2\.0"):
        env.reset(0, OUTSIDE)


def test_g2_what_was_told_is_not_told_again(caplog: pytest.LogCaptureFixture) -> None:
    env = after(990)
    env.reset(0, OUTSIDE)
    steps(env, 9)
    env = paused(env)
    assert caplog.records == []
    steps(env, 1)  # the first after 1000, which is checked
    assert [r.getMessage().endswith(TOLD) for r in caplog.records] == [True]
    env = paused(env)
    steps(env, 1000)
    assert len(caplog.records) == 1


def test_g2_playing_the_tape_tells_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """It is not judged by its place among all observations, which it does not have any more."""
    env = after(500)
    env.reset(0, OUTSIDE)
    steps(env, 498)  # 999 observations; once more they would be number 1000 and more
    steps(paused(env), 1)
    assert caplog.records == []


def test_g2_messages_count_on() -> None:
    env = after(10)
    env.reset(0, INSIDE)
    steps(env, 4)
    env = paused(env)
    with pytest.raises(ActorLostError) as lost:
        env.reset(0, OUTSIDE)
    assert "environment 0, episode 3, env step 0 of it" in str(lost.value)
    assert lost.value.context["episode"] == 2
    assert env._env.judged()["env_steps"] == 13


DROPPING: dict[str, Any] = {
    "entry_point": "tests.outside:NeverFinite",
    "kwargs": {},
    "nonfinite": "drop",
}


def test_g2_numbers_that_are_not_finite_are_counted_on(caplog: pytest.LogCaptureFixture) -> None:
    """A hundred times in a row are an error, and what was left out is told once."""
    env = taped(**DROPPING)
    for n in range(99):
        env.reset(0, n)
        assert env.step([0], ACTION).dropped is not None
        env.reset(0, n + 1)
        env = paused(env, **DROPPING)
    assert len(caplog.records) == 1
    with pytest.raises(ActorLostError, match="100 times in a row"):
        env.step([0], ACTION)


def test_g2_so_are_the_env_steps_that_a_sampler_left_out() -> None:
    def sampler() -> ResumableSampler:
        env = taped(**DROPPING)
        return ResumableSampler(env, First(), NStepProcessor(env.spec, 1, 1, 0.9), lambda env, n: n, "me")

    one, other = sampler(), sampler()
    one.begin()
    for _ in range(3):
        one.sample([0], 0)
    other.begin_from(one.state())
    assert other.dropped == one.dropped == 3


def test_a_state_that_has_no_counts_is_taken_as_before() -> None:
    state = after(100).state()
    del state.values["judged"]
    env = taped()
    assert env.load_state(state) == []
    assert env.state().values["judged"]["taken"] == [100]


@pytest.mark.parametrize(
    "name", ["taken", "episodes", "in_a_row", "told_dtype", "told_bounds", "episodes_begun", "dropped"]
)
@pytest.mark.parametrize("bad", [-1, [], [-1], [1.5], ["x"], None])
def test_i4_counts_are_checked(name: str, bad: Any) -> None:
    state = after(3).state()
    state.values["judged"] |= {name: bad}
    with pytest.raises(UnfitStateError):
        taped().load_state(state)


def test_an_evaluation_ends_no_run_over_bounds_that_its_actors_may_have_been_told_of(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Its counts begin anew in every launch, so its first env steps may be as late as those."""
    env = EnvConfig(entry_point="tests.outside:Outside", kwargs={"inside": [], "length": 10})
    judge = parts.evaluation_env(lambda: None, TrainConfig(env=env))
    judge.reset(0, OUTSIDE)
    assert caplog.text.count(TOLD) == 1
    judge.close()
