"""A sampler whose environments do not come back as they were: what it keeps of the episodes that broke off."""

from __future__ import annotations

from typing import Any

import pytest

from border_cli.actors.place import Place
from border_cli.actors.sampler import ResumableSampler
from border_cli.config.schema import EnvConfig
from border_cli.core.errors import UnfitStateError
from border_cli.core.items import Items
from border_cli.core.protocols import Step
from border_cli.core.spaces import Array, Obs
from border_cli.core.state import State, joined, section
from border_cli.replay.step_processor import NStepProcessor
from tests.fakes import COUNTING_SPEC, NumpyPolicy, make_counting_env

LENGTH = 9
N_ENVS = 2


class Forgetful:
    """Environments with the state of which nothing can be done, for those named in `lost`."""

    def __init__(self, lost: list[int]) -> None:
        config = EnvConfig(entry_point="border_cli.envs.counting:CountingEnv", kwargs={"lengths": [LENGTH]})
        self._inner = make_counting_env(Place(0, 0, 1, N_ENVS, 0), config)
        self._lost = lost
        self.n_envs, self.spec = self._inner.n_envs, self._inner.spec

    def reset(self, env_ix: int, seed: int | None = None) -> None:
        self._inner.reset(env_ix, seed)

    def observe(self, env_ix: Any) -> Obs:
        return self._inner.observe(env_ix)

    def step(self, env_ix: Any, action: Array) -> Step:
        return self._inner.step(env_ix, action)

    def remake(self, env_ix: int) -> None:
        self._inner.remake(env_ix)

    def close(self) -> None:
        self._inner.close()

    def state(self) -> State:
        return State()

    def load_state(self, state: State) -> list[int]:
        for env_ix in range(self.n_envs):
            self._inner.reset(env_ix, 0)  # stands for where it was
        return self._lost


def sampler(lost: list[int]) -> ResumableSampler:
    processor = NStepProcessor(COUNTING_SPEC, N_ENVS, 3, 0.9)
    return ResumableSampler(Forgetful(lost), NumpyPolicy(), processor, lambda env, episode: episode, "me")


def broken_off() -> State:
    """In the middle of an episode: two env steps of each environment wait for the third."""
    first = sampler([])
    first.begin()
    for _ in range(2):
        assert len(first.sample([0, 1], 0)["span"]) == 0
    return first.state()


def spans(items: Items) -> list[tuple[int, int]]:
    return list(zip(items["env"].tolist(), items["span"].tolist(), strict=True))


def test_a_state_that_is_taken_before_the_cut_rows_have_left_has_them_too() -> None:
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
    assert len(again.sample([1], 0)["span"]) == 0  # once


def test_one_that_is_lost_once_more_is_cut_once() -> None:
    resumed = sampler([1])
    resumed.begin_from(broken_off())
    again = sampler([1])
    again.begin_from(resumed.state())
    assert spans(again.sample([0, 1], 0)) == [(1, 2), (1, 1), (1, 0), (0, 3)]


@pytest.mark.parametrize("to_cut", [-1, [2], [-1], [True], "x", [None], None])
def test_i4_what_is_to_be_cut_is_checked(to_cut: Any) -> None:
    state = broken_off()
    counts = section(state, "counts").values | {"to_cut": to_cut}
    parts = {name: section(state, name) for name in ("env", "processor")}
    with pytest.raises(UnfitStateError):
        sampler([]).begin_from(joined(parts | {"counts": State({}, counts)}))
