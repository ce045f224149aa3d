"""The rows that the transport delivers, compared with an oracle that computes every row and its order.

The environments write actor, environment, episode and time into each observation. The number of env steps granted to an
actor determines every row of each of its environments.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from border_cli.actors.lockstep import LockstepSource
from border_cli.actors.manager import ActorManager
from border_cli.actors.spec import Rounds
from border_cli.config.schema import ActorManagerConfig
from border_cli.core.types import Chunk
from border_cli.runtime import forkserver
from border_cli.runtime.stopping import Backoff
from tests.fakes import COUNTING_COLUMNS, LIGHT_PRELOAD, counting_actors, make_resumable_env, model
from tests.faults.actors import LENGTHS, expected_rows
from tests.faults.amounts import times

N_ACTORS = 8


@pytest.fixture(autouse=True, scope="module")
def _light_forkserver() -> None:
    forkserver.start_early(LIGHT_PRELOAD)


def collect_all(manager: ActorManager, env_steps: int) -> list[Chunk]:
    """Grant all credit at once and collect until all env steps have arrived."""
    chunks: list[Chunk] = []
    backoff, arrived = Backoff(), 0
    manager.grant([env_steps // N_ACTORS] * N_ACTORS, 0)
    while arrived < env_steps:
        new = manager.collect()
        arrived += sum(chunk.env_steps for chunk in new)
        chunks += [chunk.copy() for chunk in new]
        if new:
            backoff = Backoff()
        else:
            backoff.sleep()
    return chunks


def test_expected_rows_by_hand() -> None:
    rows = list(expected_rows(7 + 1 + 2 + 1))
    assert rows[:8] == [*((0, t, t == 7) for t in range(8))]
    assert rows[8:] == [(1, 0, False), (1, 1, True), *((2, t, t == 2) for t in range(3)), (3, 0, False)]


def check_rows(chunks: list[Chunk], actor: int, env_steps: list[int]) -> None:
    """Check all rows of an actor. env_steps: of each of its environments."""
    items = [chunk.items for chunk in chunks if chunk.actor == actor]
    rows = {name: np.concatenate([part[name] for part in items]) for name in ("obs", "final", "env")}
    for env, steps in enumerate(env_steps):
        obs, final = (rows[name][rows["env"] == env] for name in ("obs", "final"))
        np.testing.assert_array_equal(obs[:, 0], actor)
        np.testing.assert_array_equal(obs[:, 1], env)
        expected = np.array(list(expected_rows(steps)), np.int64)
        np.testing.assert_array_equal(np.column_stack([obs[:, 2], obs[:, 3], final]), expected)


@pytest.mark.parametrize("n_envs", [1, 4])
def test_every_env_step_arrives_once_and_in_order(n_envs: int) -> None:
    env_steps = times(24_000, 100_000)
    spec = counting_actors(n_envs=n_envs, lengths=LENGTHS, truncate="odd")
    manager = ActorManager(spec, COUNTING_COLUMNS, N_ACTORS, ActorManagerConfig())
    try:
        manager.start(model())
        chunks = collect_all(manager, env_steps)
    finally:
        stats = manager.stop()
    assert manager.collect() == []
    for actor in range(N_ACTORS):
        headers = [(chunk.incarnation, chunk.sequence) for chunk in chunks if chunk.actor == actor]
        assert headers == [(0, n) for n in range(len(headers))]
        assert sum(chunk.env_steps for chunk in chunks if chunk.actor == actor) == env_steps // N_ACTORS
        steps = [len(range(env, env_steps // N_ACTORS, n_envs)) for env in range(n_envs)]
        check_rows(chunks, actor, steps)
    assert [(s.actor, s.env_steps, s.state) for s in stats] == [
        (actor, env_steps // N_ACTORS, "done") for actor in range(N_ACTORS)
    ]


# -- in lockstep --------------------------------------------------------


def collect_rounds(manager: LockstepSource, n: int) -> list[list[Chunk]]:
    """Collect n rounds as the learner does. After round r publish a model with version r + 1."""
    rounds: list[list[Chunk]] = []
    backoff = Backoff()
    while len(rounds) < n:
        chunks = manager.collect()
        if not chunks:
            backoff.sleep()
            continue
        rounds.append(chunks)
        manager.publish(model(len(rounds)))
        backoff = Backoff()
    return rounds


@pytest.mark.parametrize("credit", [126, 2])
def test_rounds_deliver_every_row_with_the_expected_model_version(credit: int) -> None:
    """In round r the actors use the model published after round r - 2. A round larger than the ring is split."""
    rounds = Rounds(n_actors=2, envs_per_actor=2, steps=11)
    spec = counting_actors(
        n_envs=2,
        credit=credit,
        make_env=make_resumable_env,
        lengths=LENGTHS,
        truncate="odd",
    )
    config = ActorManagerConfig(n_buffer=1)
    spec = replace(spec, rounds=rounds)
    manager = LockstepSource(ActorManager(spec, COUNTING_COLUMNS, rounds.n_actors, config))
    try:
        manager.start(model())
        collected = collect_rounds(manager, 40)
    finally:
        manager.stop()
    for r, chunks in enumerate(collected):
        assert [(chunk.actor, chunk.env_steps, chunk.version) for chunk in chunks] == [
            (actor, 22, max(r - 2, 0)) for actor in range(2)
        ]
    for actor in range(2):
        check_rows([chunk for chunks in collected for chunk in chunks], actor, [40 * 11] * 2)
