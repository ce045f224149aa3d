"""Exceptions of an environment in the learner's own process."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from border_cli.config.schema import EnvConfig
from border_cli.core.errors import ActorLostError, ExitCode, UsageError
from border_cli.envs.guarded import GuardedEnv
from border_cli.envs.gym_env import GymEnv

ACTIONS = np.zeros(2, np.int64)


def guarded(**kwargs: Any) -> GuardedEnv:
    config = EnvConfig(entry_point="border_cli.envs.counting:CountingEnv", kwargs=kwargs)
    return GuardedEnv(GymEnv(config, 2), "actor 0")


def test_a_sound_environment_is_as_without() -> None:
    env = guarded(lengths=[2])
    env.reset(0, seed=1)
    env.reset(1, seed=2)
    assert env.n_envs == 2
    assert env.step([0, 1], ACTIONS).reward.tolist() == [1.0, 1.0]
    assert env.observe([1])["obs"][0, 3] == 1
    assert env.step([0, 1], ACTIONS).terminated.all()
    env.close()


def test_who_did_what_and_where_is_said() -> None:
    env = guarded(fault="raise", fault_step=2)
    env.reset(0)
    env.reset(1)
    env.step([0, 1], ACTIONS)
    with pytest.raises(ActorLostError) as lost:
        env.step([0, 1], ACTIONS)
    assert lost.value.code == ExitCode.ACTOR_LOST
    assert str(lost.value) == (
        "actor 0 failed while stepping, after 2 env steps: RuntimeError: CountingEnv was told to raise at step"
    )
    assert "counting.py" in lost.value.details
    assert isinstance(lost.value.__cause__, RuntimeError)  # what it raised, not how we were told
    with pytest.raises(ActorLostError, match="actor 0 failed while resetting: RuntimeError"):
        guarded(fault="raise", fault_at="reset").reset(0)


def test_a6_the_context_names_environment_episode_step_and_action() -> None:
    env = guarded(lengths=[1], fault="raise", fault_step=2)
    env.reset(0)
    env.reset(1)
    env.step([1], ACTIONS[:1])
    env.reset(1)
    with pytest.raises(ActorLostError) as lost:
        env.step([0, 1], np.array([1, 0]))
    assert lost.value.context == {
        "who": "actor 0", "phase": "step", "env": 1, "episode": 1, "step": 0, "action": 0,
    }  # fmt: skip
    with pytest.raises(ActorLostError) as lost:
        guarded(fault="raise", fault_at="reset").reset(0)
    assert lost.value.context == {"who": "actor 0", "phase": "reset", "env": 0, "episode": 0, "step": 0}


def test_what_the_user_can_mend_stays_what_it_is() -> None:
    env = guarded()

    def refuse(*_: object) -> None:
        raise UsageError("no such level")

    env._env.reset = refuse  # type: ignore[method-assign]
    with pytest.raises(UsageError, match="no such level"):
        env.reset(0)


def test_a_failure_of_closing_is_logged_and_changes_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(self: GymEnv) -> None:
        raise OSError("the window is gone")

    monkeypatch.setattr(GymEnv, "close", fail)
    guarded().close()
    assert "actor 0: closing the environments failed" in caplog.text
    assert "the window is gone" in caplog.text
