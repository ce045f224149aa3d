"""A resumed sampler whose environments cannot be restored, and its interrupted episodes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from border_cli.actors.sampler import Sampler
from border_cli.config.schema import EnvConfig
from border_cli.core.errors import IncompatibleStateError
from border_cli.core.spaces import Array, Obs
from border_cli.core.state import State
from border_cli.core.types import Items
from border_cli.envs.group import GymEnv
from border_cli.replay.n_step import NStepProcessor
from tests.fakes import COUNTING_SPEC, NumpyPolicy

LENGTH = 9


class Forgetful(GymEnv):
    """Environments whose state cannot be restored, for those in `lost`."""

    def __init__(self, lost: list[int], n_envs: int) -> None:
        super().__init__(
            EnvConfig(entry_point="tests.counting:CountingEnv", kwargs={"lengths": [LENGTH]}), n_envs
        )
        self._lost = lost

    def state(self) -> State:
        return State()

    def load_state(self, state: State) -> list[int]:
        for env_ix in range(self.n_envs):
            self.reset(env_ix, 0)  # stands for the position in the episode
        return self._lost


def sampler(lost: list[int], n_envs: int = 2) -> Sampler:
    processor = NStepProcessor(COUNTING_SPEC, n_envs, 3, 0.9)
    env = Forgetful(lost, n_envs)
    return Sampler(env, NumpyPolicy(), processor, lambda env, episode: episode, "me")


def broken_off() -> State:
    """Return a sampler in the middle of an episode: two env steps of each environment are pending."""
    first = sampler([])
    first.begin()
    for _ in range(2):
        assert len(first.sample([0, 1], 0)["n_steps"]) == 0
    return first.state()


def spans(items: Items) -> list[tuple[int, int]]:
    return list(zip(items["env"].tolist(), items["n_steps"].tolist(), strict=True))


class SameArray(NumpyPolicy):
    """Writes all actions into one array: 0, 1, 2 …"""

    def __init__(self) -> None:
        super().__init__()
        self._action = np.full(1, -1)

    def sample(self, obs: Obs, env_steps: int = 0, env_ix: Sequence[int] = ()) -> Array:
        self._action += 1
        return self._action


def test_a_policy_may_reuse_the_array_of_its_actions() -> None:
    env, processor = Forgetful([], 1), NStepProcessor(COUNTING_SPEC, 1, 1, 0.9)
    acting = Sampler(env, SameArray(), processor, lambda env, episode: episode, "me")
    acting.begin()
    for _ in range(3):
        acting.step([0], 0)
    assert processor.take()["action"].tolist() == [0, 1, 2]


def test_a_state_saved_before_the_cut_rows_are_sent_contains_them() -> None:
    resumed = sampler([1])
    resumed.begin_from(broken_off())
    kept = resumed.state()
    expected = resumed.sample([1], 0)
    assert spans(expected) == [(1, 2), (1, 1), (1, 0)]
    again = sampler([])
    again.begin_from(kept)
    items = again.sample([1], 0)
    assert spans(items) == spans(expected)
    assert (items["obs"] == expected["obs"]).all()
    assert again.exact
    assert len(again.sample([1], 0)["n_steps"]) == 0  # cut once


def test_an_environment_that_is_lost_again_is_cut_once() -> None:
    resumed = sampler([1])
    resumed.begin_from(broken_off())
    again = sampler([1])
    again.begin_from(resumed.state())
    assert spans(again.sample([0, 1], 0)) == [(1, 2), (1, 1), (1, 0), (0, 3)]


def test_i4_a_state_of_other_environments_is_refused() -> None:
    with pytest.raises(IncompatibleStateError, match="the sampler of me has episodes"):
        sampler([]).begin_from(sampler([], n_envs=3).state())
