"""Groups of environments: making, stepping, closing, exceptions, resuming, and the trial before a run."""

from __future__ import annotations

import math
import warnings
from typing import Any, ClassVar

import numpy as np
import pytest

from border_cli.actors.sampler import RowProcessor, Sampler
from border_cli.config.schema import EnvConfig
from border_cli.core.errors import ActorLostError, ExitCode, IncompatibleStateError, Interrupted, UsageError
from border_cli.core.state import State
from border_cli.core.types import Items
from border_cli.envs.group import GymEnv, ReplayedEnv, evaluation_envs
from border_cli.envs.try_env import Probed, try_env
from tests.counting import CountingEnv
from tests.fakes import COUNTING_SPEC, NumpyPolicy

ACTIONS = np.zeros(2, np.int64)


def counting(**kwargs: Any) -> EnvConfig:
    return EnvConfig(entry_point="tests.counting:CountingEnv", kwargs=kwargs)


def group(**kwargs: Any) -> GymEnv:
    return GymEnv(counting(**kwargs), 2, "actor 0")


def started(**kwargs: Any) -> GymEnv:
    env = group(**kwargs)
    env.reset(0, seed=1)
    env.reset(1, seed=2)
    return env


@pytest.fixture
def closed(monkeypatch: pytest.MonkeyPatch) -> list[CountingEnv]:
    """Return the closed environments. Closing raises."""
    envs: list[CountingEnv] = []

    def close(self: CountingEnv) -> None:
        envs.append(self)
        raise OSError("the window is gone")

    monkeypatch.setattr(CountingEnv, "close", close)
    return envs


class Emulator(CountingEnv):
    """Can exist only once in a process."""

    existing: ClassVar[list[Emulator]] = []

    def __init__(self) -> None:
        super().__init__()
        if self.existing:
            raise RuntimeError("one emulator per process")
        self.existing.append(self)

    def close(self) -> None:
        self.existing.remove(self)


def test_an_evaluation_has_one_environment_where_no_second_can_be(
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert evaluation_envs(counting(), 10).n_envs == 10
    assert caplog.messages == []
    only = evaluation_envs(EnvConfig(entry_point=f"{__name__}:Emulator"), 10)
    assert only.n_envs == 1
    (warning,) = caplog.messages
    assert warning.startswith("evaluations step one environment at a time, not 10: ")
    assert warning.endswith("RuntimeError: one emulator per process")
    only.close()


def test_returned_arrays_do_not_change_later() -> None:
    env = started()
    returned = [env.observe([0, 1])["obs"]]
    for env_ix in ([0, 1], [1], [0, 1], [0]):
        step = env.step(env_ix, ACTIONS[: len(env_ix)])
        returned += [step.obs["obs"], step.next_obs["obs"], env.observe([0, 1])["obs"]]
        copies = [array.copy() for array in returned]
        env.reset(1)
        for array, copy in zip(returned, copies, strict=True):
            np.testing.assert_equal(array, copy)
    assert [array[0, 3] for array in returned[:4]] == [0, 0, 1, 1]


def test_all_environments_are_closed(closed: list[CountingEnv], caplog: pytest.LogCaptureFixture) -> None:
    """Each one that was made is announced."""
    turns: list[int] = []

    def stop_at_five() -> None:
        turns.append(1)
        if len(turns) == 5:
            raise Interrupted(ExitCode.SIGTERM)

    GymEnv(counting(), 3, "actor 0", tick=stop_at_five).close()
    assert (len(turns), len(closed)) == (3, 3)
    assert caplog.text.count("closing an environment of actor 0 failed") == 3
    with pytest.raises(Interrupted):
        GymEnv(counting(), 3, tick=stop_at_five)
    assert len(closed) == 5


def test_a6_an_error_says_where_it_happened() -> None:
    """In the first env step of the second episode of the second environment."""
    env = started(lengths=[1], fault="raise", fault_step=2)
    env.step([0, 1], ACTIONS)
    env.reset(1)
    message = "^actor 0 failed while stepping, after 2 env steps: RuntimeError: CountingEnv raises at step"
    with pytest.raises(ActorLostError, match=message) as lost:
        env.step([1], ACTIONS[:1])
    assert lost.value.code == ExitCode.ACTOR_LOST
    context = {"who": "actor 0", "phase": "step", "env": 1, "episode": 2, "step": 0, "action": 0}
    assert lost.value.context == context
    assert "counting.py" in lost.value.details and isinstance(lost.value.__cause__, RuntimeError)


@pytest.mark.parametrize(
    ("error", "becomes", "message"),
    [
        (SystemExit(7), ActorLostError, "stepping, after 0 env steps: SystemExit: 7"),
        (UsageError("no such level"), UsageError, "^no such level$"),
    ],
)
def test_a6_system_exit_ends_the_actor_and_a_usage_error_stays_one(
    error: BaseException, becomes: type[Exception], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def step(*_: object) -> None:
        raise error

    monkeypatch.setattr(CountingEnv, "step", step)
    with pytest.raises(becomes, match=message):
        started().step([0], ACTIONS[:1])


@pytest.mark.filterwarnings("default")
def test_the_trial_returns_the_spaces_and_each_warning_once() -> None:
    first = try_env(counting(env=0))
    assert first == Probed(group().spec, "none", {}, [], first.first)
    (differs,) = try_env(counting()).warnings  # observations say how many environments were made before
    assert "two environments that were made alike and reset with the same seed differ in obs" in differs
    warns = EnvConfig(entry_point="tests.envs:Warns")
    assert try_env(warns).warnings == ["out of date", "slow", ""]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        GymEnv(warns, 2, quiet=True).close()


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (np.float32(0.5), 0.5),
        (np.bool_(True), 1.0),
        ([[1], [1, 2]], None),
    ],
)
def test_numbers_of_an_info(value: Any, expected: float | None, caplog: pytest.LogCaptureFixture) -> None:
    env = GymEnv(EnvConfig(entry_point="tests.counting:CountingEnv", info_keys=["score"]))
    values = env._values({"score": value})
    assert values == [expected] or (expected is None and math.isnan(values[0]))
    assert ("has no number" in caplog.text) == (expected is None)


