"""A resumed sampler whose environments cannot be restored, and its interrupted episodes."""

from __future__ import annotations

import pytest

from border_cli.actors.sampler import Sampler
from border_cli.config.schema import EnvConfig
from border_cli.core.errors import IncompatibleStateError
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


def test_i4_a_state_of_other_environments_is_refused() -> None:
    with pytest.raises(IncompatibleStateError, match="the sampler of me has episodes"):
        sampler([]).begin_from(sampler([], n_envs=3).state())
