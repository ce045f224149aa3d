"""The loop of an actor in lockstep, without a process: which model it holds, and what exploration counts from."""

from __future__ import annotations

from typing import Any

import pytest

from border_cli.actors.board import Board
from border_cli.actors.lockstep_actor import LockstepActor
from border_cli.actors.place import Place
from border_cli.actors.proxy import ReplayBufferProxy
from border_cli.actors.rounds import LOCKSTEP_SLOTS, Rounds
from border_cli.actors.sampler import ResumableSampler
from border_cli.actors.waiting import Waiter
from border_cli.config.schema import EnvConfig
from border_cli.core.state import State
from border_cli.transport.model_channel import ModelChannel, model_layout
from border_cli.transport.ring import Ring
from tests.fakes import COUNTING_COLUMNS, NumpyPolicy, make_processor, make_resumable_env, model

ROUNDS = Rounds(n_actors=3, envs_per_actor=2, steps=4)


class NoRequests:
    def wanted(self) -> bool:
        return False

    def answer(self, state: State) -> None:
        raise AssertionError("nobody asked")


class Learner:
    """Stands for the clock of a waiting actor: each time it sleeps, the next model is published, then it is stopped."""

    def __init__(self, models: ModelChannel, board: Board, publications: int) -> None:
        self._models, self._board, self._left = models, board, publications
        self._published = 0

    def monotonic_ns(self) -> int:
        return 10**9

    def sleep(self, seconds: float) -> None:
        if self._published == self._left:
            self._board.request_stop()
            return
        self._models.publish(model(self._published))
        self._published += 1


def acted(publications: int) -> tuple[NumpyPolicy, list[Any]]:
    """Actor 1 of three, until it waits for one model more. The policy, and the chunks it handed over."""
    place, board = Place(actor=1, incarnation=0, n_actors=3, n_envs=2, seed=0), Board(3)
    config = EnvConfig(entry_point="border_cli.envs.counting:CountingEnv", kwargs={"lengths": [100]})
    env, policy, line = make_resumable_env(place, config), NumpyPolicy(), board.line(1)
    ring = Ring(COUNTING_COLUMNS, 512)
    models = ModelChannel(model_layout(model()), LOCKSTEP_SLOTS)
    waiter = Waiter(line, Learner(models, board, publications))
    proxy = ReplayBufferProxy(ring, place, 1, waiter)
    sampler = ResumableSampler(
        env, policy, make_processor(place, env.spec, 1), lambda env, episode: episode, ""
    )
    actor = LockstepActor(place, ROUNDS, sampler, policy, models, proxy, line, waiter, NoRequests())
    actor.begin(None)
    actor.run()
    return policy, ring.pop_all()


@pytest.mark.parametrize(("publications", "rounds"), [(1, 3), (2, 4), (3, 5)])
def test_c8_rounds_wait_for_the_model_of_two_rounds_before(publications: int, rounds: int) -> None:
    policy, chunks = acted(publications)
    assert policy.versions == list(range(publications))
    assert [chunk.version for chunk in chunks] == [max(r - 2, 0) for r in range(rounds)]


def test_exploration_counts_what_all_actors_have_taken_before() -> None:
    """4 env steps of each of 6 environments in a round, in turn."""
    policy, _ = acted(1)
    assert list(policy.env_steps) == [24 * r + 6 * step for r in range(3) for step in range(4)]