# -- resuming within an episode --------------------------------------------


def replayed(env_steps: int = 0) -> ReplayedEnv:
    """CartPole with the seed 7, after so many env steps."""
    env = ReplayedEnv(EnvConfig(id="CartPole-v1"), owner="actor 0")
    env.reset(0, 7)
    for t in range(env_steps):
        env.step([0], np.array([t % 2]))
    return env


def test_g2_a_resumed_environment_continues_its_episode() -> None:
    env, other = replayed(5), replayed(2)
    assert other.load_state(env.state()) == []
    for name, array in env.state().arrays.items():
        np.testing.assert_array_equal(other.state().arrays[name], array)
    for _ in range(3):
        np.testing.assert_array_equal(
            env.step([0], ACTIONS[:1]).next_obs["obs"], other.step([0], ACTIONS[:1]).next_obs["obs"]
        )
    state = env.state()
    state.arrays["observations"] = state.arrays["observations"] ^ 1  # as if it had not come back
    assert other.load_state(state) == [0]


@pytest.mark.parametrize("bad", [None, np.zeros(2, np.int64), np.zeros(1, np.float32)], ids=repr)
@pytest.mark.parametrize("name", ["actions-0", "seeds", "observations"])
def test_i4_a_state_of_other_shapes_is_refused(name: str, bad: Any) -> None:
    state = replayed(3).state()
    del state.arrays[name]
    if bad is not None:
        state.arrays[name] = bad.astype(np.float32) if name == "actions-0" else bad
    with pytest.raises(IncompatibleStateError, match=name):
        replayed().load_state(state)


# -- a resumed sampler whose environments cannot be restored ---------------


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
    processor = RowProcessor(COUNTING_SPEC, n_envs)
    env = Forgetful(lost, n_envs)
    return Sampler(env, NumpyPolicy(), processor, lambda env, episode: episode, "me")


def broken_off() -> State:
    """Return a sampler in the middle of an episode, after two env steps of each environment."""
    first = sampler([])
    first.begin()
    for _ in range(2):
        first.sample([0, 1], 0)
    return first.state()


def places(items: Items) -> list[tuple[int, int, bool]]:
    return list(zip(*(items[name].tolist() for name in ("env", "step", "final")), strict=True))


def test_a_state_saved_before_the_cut_rows_are_sent_contains_them() -> None:
    resumed = sampler([1])
    resumed.begin_from(broken_off())
    kept = resumed.state()
    expected = resumed.sample([1], 0)
    assert places(expected) == [(1, 2, True), (1, 0, False)]
    again = sampler([])
    again.begin_from(kept)
    items = again.sample([1], 0)
    assert places(items) == places(expected)
    assert (items["obs"][0] == expected["obs"][0]).all()
    assert again.exact
    assert places(again.sample([1], 0)) == [(1, 1, False)]  # cut once


def test_i4_a_state_of_other_environments_is_refused() -> None:
    with pytest.raises(IncompatibleStateError, match="the sampler of me has episodes"):
        sampler([]).begin_from(sampler([], n_envs=3).state())
