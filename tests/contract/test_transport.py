"""Actor, ring, status block and model channel together, in one process with a fake clock.

The test acts as the learner whenever the actor sleeps.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest

from border_cli.actors.actor import Actor, LockstepActor
from border_cli.actors.sampler import Sampler
from border_cli.actors.spec import LOCKSTEP_SLOTS, ActorId, ActorState, ActorStatus, Rounds, StatusBlock
from border_cli.config.schema import EnvConfig
from border_cli.core.types import Chunk
from border_cli.envs.group import GymEnv
from border_cli.replay.buffer import RowReplayBuffer
from border_cli.replay.samplers import UniformSampler
from border_cli.runtime.transport import ModelChannel, Ring, model_layout
from tests.fakes import (
    COUNTING_COLUMNS,
    COUNTING_SPEC,
    NumpyPolicy,
    make_processor,
    make_resumable_env,
    model,
)

MS = 1_000_000


@dataclass
class FakeClock:
    """Advances only in `sleep`, which then calls `on_sleep`, the next act of the learner."""

    now_ns: int = 10**12
    on_sleep: Callable[[], None] = lambda: None

    def sleep(self, seconds: float) -> None:
        self.now_ns += round(seconds * 1e9)
        self.on_sleep()


@dataclass
class Bench:
    """One actor with its ring, status block and model channel."""

    n_envs: int = 1
    n_buffer: int = 4
    ring_rows: int = 64
    length: int = 7
    clock: ClassVar = FakeClock()

    def __post_init__(self) -> None:
        self.status = StatusBlock(2)
        self.actor_status: ActorStatus = self.status[1]
        self.actor_status.changed.wait = self.clock.sleep  # type: ignore[method-assign]
        self.ring = Ring(COUNTING_COLUMNS, self.ring_rows)
        self.models = ModelChannel(model_layout(model()))
        self.policy = NumpyPolicy()
        self.chunks: list[Chunk] = []
        actor_id = ActorId(actor=1, incarnation=2, n_actors=2, n_envs=self.n_envs, seed=0)
        kwargs = {"actor": 1, "lengths": [self.length]}
        env = GymEnv(EnvConfig(entry_point="tests.counting:CountingEnv", kwargs=kwargs), self.n_envs)
        assert env.spec == COUNTING_SPEC
        processor = make_processor(actor_id, env.spec)
        sampler = Sampler(env, self.policy, processor, lambda env, episode: None if episode else env)
        sampler.begin()
        place = (actor_id, sampler, self.policy, self.models, self.ring, self.actor_status)
        self.actor = Actor(*place, self.n_buffer)

    def run(self, *learner_acts: Callable[[], None]) -> None:
        """Run the actor. At each of its sleeps the learner does its next act, and finally requests the stop."""
        acts = iter([*learner_acts, self.status.request_stop])

        def act() -> None:
            next(acts)()

        self.clock.on_sleep = act
        self.actor.run()
        self.collect()

    def grant(self, credit: int, env_steps: int = 0) -> None:
        self.status.grant([0, credit], env_steps)

    def collect(self) -> None:
        self.chunks += [chunk.copy() for chunk in self.ring.pop_all()]

    @property
    def env_steps(self) -> list[int]:
        return [chunk.env_steps for chunk in self.chunks]


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Bench, "clock", FakeClock())
    monkeypatch.setattr("border_cli.actors.actor.monotonic_ns", lambda: Bench.clock.now_ns)


def test_a_chunk_is_sent_at_n_buffer_env_steps_and_before_waiting() -> None:
    bench = Bench(n_buffer=4)
    bench.grant(10)
    bench.run()
    assert bench.env_steps == [4, 4, 2]
    assert [(c.actor, c.incarnation, c.sequence) for c in bench.chunks] == [(1, 2, 0), (1, 2, 1), (1, 2, 2)]


@pytest.mark.parametrize(
    ("took_ns", "env_steps"), [([50 * MS - 1, 1, 50 * MS], [2, 1]), ([50 * MS] * 3, [1, 1, 1])]
)
def test_a_chunk_is_sent_after_50_ms(took_ns: list[int], env_steps: list[int]) -> None:
    bench = Bench(n_buffer=1000)
    times, quick = iter(took_ns), bench.policy.sample

    def slow(*args: object) -> np.ndarray:
        bench.clock.now_ns += next(times)
        return quick(*args)  # type: ignore[arg-type]

    bench.policy.sample = slow  # type: ignore[method-assign,assignment]
    bench.grant(3)
    bench.run()
    assert bench.env_steps == env_steps


def test_exploration_follows_the_global_count_and_the_actors_own_unpublished_steps() -> None:
    bench = Bench(n_buffer=3)
    bench.grant(5, 100)
    bench.run()
    assert list(bench.policy.env_steps) == [100, 101, 102, 100, 101]


def test_a_full_ring_makes_the_actor_wait_and_loses_nothing() -> None:
    bench = Bench(n_buffer=8, ring_rows=16, length=1000)
    seen: list[tuple[ActorState, int]] = []

    def look() -> None:
        seen.append((bench.actor_status.state, bench.actor_status.heartbeat))

    bench.grant(32)
    bench.run(look, look, bench.collect, bench.collect)
    assert [state for state, _ in seen] == [ActorState.WAITING_FOR_ROOM] * 2
    assert seen[1][1] == seen[0][1] + 1  # alive while it waits
    times = np.concatenate([chunk.items["obs"][:, 3] for chunk in bench.chunks])
    np.testing.assert_array_equal(times, range(32))
    assert sum(bench.env_steps) == 32
    # Four times until the second collect frees room, and once for credit, each for a whole beat of this clock.
    assert bench.actor_status.blocked_ns == 5 * 250 * MS


def test_rows_may_be_inserted_directly_from_the_ring() -> None:
    """The actor overwrites the memory of a chunk later; this does not change the replay."""
    direct, copied = (
        RowReplayBuffer(64, COUNTING_SPEC, UniformSampler(np.random.default_rng(0)), n_step=3) for _ in "ab"
    )
    bench = Bench(n_buffer=2, length=9)
    bench.grant(40)
    bench.run()
    for chunk in bench.chunks:
        copied.push(chunk.copy().items)
        direct.push(chunk.items)
        for column in chunk.items.values():
            column[...] = 1
    assert len(direct) == len(copied) == 37
    batch, other = direct.batch(30), copied.batch(30)
    for name in ("ix", "reward", "terminated", "discount"):
        np.testing.assert_array_equal(getattr(batch, name), getattr(other, name))
    np.testing.assert_array_equal(batch.next_obs["obs"], other.next_obs["obs"])


def test_a_new_model_is_loaded_only_between_chunks() -> None:
    bench = Bench(n_buffer=4)
    bench.models.publish(model(10))
    bench.grant(6)

    def next_model() -> None:
        bench.models.publish(model(20))
        bench.grant(12)

    bench.run(next_model)
    assert [(chunk.env_steps, chunk.version) for chunk in bench.chunks] == [(4, 0), (2, 10), (4, 20), (2, 20)]
    assert bench.policy.versions == [10, 20]


def test_time_counts_from_the_first_env_step_on() -> None:
    bench = Bench(length=3, n_buffer=100)
    began = bench.clock.now_ns
    bench.run(bench.collect, lambda: bench.grant(10))
    status = bench.actor_status
    # the wait for the stop, not the two before the first env step
    assert (status.first_step_ns - began, status.blocked_ns) == (500 * MS, 250 * MS)


@pytest.mark.parametrize(("publications", "rounds"), [(1, 3), (3, 5)])
def test_a_lockstep_round_waits_for_the_model_two_rounds_before(publications: int, rounds: int) -> None:
    """Actor 1 of three. Each time that it waits, the learner publishes a model, and finally stops it."""
    status, models = StatusBlock(3), ModelChannel(model_layout(model()), LOCKSTEP_SLOTS)
    versions = iter(range(publications))

    def wait(_: float) -> None:
        version = next(versions, None)
        if version is None:
            status.request_stop()
        else:
            models.publish(model(version))

    status[1].changed.wait = wait  # type: ignore[method-assign]
    actor_id = ActorId(actor=1, incarnation=0, n_actors=3, n_envs=2, seed=0)
    config = EnvConfig(entry_point="tests.counting:CountingEnv", kwargs={"lengths": [100]})
    env, policy, ring = make_resumable_env(actor_id, config), NumpyPolicy(), Ring(COUNTING_COLUMNS, 512)
    sampler = Sampler(env, policy, make_processor(actor_id, env.spec), lambda env, episode: episode)
    acting = {"rounds": Rounds(n_actors=3, envs_per_actor=2, steps=4), "send": print}
    actor = LockstepActor(
        actor_id, sampler, policy, models, ring, status[1], state_wanted=lambda: False, **acting
    )
    actor.begin(None)
    actor.run()
    assert policy.versions == list(range(publications))
    assert [chunk.version for chunk in ring.pop_all()] == [max(r - 2, 0) for r in range(rounds)]
    # exploration counts the earlier env steps of all actors: 4 of each of 6 environments per round
    assert list(policy.env_steps) == [24 * r + 6 * step for r in range(rounds) for step in range(4)]
