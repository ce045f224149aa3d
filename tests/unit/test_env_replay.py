"""Restored environments check observations as without an interruption (row G2)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from border_cli.actors.sampler import Sampler
from border_cli.config.schema import EnvConfig, TrainConfig
from border_cli.core.errors import ActorLostError, IncompatibleStateError
from border_cli.envs import group
from border_cli.envs.group import ReplayedEnv
from border_cli.replay.n_step import NStepProcessor
from border_cli.run import factories
from tests.fakes import NumpyPolicy

INSIDE, OUTSIDE = 7, 8
"""Seeds of episodes."""
ACTION = np.zeros(1, np.int64)
WARNING = "its space says between -1.0 and 1.0; later ones are not reported"
DROPPING: dict[str, Any] = {"entry_point": "tests.outside:NeverFinite", "kwargs": {}, "nonfinite": "drop"}


def make(**config: Any) -> ReplayedEnv:
    config = {"entry_point": "tests.outside:Outside", "kwargs": {"inside": [INSIDE], "length": 5000}} | config
    return ReplayedEnv(EnvConfig(**config), owner="actor 0")


def steps(env: ReplayedEnv, n: int) -> None:
    for _ in range(n):
        env.step([0], ACTION)


def after(observations: int, **config: Any) -> ReplayedEnv:
    """Return an environment after this many observations, all inside its space."""
    env = make(**config)
    env.reset(0, INSIDE)
    steps(env, observations - 1)
    return env


def resumed(env: ReplayedEnv, **config: Any) -> ReplayedEnv:
    """Return another environment that continues from the state of this one."""
    other = make(**config)
    assert other.load_state(env.state()) == []
    one, same = env.state(), other.state()
    assert same.values == one.values and same.arrays.keys() == one.arrays.keys()
    assert all(np.array_equal(array, same.arrays[name]) for name, array in one.arrays.items())
    return other


@pytest.mark.parametrize(("env_steps", "lost"), [(5, []), (6, [0]), (9, [0])])
def test_a_very_long_episode_is_not_resumed_and_its_actions_are_not_kept(
    env_steps: int, lost: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group, "MOST_REPLAYED", 5)
    env, state = make(), after(env_steps + 1).state()
    assert state.arrays["episodes/actions-0"].shape == (0 if lost else env_steps,)
    assert env.load_state(state) == lost
    env.reset(0, INSIDE)
    steps(env, 5)
    assert resumed(env).state().arrays["episodes/actions-0"].shape == (5,)  # the next episode


def test_g2_after_a_resume_a_late_observation_outside_is_no_error() -> None:
    env = resumed(after(100))
    env.reset(0, OUTSIDE)
    steps(env, 3)
    steps(resumed(env), 3)  # an episode that is outside its space


def test_g2_after_a_resume_an_early_observation_outside_is_an_error() -> None:
    """Replayed observations are not counted twice. Messages continue the counts."""
    env = after(94, out_of_bounds="error")
    env.reset(0, INSIDE)
    steps(env, 4)
    env = resumed(env, out_of_bounds="error")
    with pytest.raises(
        ActorLostError, match=r"episode 3, env step 0 of it: observation obs\[0\] is 2\.0"
    ) as lost:
        env.reset(0, OUTSIDE)
    assert lost.value.context["episode"] == 3


def test_g2_a_warning_is_given_once_and_not_repeated_by_the_replay(caplog: pytest.LogCaptureFixture) -> None:
    env = after(500)
    env.reset(0, OUTSIDE)
    steps(env, 498)  # 999 observations; counted again they would include number 1000
    env = resumed(env)
    steps(env, 1)
    assert caplog.messages == []
    steps(env, 1)  # number 1000, which is checked
    assert [message.endswith(WARNING) for message in caplog.messages] == [True]
    env = resumed(env)
    steps(env, 1000)
    assert len(caplog.messages) == 1


def test_g2_the_count_of_numbers_that_are_not_finite_continues(caplog: pytest.LogCaptureFixture) -> None:
    """The first one is a warning, and 100 in a row are an error."""
    env = make(**DROPPING)
    for n in range(99):
        env.reset(0, n)
        assert env.step([0], ACTION).dropped is not None
        env.reset(0, n + 1)
        env = resumed(env, **DROPPING)
    assert len(caplog.messages) == 1
    with pytest.raises(ActorLostError, match="for the 100th time in a row"):
        env.step([0], ACTION)


def test_g2_the_count_of_dropped_env_steps_continues() -> None:
    def sampler() -> Sampler:
        env = make(**DROPPING)
        return Sampler(env, NumpyPolicy(), NStepProcessor(env.spec, 1, 1, 0.9), lambda env, n: n, "me")

    one, other = sampler(), sampler()
    one.begin()
    for _ in range(3):
        one.sample([0], 0)
    other.begin_from(one.state())
    assert other.dropped == one.dropped == 3


@pytest.mark.parametrize("bad", [None, np.zeros(2, np.int64), np.zeros(1, np.float32)], ids=repr)
@pytest.mark.parametrize(
    "name", ["checks/observations", "checks/warned", "episodes/seeds", "episodes/observations"]
)
def test_i4_a_state_of_other_shapes_is_refused(name: str, bad: Any) -> None:
    state = after(3).state()
    del state.arrays[name]
    if bad is not None:
        state.arrays[name] = bad
    with pytest.raises(IncompatibleStateError, match=name):
        make().load_state(state)


def test_an_evaluation_only_warns_of_bounds(caplog: pytest.LogCaptureFixture) -> None:
    """It counts from 0 in every launch, while actors may be past their first 100 observations."""
    env = EnvConfig(entry_point="tests.outside:Outside", kwargs={"inside": [], "length": 10})
    group = factories.evaluation_env(lambda: None, TrainConfig(env=env))
    group.reset(0, OUTSIDE)
    assert caplog.text.count(WARNING) == 1
    group.close()
