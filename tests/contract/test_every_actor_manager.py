"""Contract tests of every actor manager: actors in processes, and on a Ray cluster."""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from border_cli.actors.spec import ActorSpec
from border_cli.config.registry import ACTOR_MANAGERS
from border_cli.core.errors import ActorLostError
from border_cli.core.protocols import ExperienceSource
from border_cli.core.state import State
from border_cli.core.types import Chunk
from border_cli.runtime import forkserver
from tests.fakes import COUNTING_COLUMNS, LIGHT_PRELOAD, counting_actors, model
from tests.faults.processes import wait_until

Running = Callable[..., contextlib.AbstractContextManager[ExperienceSource]]
N_ACTORS = 2


@pytest.fixture(params=ACTOR_MANAGERS)
def running(request: pytest.FixtureRequest) -> Running:
    forkserver.start_early(LIGHT_PRELOAD)
    if request.param == "ray":
        request.getfixturevalue("ray_cluster")
    entry = ACTOR_MANAGERS[request.param]

    @contextlib.contextmanager
    def manager(
        spec: ActorSpec, state: State | None = None, on_exception: Any = lambda _: None, **config: Any
    ) -> Iterator[ExperienceSource]:
        settings = entry.config(restarts=0, min_actors=N_ACTORS, **config)
        source: ExperienceSource = entry.load()(
            spec, COUNTING_COLUMNS, N_ACTORS, settings, lambda: False, on_exception
        )
        try:
            source.start(model(), state)
            yield source
        finally:
            source.stop()

    return manager


def collect(manager: ExperienceSource, env_steps: int) -> list[Chunk]:
    """Return all chunks until at least `env_steps` env steps have arrived."""
    chunks: list[Chunk] = []
    wait_until(
        lambda: (
            chunks.extend(chunk.copy() for chunk in manager.collect())
            or sum(c.env_steps for c in chunks) >= env_steps
        ),
        f"{env_steps} env steps",
    )
    return chunks


@pytest.mark.parametrize(("n_envs", "credit"), [(1, 700), (3, 1001)])
def test_all_credit_is_used_and_every_row_arrives_once(running: Running, n_envs: int, credit: int) -> None:
    with running(counting_actors(n_envs=n_envs, lengths=[7])) as manager:
        manager.grant([credit, 2 * credit], 0)
        chunks = collect(manager, 3 * credit)
        assert manager.collect() == []
        stats = manager.stop()
    sequences: dict[int, list[int]] = defaultdict(list)
    for chunk in chunks:
        sequences[chunk.actor].append(chunk.sequence)
    assert all(numbers == list(range(len(numbers))) for numbers in sequences.values())
    assert [(stat.actor, stat.env_steps, stat.state) for stat in stats] == [
        (0, credit, "done"), (1, 2 * credit, "done"),
    ]  # fmt: skip
    for actor, taken in ((0, credit), (1, 2 * credit)):
        mine = [chunk.items for chunk in chunks if chunk.actor == actor]
        rows = {name: np.concatenate([items[name] for items in mine]) for name in ("obs", "env")}
        for env in range(n_envs):
            steps = len(range(env, taken, n_envs))
            expected = [(e, t) for e in range(steps // 7 + 1) for t in range(8)][: steps + steps // 7]
            assert rows["obs"][rows["env"] == env][:, 2:].tolist() == [list(pair) for pair in expected]


def test_a_published_model_is_used(running: Running) -> None:
    with running(counting_actors(n_buffer=4)) as manager:
        manager.grant([4, 4], 0)
        assert {chunk.version for chunk in collect(manager, 8)} == {0}
        manager.publish(model(5))
        manager.grant([8, 8], 1000)
        assert {chunk.version for chunk in collect(manager, 8)} == {5}


def test_rows_not_delivered_before_the_stop_are_collected_after_it_once(running: Running) -> None:
    with running(counting_actors(n_buffer=8, lengths=[3000])) as manager:  # no episode ends within the credit
        manager.grant([2000, 2000], 0)
        before: list[Chunk] = []
        wait_until(
            lambda: (
                before.extend(chunk.copy() for chunk in manager.collect())
                or {chunk.actor for chunk in before} == {0, 1}
            ),
            "chunks of both actors",
        )
        stats = manager.stop()
        chunks = before + [chunk.copy() for chunk in manager.collect()]
        assert manager.collect() == []
        assert [stat.env_steps for stat in manager.stop()] == [stat.env_steps for stat in stats]
    for stat in stats:
        times = np.concatenate([chunk.items["obs"][:, 3] for chunk in chunks if chunk.actor == stat.actor])
        assert sum(chunk.env_steps for chunk in chunks if chunk.actor == stat.actor) == len(times)
        np.testing.assert_array_equal(times, range(len(times)))


def test_a_resumed_manager_keeps_its_counts_and_increments_the_incarnation(running: Running) -> None:
    with running(counting_actors(lengths=[7])) as manager:
        manager.grant([70, 70], 0)
        collect(manager, 140)
        state = manager.state()
    with running(counting_actors(lengths=[7]), state) as manager:
        manager.grant([100, 100], 0)
        chunks = collect(manager, 60)
        stats = manager.stop()
    assert {chunk.incarnation for chunk in chunks} == {1}
    assert [(s.env_steps, s.env_steps_before, s.incarnation) for s in stats] == [(100, 70, 1)] * 2


@pytest.mark.parametrize("fault_at", ["make", "reset", "step"])
def test_a6_an_environment_that_raises_is_reported_after_its_chunks(running: Running, fault_at: str) -> None:
    spec = counting_actors(fault="raise", fault_at=fault_at, fault_step=30, fault_actor=1, n_buffer=10)
    reported: list[ActorLostError] = []
    arrived = list[Chunk]()
    with (
        pytest.raises(ActorLostError, match="actor 1 failed while") as lost,
        running(spec, on_exception=reported.append) as manager,
    ):
        manager.grant([30, 30], 0)
        wait_until(lambda: arrived.extend(chunk.copy() for chunk in manager.collect()), "the ActorLostError")
    # A chunk has at most ten env steps, and 29 env steps succeed before the one that raises.
    taken = sum(chunk.env_steps for chunk in arrived if chunk.actor == 1)
    assert 20 <= taken <= 29 if fault_at == "step" else taken == 0
    assert "group.py" in lost.value.details
    assert lost.value.context["actor"] == 1
    assert [str(error) for error in reported] == [str(lost.value)]
    assert lost.value.code == 5
