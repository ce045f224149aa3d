"""Groups of environments: making, stepping, closing, exceptions, and the trial before a run."""

from __future__ import annotations

import itertools
import math
import warnings
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, ClassVar

import gymnasium
import numpy as np
import pytest

from border_cli.config.schema import EnvConfig
from border_cli.core.errors import ActorLostError, ExitCode, Interrupted, UsageError
from border_cli.envs.group import GymEnv, Probed, evaluation_envs, try_env
from tests.counting import CountingEnv

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


def test_an_evaluation_has_one_environment_where_a_process_can_have_no_second(
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert evaluation_envs(counting(), 10).n_envs == 10
    assert caplog.messages == []
    emulator = EnvConfig(entry_point=f"{__name__}:Emulator")
    only = evaluation_envs(emulator, 10)
    assert only.n_envs == 1
    (warning,) = caplog.messages
    assert warning.startswith("evaluations step one environment at a time, not 10: ")
    assert warning.endswith("RuntimeError: one emulator per process")
    with pytest.raises(ActorLostError, match="one emulator per process"):
        evaluation_envs(emulator, 1)
    only.close()


def test_environments_are_stepped_together_or_alone() -> None:
    env = started(lengths=[2])
    assert env.step([0, 1], ACTIONS).reward.tolist() == [1.0, 1.0]
    step = env.step([1], ACTIONS[:1])
    assert (step.obs["obs"][:, 3].tolist(), step.next_obs["obs"][:, 3].tolist()) == ([1], [2])
    assert step.over.all()
    assert env.observe([0, 1])["obs"][:, 3].tolist() == [1, 2]


def test_returned_arrays_do_not_change_later() -> None:
    env = started()
    given = [env.observe([0, 1])["obs"]]
    for env_ix in ([0, 1], [1], [0, 1], [0]):
        step = env.step(env_ix, ACTIONS[: len(env_ix)])
        given += [step.obs["obs"], step.next_obs["obs"], env.observe([0, 1])["obs"]]
        copies = [array.copy() for array in given]
        env.reset(1)
        for array, copy in zip(given, copies, strict=True):
            np.testing.assert_equal(array, copy)
    assert [array[0, 3] for array in given[:4]] == [0, 0, 1, 1]


def test_a_tick_follows_each_environment_that_is_made_and_all_are_closed(
    closed: list[CountingEnv], caplog: pytest.LogCaptureFixture
) -> None:
    turns: list[int] = []
    env = GymEnv(counting(), 3, "actor 0", made=lambda: turns.append(len(turns)))
    assert turns == [0, 1, 2]
    env.close()
    assert len(closed) == 3
    assert caplog.text.count("closing an environment of actor 0 failed") == 3
    assert caplog.text.count("OSError: the window is gone") == 3


def test_environments_are_closed_if_making_them_fails(closed: list[CountingEnv]) -> None:
    turns: list[int] = []

    def stop() -> None:
        turns.append(1)
        if len(turns) == 2:
            raise Interrupted(ExitCode.SIGTERM)

    with pytest.raises(Interrupted):
        GymEnv(counting(), 3, made=stop)
    assert len(closed) == 2


def test_an_error_names_owner_action_and_environment() -> None:
    env = started(fault="raise", fault_step=2)
    env.step([0, 1], ACTIONS)
    with pytest.raises(ActorLostError) as lost:
        env.step([0, 1], ACTIONS)
    assert lost.value.code == ExitCode.ACTOR_LOST
    assert (
        str(lost.value)
        == "actor 0 failed while stepping, after 2 env steps: RuntimeError: CountingEnv raises at step"
    )
    assert "counting.py" in lost.value.details
    assert isinstance(lost.value.__cause__, RuntimeError)
    with pytest.raises(ActorLostError, match="actor 0 failed while resetting: RuntimeError"):
        group(fault="raise", fault_at="reset").reset(0)
    with pytest.raises(ActorLostError, match="actor 0 failed while making the environment: RuntimeError"):
        group(fault="raise", fault_at="make")


def test_a6_the_context_names_environment_episode_step_and_action() -> None:
    env = started(lengths=[1], fault="raise", fault_step=2)
    env.step([1], ACTIONS[:1])
    env.reset(1)
    with pytest.raises(ActorLostError) as lost:
        env.step([0, 1], np.array([1, 0]))
    assert lost.value.context == {
        "who": "actor 0", "phase": "step", "env": 1, "episode": 2, "step": 0, "action": 0,
    }  # fmt: skip
    with pytest.raises(ActorLostError) as lost:
        group(fault="raise", fault_at="reset").reset(0)
    assert lost.value.context == {"who": "actor 0", "phase": "reset", "env": 0, "episode": 1, "step": 0}
    with pytest.raises(ActorLostError) as lost:
        started().step([0], np.full((1, 10_000), "x"))  # cannot be decoded
    assert len(str(lost.value.context["action"])) <= 100


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
    config = counting()
    assert try_env(replace(config, kwargs=config.kwargs | {"env": 0})) == Probed(group().spec, "none", {}, [])
    warns = EnvConfig(entry_point="tests.old_envs:Warns")
    assert try_env(warns).warnings == ["out of date", "slow", ""]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        GymEnv(warns, 2, quiet=True).close()


@pytest.mark.filterwarnings("default")
def test_the_trial_warns_of_random_numbers_that_the_seed_does_not_set() -> None:
    """Observations of `CountingEnv` say how many were made before it."""
    (found,) = try_env(EnvConfig(entry_point="tests.counting:CountingEnv")).warnings
    assert "two environments that were made alike and reset with the same seed differ in obs" in found
    assert not try_env(EnvConfig(entry_point="tests.counting:CountingEnv", kwargs={"env": 0})).warnings
    assert not try_env(EnvConfig(id="CartPole-v1")).warnings


def test_the_trial_can_leave_the_closing_to_its_caller(closed: list[CountingEnv]) -> None:
    """A `close` that hangs does not delay the answer."""
    with ExitStack() as at_end:
        try_env(EnvConfig(entry_point="tests.counting:CountingEnv", kwargs={"env": 0}), at_end)
        assert closed == []
    assert len(closed) == 2, "the environment, and another one that it was compared with"


class SharedArray(gymnasium.Env[Any, Any]):
    """Environments that all return the same array: the number of the one that was stepped last."""

    observation_space = gymnasium.spaces.Box(0, 9, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)
    array = np.zeros(1, np.float32)
    made = itertools.count()

    def __init__(self) -> None:
        self._number = next(self.made)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self.array[0] = self._number
        return self.array, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.array[0] = self._number
        return self.array, 0.0, False, False, {}


def test_an_array_that_environments_share_is_stored_before_the_next_one_is_stepped() -> None:
    env = GymEnv(EnvConfig(entry_point=f"{__name__}:SharedArray"), 3)
    for i in range(3):
        env.reset(i)
    step = env.step([0, 1, 2], np.zeros(3, np.int64))
    np.testing.assert_array_equal(np.diff(step.next_obs["obs"][:, 0]), [1, 1])
    env.close()


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (3, 3.0),
        (np.float32(0.5), 0.5),
        (np.bool_(True), 1.0),
        ([[1], [1, 2]], None),
        ("high", None),
        (1j, None),
        (np.complex64(1), None),
    ],
)
def test_what_an_info_holds_is_a_number_or_missing(
    value: Any, expected: float | None, caplog: pytest.LogCaptureFixture
) -> None:
    env = GymEnv(EnvConfig(entry_point="tests.counting:CountingEnv", info_keys=["score"]))
    found = env._values({"score": value})
    assert found == [expected] or (expected is None and math.isnan(found[0]))
    assert ("has no number" in caplog.text) == (expected is None)
