"""What actor, ring, board and model channel promise each other, in one process and on a clock made for it.

The learner's part is played whenever the actor sleeps.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import pytest

from border_cli.actors.actor import Actor
from border_cli.actors.board import ActorLine, ActorState, Board
from border_cli.actors.place import Place
from border_cli.actors.proxy import ReplayBufferProxy
from border_cli.actors.sampler import Sampler
from border_cli.actors.waiting import Waiter
from border_cli.config.schema import EnvConfig
from border_cli.core.items import Chunk
from border_cli.core.protocols import ActorStat
from border_cli.envs.gym_env import GymEnv
from border_cli.transport.model_channel import ModelChannel, model_layout
from border_cli.transport.ring import Ring
from tests.fakes import COUNTING_COLUMNS, COUNTING_SPEC, NumpyPolicy, make_processor, model

MS = 1_000_000


@dataclass
class FakeClock:
    """Stands still but for sleeps, each of which lets the learner do something."""

    now_ns: int = 10**12
    on_sleep: Callable[[], None] = lambda: None

    def monotonic_ns(self) -> int:
        return self.now_ns

    def sleep(self, seconds: float) -> None:
        self.now_ns += round(seconds * 1e9)
        self.on_sleep()


@dataclass
class Bench:
    """One actor and everything between it and the learner."""

    n_envs: int = 1
    n_buffer: int = 4
    ring_rows: int = 64
    n_step: int = 1
    length: int = 7
    clock: FakeClock = field(default_factory=FakeClock)

    def __post_init__(self) -> None:
        self.board = Board(2)
        self.line: ActorLine = self.board.line(1)
        self.ring = Ring(COUNTING_COLUMNS, self.ring_rows)
        self.models = ModelChannel(model_layout(model()))
        self.policy = NumpyPolicy()
        self.chunks: list[Chunk] = []
        place = Place(actor=1, incarnation=2, n_actors=2, n_envs=self.n_envs, seed=0)
        config = EnvConfig(
            entry_point="border_cli.envs.counting:CountingEnv",
            kwargs={"actor": 1, "lengths": [self.length]},
        )
        env = GymEnv(config, self.n_envs)
        assert env.spec == COUNTING_SPEC
        processor = make_processor(place, env.spec, self.n_step)
        sampler = Sampler(env, self.policy, processor, range(self.n_envs))
        sampler.begin()
        waiter = Waiter(self.line, self.clock)
        self.proxy = ReplayBufferProxy(self.ring, place, self.n_buffer, waiter, self.clock)
        self.actor = Actor(
            place, sampler, self.policy, self.models, self.proxy, self.line, waiter, 0, self.clock
        )

    def run(self, *learner_acts: Callable[[], None]) -> ActorStat:
        """Run the actor; at its sleeps the learner does one act after the other, then asks it to stop."""
        acts = iter([*learner_acts, self.board.request_stop])

        def act() -> None:
            next(acts)()

        self.clock.on_sleep = act
        stat = self.actor.run()
        self.collect()
        return stat

    def grant(self, credit: int) -> None:
        self.board.grant([0, credit])

    def collect(self) -> None:
        self.chunks += self.ring.pop_all()

    @property
    def env_steps(self) -> list[int]:
        return [chunk.env_steps for chunk in self.chunks]


@pytest.mark.parametrize("n_envs", [1, 3, 4])
@pytest.mark.parametrize("credits", [[1], [10], [3, 4, 11, 12]])
def test_credit_is_used_to_the_last_step_and_spread_evenly(n_envs: int, credits: list[int]) -> None:
    bench = Bench(n_envs=n_envs, length=1000)
    stat = bench.run(*[lambda c=c: bench.grant(c) for c in credits])
    assert stat.env_steps == sum(bench.env_steps) == credits[-1]
    env = np.concatenate([chunk.items["env"] for chunk in bench.chunks])
    shares = [int(np.sum(env == i)) for i in range(n_envs)]
    assert shares == [len(range(i, credits[-1], n_envs)) for i in range(n_envs)]


def test_chunks_leave_at_n_buffer_env_steps_and_before_waiting() -> None:
    bench = Bench(n_buffer=4)
    bench.grant(10)
    bench.run()
    assert bench.env_steps == [4, 4, 2]
    assert [(c.actor, c.incarnation, c.sequence) for c in bench.chunks] == [(1, 2, 0), (1, 2, 1), (1, 2, 2)]


def test_a_chunk_leaves_after_50_ms() -> None:
    bench = Bench(n_buffer=1000)
    items = {c.name: np.zeros((1, *c.shape), c.dtype) for c in COUNTING_COLUMNS}
    bench.proxy.begin_step()
    bench.proxy.push(items, 1, 0)
    bench.clock.now_ns += 50 * MS - 1
    assert not bench.proxy.publish_if_due()
    bench.clock.now_ns += 1
    assert bench.proxy.publish_if_due()
    assert not bench.proxy.publish_if_due()
    bench.collect()
    assert bench.env_steps == [1]


def test_an_env_step_that_takes_50_ms_leaves_by_itself() -> None:
    bench = Bench(n_buffer=1000)
    quick = bench.policy.sample

    def slow(*words: object) -> np.ndarray:
        bench.clock.now_ns += 50 * MS
        return quick(*words)  # type: ignore[arg-type]

    bench.policy.sample = slow  # type: ignore[method-assign,assignment]
    bench.grant(3)
    bench.run()
    assert bench.env_steps == [1, 1, 1]


def test_env_steps_count_where_n_step_completes_no_rows_yet() -> None:
    bench = Bench(n_buffer=2, n_step=5, length=1000)
    bench.grant(6)
    bench.run()
    assert bench.env_steps == [2, 2, 2]
    assert [chunk.rows for chunk in bench.chunks] == [0, 0, 2]


def test_exploration_follows_the_global_count_and_the_actors_own_unpublished_steps() -> None:
    bench = Bench(n_buffer=3)
    bench.board.announce(100)
    bench.grant(5)
    bench.run()
    assert list(bench.policy.env_steps) == [100, 101, 102, 100, 101]


def test_a_full_ring_makes_the_actor_wait_and_loses_nothing() -> None:
    bench = Bench(n_buffer=8, ring_rows=16, length=1000)
    seen: list[tuple[ActorState, int]] = []

    def look() -> None:
        seen.append((bench.line.state, bench.line.heartbeat))

    bench.grant(32)
    stat = bench.run(look, look, bench.collect, bench.collect)
    assert [state for state, _ in seen] == [ActorState.WAITING_FOR_ROOM] * 2
    assert seen[1][1] == seen[0][1] + 1  # alive while it waits
    times = np.concatenate([chunk.items["obs"][:, 3] for chunk in bench.chunks])
    np.testing.assert_array_equal(times, range(32))
    assert sum(bench.env_steps) == 32
    # three sleeps of 0.1, 0.2 and 0.4 ms for room; then 0.1 and 0.2 ms for credit until the stop
    assert stat.blocked_seconds == pytest.approx(1.0e-3)


def test_a_chunk_larger_than_the_ring_is_split_and_counted_once() -> None:
    bench = Bench(n_buffer=40, ring_rows=16, length=1000)
    bench.grant(40)
    bench.run(bench.collect, bench.collect, bench.collect)
    assert [chunk.rows for chunk in bench.chunks] == [16, 16, 8]
    assert bench.env_steps == [0, 0, 40]
    assert [chunk.sequence for chunk in bench.chunks] == [0, 1, 2]


def test_a_new_model_is_taken_between_chunks_only() -> None:
    bench = Bench(n_buffer=4)
    bench.models.publish(model(10))
    bench.grant(6)

    def next_model() -> None:
        bench.models.publish(model(20))
        bench.grant(12)

    bench.run(next_model)
    assert [(chunk.env_steps, chunk.version) for chunk in bench.chunks] == [(4, 0), (2, 10), (4, 20), (2, 20)]
    assert bench.policy.versions == [10, 20]


def test_what_is_unpublished_at_the_stop_is_handed_over() -> None:
    bench = Bench(n_buffer=1000)
    bench.grant(7)
    sample = bench.policy.sample

    def sample_and_stop(obs: dict[str, np.ndarray], env_steps: int = 0, env_ix: object = ()) -> np.ndarray:
        if env_steps == 5:
            bench.board.request_stop()
        return sample(obs, env_steps)

    bench.policy.sample = sample_and_stop  # type: ignore[method-assign]
    stat = bench.actor.run()
    bench.collect()
    assert stat.env_steps == 6
    assert bench.env_steps == [6]
    assert bench.line.state == ActorState.STOPPING


def test_waiting_before_the_first_env_step_is_not_blocked() -> None:
    bench = Bench()
    stat = bench.run(bench.collect, bench.collect)
    assert (stat.seconds, stat.blocked_seconds) == (0.0, 0.0)


def test_stat_counts_episodes_and_time() -> None:
    bench = Bench(length=3, n_buffer=100)
    bench.grant(10)
    stat = bench.run()
    assert (stat.actor, stat.incarnation, stat.episodes, stat.env_steps) == (1, 2, 3, 10)
    assert stat.state == "done"
    assert stat.seconds == pytest.approx(1e-4)
