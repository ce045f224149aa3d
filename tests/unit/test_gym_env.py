"""Making several environments, which may take long or fail half-way."""

from __future__ import annotations

import pytest

from border_cli.config.schema import EnvConfig
from border_cli.core.errors import ExitCode, Interrupted
from border_cli.envs.gym_env import GymEnv
from tests.envs import Sampled

CLOSED: list[object] = []


class Closing(Sampled):
    """Notes that it was closed."""

    def __init__(self) -> None:
        super().__init__("discrete")

    def close(self) -> None:
        CLOSED.append(self)


@pytest.fixture
def config() -> EnvConfig:
    CLOSED.clear()
    return EnvConfig(entry_point=f"{__name__}:Closing")


def test_between_two_environments_somebody_else_has_a_turn(config: EnvConfig) -> None:
    turns: list[int] = []
    env = GymEnv(config, 3, made=lambda: turns.append(len(turns)))
    assert turns == [0, 1, 2]
    env.close()
    assert len(CLOSED) == 3


def test_those_that_were_made_are_closed_when_the_making_ends_early(config: EnvConfig) -> None:
    turns: list[int] = []

    def stop() -> None:
        turns.append(1)
        if len(turns) == 2:
            raise Interrupted(ExitCode.SIGTERM)

    with pytest.raises(Interrupted):
        GymEnv(config, 3, made=stop)
    assert len(CLOSED) == 2
