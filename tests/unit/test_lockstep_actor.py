"""The loop of a lockstep actor in this process: its model in each round, and the env steps for exploration."""

from __future__ import annotations

from typing import Any

import pytest

from border_cli.actors.actor import LockstepActor
from border_cli.actors.sampler import Sampler
from border_cli.actors.spec import LOCKSTEP_SLOTS, ActorId, ActorStatus, Rounds, StatusBlock
from border_cli.config.schema import EnvConfig
from border_cli.runtime.transport import ModelChannel, Ring, model_layout
from tests.fakes import COUNTING_COLUMNS, NumpyPolicy, make_processor, make_resumable_env, model

ROUNDS = Rounds(n_actors=3, envs_per_actor=2, steps=4)


class PublishingStatus(ActorStatus):
    """A status that publishes the next model each time that the actor waits, and finally stops it."""

    def __init__(self, status: StatusBlock, models: ModelChannel, publications: int) -> None:
        super().__init__(*status[1].__reduce__()[1])
        self._block, self._models, self._left = status, models, publications
        self._published = 0

    def wait(self, seconds: float) -> None:
        if self._published == self._left:
            self._block.request_stop()
            return
        self._models.publish(model(self._published))
        self._published += 1


def acted(publications: int) -> tuple[NumpyPolicy, list[Any]]:
    """Run actor 1 of three until it waits for a model after the last. Returns the policy and the chunks."""
    actor_id, status = ActorId(actor=1, incarnation=0, n_actors=3, n_envs=2, seed=0), StatusBlock(3)
    config = EnvConfig(entry_point="tests.counting:CountingEnv", kwargs={"lengths": [100]})
    env, policy = make_resumable_env(actor_id, config), NumpyPolicy()
    ring = Ring(COUNTING_COLUMNS, 512)
    models = ModelChannel(model_layout(model()), LOCKSTEP_SLOTS)
    processor = make_processor(actor_id, env.spec, 1)
    sampler = Sampler(env, policy, processor, lambda env, episode: episode, "")
    waiting = PublishingStatus(status, models, publications)
    acting = {"rounds": ROUNDS, "send": print, "state_wanted": lambda: False}
    actor = LockstepActor(actor_id, sampler, policy, models, ring, waiting, **acting)
    actor.begin(None)
    actor.run()
    return policy, ring.pop_all()


@pytest.mark.parametrize(("publications", "rounds"), [(1, 3), (2, 4), (3, 5)])
def test_c8_each_round_waits_for_the_model_published_after_the_round_before_last(
    publications: int, rounds: int
) -> None:
    policy, chunks = acted(publications)
    assert policy.versions == list(range(publications))
    assert [chunk.version for chunk in chunks] == [max(r - 2, 0) for r in range(rounds)]
    # exploration counts the earlier env steps of all actors: 4 of each of 6 environments per round
    assert list(policy.env_steps) == [24 * r + 6 * step for r in range(rounds) for step in range(4)]
