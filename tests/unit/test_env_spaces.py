"""From gymnasium's spaces to those of agents: which are taken, what actions become, what is suggested for others."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from border_cli.config.schema import EnvConfig, WrapperConfig
from border_cli.core.errors import UsageError
from border_cli.envs.group import GymEnv
from border_cli.envs.try_env import try_env
from tests.envs import Sampled

TWO = spaces.Discrete(2)
FLAT = spaces.Box(-1.0, 1.0, (2,), np.float32)
FLATTEN = WrapperConfig("FlattenActions")


def config(
    *wrappers: WrapperConfig, actions: spaces.Space[Any] = TWO, observations: spaces.Space[Any] = FLAT
) -> EnvConfig:
    kwargs = {"space": observations, "actions": actions}
    return EnvConfig(entry_point="tests.envs:Sampled", kwargs=kwargs, wrappers=list(wrappers))


def received(action: Any, *wrappers: WrapperConfig, **kwargs: Any) -> Any:
    """Return what the environment gets for a stored action."""
    env = GymEnv(config(*wrappers, **kwargs))
    env.reset(0, seed=0)
    env.step([0], np.array([action]))
    (result,) = env.envs[0].unwrapped.received
    return result


class FlatActions(spaces.Discrete):
    """A subclass of another library."""


class Angles(spaces.Box):
    """Another one."""


def test_an_instance_of_a_known_space_is_that_space() -> None:
    inner = spaces.Dict({"a": Angles(-1.0, 1.0, (3,)), "n": FlatActions(4)})
    spec = GymEnv(config(actions=FlatActions(18), observations=inner)).spec
    assert (spec.action.kind, spec.action.n) == ("discrete", 18)
    assert [leaf.kind for leaf in spec.obs.leaves] == ["box", "discrete"]
    assert GymEnv(config(actions=Angles(-1.0, 1.0, (1,)))).spec.action.kind == "box"


@pytest.mark.parametrize(
    "observations",
    [
        spaces.Dict({"empty": spaces.Box(-1, 1, (0,)), "x": FLAT}),
        spaces.Tuple((spaces.Text(3), spaces.Dict({"x": FLAT, "t": spaces.Text(3)}))),
    ],
    ids=["empty", "texts"],
)
def test_a_part_that_is_empty_or_not_taken_is_left_out(observations: spaces.Space[Any]) -> None:
    spec = try_env(config(observations=observations)).spec
    assert [leaf.shape for leaf in spec.obs.leaves] == [(2,)]
    assert len(spec.left_out) >= 1
    assert any(re.match(r"(empty|0) \(Box of shape|0 \(Text\)", part) for part in spec.left_out)


@pytest.mark.parametrize(
    ("actions", "message"),
    [
        (spaces.Box(-np.inf, np.inf, (2,)), "has no finite bounds"),
        (spaces.Box(np.iinfo(np.int64).min, np.iinfo(np.int64).max, (1,), np.int64), "has no finite bounds"),
        (
            spaces.Text(3),
            "allowed: Discrete, MultiDiscrete, MultiBinary, and Box with finite bounds; a wrapper",
        ),
    ],
    ids=str,
)
def test_another_action_space_is_refused_with_a_way_out(actions: spaces.Space[Any], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        try_env(config(actions=actions))
    assert message in str(caught.value)
    assert len(str(caught.value).splitlines()) <= 3


def test_actions_have_the_type_that_the_spaces_sample_has() -> None:
    assert type(received(1)) is np.int64
    action = received(2, actions=spaces.Discrete(3, start=5))
    assert (type(action), action) == (np.int64, 7)
    action = received([0.2, 0.4], actions=spaces.Box(-1.0, 1.0, (2,), np.float64))
    assert action.dtype == np.float64


def test_actions_of_an_integer_box_are_rounded_numbers() -> None:
    actions = spaces.Box(np.array([0, -3]), np.array([9, 3]), (2,), np.int64)
    assert received(np.array([8.6, -2.4], np.float32), actions=actions).tolist() == [9, -2]
    assert received(np.array([11.0, -3.4], np.float32), actions=actions).tolist() == [9, -3]


@pytest.mark.parametrize(
    ("actions", "number", "expected"),
    [
        (spaces.MultiDiscrete([3, 4]), 7, [1, 3]),
        (spaces.MultiDiscrete([[3], [4]], start=[[1], [-1]]), 0, [[1], [-1]]),
        (spaces.MultiBinary(3), 6, [1, 1, 0]),
    ],
    ids=str,
)
def test_combinations_of_actions_are_numbered(actions: spaces.Space[Any], number: int, expected: Any) -> None:
    spec = try_env(config(FLATTEN, actions=actions)).spec
    combination = received(number, FLATTEN, actions=actions)
    assert combination.tolist() == expected
    every = [str(received(i, FLATTEN, actions=actions)) for i in range(spec.action.n)]
    assert len(set(every)) == spec.action.n


class OnlyInts(Sampled):
    """Takes no np.int64."""

    def step(self, action: Any) -> Any:
        if type(action) is not int:
            raise TypeError("an action must be an integer")
        return super().step(action)


def test_an_environment_that_takes_pythons_int_alone_is_told_how() -> None:
    only_ints = replace(config(), entry_point=f"{__name__}:OnlyInts")
    with pytest.raises(UsageError, match=r"\nnearest: env\.wrappers=\[IntActions\]$"):
        try_env(only_ints)
    try_env(replace(only_ints, wrappers=[WrapperConfig("IntActions")]))


def test_actions_without_bounds_get_those_that_the_message_suggests() -> None:
    endless = spaces.Box(-np.inf, np.inf, (2,), np.float64)
    with pytest.raises(UsageError) as caught:
        try_env(config(actions=endless))
    assert "{name:BoundActions,kwargs:{low:-1,high:1}}" in str(caught.value)
    spec = GymEnv(config(WrapperConfig("BoundActions", {"low": -1, "high": [1, 2]}), actions=endless)).spec
    assert (spec.action.low, spec.action.high) == ((-1.0, -1.0), (1.0, 2.0))
