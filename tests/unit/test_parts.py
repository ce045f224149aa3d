"""Configured values reach the components of actors and evaluations."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from border_cli.actors.spec import ActorId
from border_cli.agents.dqn.config import DqnConfig
from border_cli.config.schema import BufferConfig, EnvConfig, TrainConfig
from border_cli.core.protocols import ActingPolicy
from border_cli.run import factories
from tests.fakes import processed
from tests.unit.test_step_processor import SPEC, step, transitions

OBS = {"obs": np.zeros((20_000, 1), np.float32)}


def config(n_step: int = 1, **agent: Any) -> TrainConfig:
    return TrainConfig(
        agent=DqnConfig(hidden=[4], **agent), env=EnvConfig(id="x"), buffer=BufferConfig(n_step=n_step)
    )


def place(actor: int = 0, n_actors: int = 1) -> ActorId:
    return ActorId(actor=actor, incarnation=0, n_actors=n_actors, n_envs=1, seed=0)


def random_share(policy: ActingPolicy) -> float:
    """Return the share of non-greedy actions, which is 8/9 ε for 9 actions."""
    actions = policy.sample(OBS, env_steps=10**9)
    return 1 - np.bincount(actions, minlength=9).max() / len(actions)


@pytest.fixture(autouse=True)
def _threads() -> Any:
    """Restore the number of threads, which components of an actor set."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def test_n_step_gamma_and_reward_clip_reach_the_replay() -> None:
    chosen = config(3, gamma=0.5, reward_clip=1.0)
    processor, buffer = factories.actor_processor(place(), SPEC, chosen), factories.make_buffer(chosen, SPEC)
    for t, reward in enumerate((3.0, -5.0, 0.5, 0.0)):
        buffer.push(processed(processor, step(t, reward)))
    assert transitions(buffer) == {(0.0, 1.0 - 0.5 + 0.25 * 0.5, 0.125, False, 3.0)}


@pytest.mark.parametrize(("actor", "power"), [(0, 1), (7, 8)])
def test_the_ladder_reaches_each_actor(actor: int, power: int) -> None:
    agent = config(epsilon_start=0.8, epsilon_final=0.8, epsilon_ladder=7.0).agent
    policy = factories.actor_policy(place(actor, 8), SPEC, TrainConfig(agent=agent))
    assert random_share(policy) == pytest.approx(0.8**power * 8 / 9, abs=0.015)


def test_eval_epsilon_reaches_only_evaluations() -> None:
    chosen = config(eval_epsilon=0.5, epsilon_start=0.0, epsilon_final=0.0)
    evaluating = factories.evaluation_policy(SPEC, chosen)
    evaluating.eval()
    assert random_share(evaluating) == pytest.approx(0.5 * 8 / 9, abs=0.015)
    assert random_share(factories.actor_policy(place(), SPEC, chosen)) == 0.0
