"""Actors on a cluster without a cluster: what a call brings and takes, models, and a cluster that is not there."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from border_cli.actors import ray_actors
from border_cli.actors.lockstep import make_manager
from border_cli.actors.manager import Link
from border_cli.actors.ray_actors import RayChild, RayLink, RemoteActor, RemoteSetup, Reply
from border_cli.actors.spec import ActorState, Rounds, StatusBlock
from border_cli.config.resolve import ratio_tolerance
from border_cli.config.schema import RayConfig, TrainConfig
from border_cli.core.errors import UsageError
from border_cli.core.types import Chunk, empty_items
from border_cli.runtime import ray_cluster
from border_cli.runtime.transport import model_layout
from border_cli.runtime.worker import Failed, Ready
from tests.fakes import COUNTING_COLUMNS, counting_actors, model


@pytest.fixture(autouse=True)
def _logging_of_this_process() -> Iterator[None]:
    """A `RemoteActor` sends what its process logs to the learner. Its process is here that of the tests."""
    root = logging.getLogger()
    before = root.handlers[:], root.level
    yield
    root.handlers[:] = before[0]
    root.setLevel(before[1])
    logging.captureWarnings(False)


def setup_of(capacity: int = 64, **actors: Any) -> RemoteSetup:
    spec = counting_actors(**{"lengths": [7], **actors})
    return RemoteSetup(spec, spec.actor_id(0, 0, 1), COUNTING_COLUMNS, capacity, model_layout(model()), 0, 30)


def link_to(store: Any, rounds: Rounds | None = None, published: int = 0) -> RayLink:
    """A link to this in the place of Ray, with one model."""
    link: Any = RayLink.__new__(RayLink)
    link.ray, link.options, link.spec, link._refs = store, {}, SimpleNamespace(rounds=rounds), {}
    slots = 2 if rounds is None else 3
    link.models = ray_actors.ModelChannel(model_layout(model()), slots, published)
    link.models.publish(model(published + 1))
    result: RayLink = link
    return result


def test_a_model_is_put_into_the_store_once_and_only_if_an_actor_needs_it() -> None:
    put: list[int] = []
    store = SimpleNamespace(put=lambda info: put.append(info.version) or f"ref {info.version}")
    link = link_to(store)
    newest = model(2)
    link.models.publish(newest)
    newest.arrays["weight"][:] = 99.0  # the learner continues
    assert link.models_after(0) == ["ref 2"]
    assert link.models_after(0) == ["ref 2"]
    assert (put, link.models_after(2), link.models.publications) == ([2], [], 2)
    lockstep = link_to(store, Rounds(1, 1, 1), published=5)
    for version in (7, 8, 9):
        lockstep.models.publish(model(version))
    assert lockstep.models_after(6) == ["ref 7", "ref 8", "ref 9"]
    assert lockstep.models_after(8) == ["ref 9"]


# -- on a node -----------------------------------------------------------------


def called(actor: RemoteActor, credit: int, *models: Any, stop: bool = False) -> Reply:
    return actor.collect(credit, 0, stop, False, *models)


def messages_of(actor: RemoteActor, *models: Any) -> list[object]:
    """The first messages of an actor without credit."""
    messages = called(actor, 0, *models).messages
    while not messages:
        messages = called(actor, 0).messages
    return messages


def test_calls_bring_every_chunk_in_order_although_the_ring_is_small() -> None:
    actor = RemoteActor(setup_of(capacity=8, n_buffer=4))
    assert messages_of(actor, model()) == [Ready(True)]
    chunks: list[Chunk] = []
    while sum(chunk.env_steps for chunk in chunks) < 100:
        chunks += called(actor, 100).chunks
    assert [chunk.sequence for chunk in chunks] == list(range(len(chunks)))
    end = called(actor, 100, stop=True)
    while end.state is not ActorState.DONE:
        end = called(actor, 100, stop=True)
    assert (end.chunks, end.messages) == ([], [])


def test_a_call_waits_for_an_actor_that_acts_and_not_for_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """The actor begins within 0.5 s, acts for 0.6 s until its chunk is due, and then waits for credit."""
    monkeypatch.setattr(ray_actors, "WAIT_S", 60.0)
    monkeypatch.setattr(ray_actors, "_IDLE_S", 0.5)
    monkeypatch.setattr("border_cli.actors.actor.MAX_AGE_NS", 10**12)
    actor = RemoteActor(setup_of(n_buffer=3, step_s=0.2))
    messages_of(actor, model())
    (chunk,) = called(actor, 3).chunks
    assert chunk.env_steps == 3
    assert called(actor, 3).chunks == []


def test_an_exception_of_an_environment_comes_with_the_name_of_the_machine() -> None:
    actor = RemoteActor(setup_of(fault="raise", fault_at="make"))
    (message,) = messages_of(actor)
    assert isinstance(message, Failed)
    assert " (on node " in message.error.splitlines()[0]
    assert "CountingEnv raises" in message.traceback


# -- in the learner ------------------------------------------------------------


class Store:
    """In the place of Ray: calls of one actor, whose answers arrive when the test says so."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.answers: dict[int, Any] = {}

    def remote(self, _: type) -> Any:
        collect = SimpleNamespace(remote=self._call)
        return SimpleNamespace(
            options=lambda **_: SimpleNamespace(remote=lambda _: SimpleNamespace(collect=collect))
        )

    def _call(self, *orders: Any) -> int:
        self.calls.append(orders)
        return len(self.calls)

    def put(self, info: Any) -> int:
        version: int = info.version
        return version

    def wait(self, calls: list[int], **_: Any) -> tuple[list[int], list[int]]:
        return [call for call in calls if call in self.answers], []

    def get(self, call: int) -> Any:
        answer = self.answers[call]
        if isinstance(answer, Exception):
            raise answer
        return answer

    def kill(self, *_: Any, **__: Any) -> None: ...


def reply(*chunks: Chunk, state: ActorState = ActorState.ACTING) -> Reply:
    return Reply(list(chunks), [], state, 1, 1.0, 500_000_000)


def chunk(sequence: int) -> Chunk:
    return Chunk(0, 0, sequence, 3, 7, empty_items(COUNTING_COLUMNS, 3))


def test_one_call_is_under_way_and_the_next_tells_what_is_new() -> None:
    store, block = Store(), StatusBlock(1)
    link = link_to(store)
    child = RayChild(link, setup_of(), block[0])
    block.grant([5], 0)
    link.models.publish(model(2))
    child.tell()
    assert store.calls == [(0, 0, False, False, 1)]
    store.answers[1] = reply(chunk(0))
    assert list(child.receive()) == []
    assert [arrived.sequence for arrived in child.pop_all()] == [0] and not child.pop_all()
    assert store.calls[1:] == [(5, 0, False, False, 2)]
    store.answers[2] = reply()  # nothing came, and nothing is new: a pause
    assert list(child.receive()) == [] and child.call is None
    child.send("its state")
    assert store.calls[2:] == [(5, 0, False, True)]
    store.answers[3] = reply(chunk(1), state=ActorState.DONE)
    assert list(child.receive()) == []
    assert child.exited() and len(child.pop_all()) == 1 and child.call is None


def test_a_lost_actor_has_ended_at_once() -> None:
    store = Store()
    child = RayChild(link_to(store), setup_of(), StatusBlock(1)[0])
    store.answers[1] = RuntimeError("the node left")
    assert list(child.receive()) == []
    assert child.exited() and child.exit_reason == "was lost: the node left"


def test_an_actor_that_waits_for_its_place_ends_when_the_run_does() -> None:
    block = StatusBlock(1)
    child = RayChild(link_to(Store()), setup_of(), block[0])
    block.request_stop()
    assert list(child.receive()) == []
    assert child.exited() and child.call is None and block[0].state is ActorState.DONE


def test_the_times_of_an_actor_are_those_of_all_its_incarnations() -> None:
    store, block = Store(), StatusBlock(1)
    block[0].first_step_ns, block[0].blocked_ns = 1, 3_000_000_000  # an earlier one was blocked for 3 s
    child = RayChild(link_to(store), setup_of(), block[0])
    store.answers[1] = reply()
    assert list(child.receive()) == []
    assert (block[0].first_step_ns, block[0].blocked_ns) == (1, 3_500_000_000)


def test_the_room_of_a_cluster_is_not_lost_to_rounding() -> None:
    cluster = ray_cluster.Cluster.__new__(ray_cluster.Cluster)
    nodes = [
        {"Alive": True, "Resources": {"CPU": 1.0, "GPU": 3.0}},
        {"Alive": False, "Resources": {"CPU": 9.0}},
    ]
    cluster.ray = SimpleNamespace(nodes=lambda: nodes)
    assert [cluster.capacity({"CPU": need}) for need in (0.1, 0.3, 1, 2)] == [10, 3, 1, 0]
    assert cluster.capacity({"CPU": 0.1, "GPU": 1.0, "sim": 0}) == 3


def test_on_a_cluster_each_actor_has_credit_for_a_whole_chunk() -> None:
    config = TrainConfig(actor_manager=RayConfig(n_buffer=256), n_actors=8)
    assert ratio_tolerance(config) == 8 * 256


def test_in_lockstep_every_actor_on_the_cluster_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    """So each of them has to start within `start_timeout_s`."""
    least = list[int]()

    def link(config: RayConfig, n_actors: int) -> Link:
        least.append(config.min_actors)
        return Link()

    monkeypatch.setattr(ray_actors, "RayLink", link)
    for rounds in (None, Rounds(1, 4, 1)):
        spec: Any = SimpleNamespace(rounds=rounds)
        make_manager(spec, (), 4, RayConfig(), lambda: False, lambda _: None).stop()
    assert least == [1, 4]


def test_a_cluster_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def init(**_: Any) -> None:
        raise ConnectionError(
            "Could not find any running Ray instance.\nPlease specify the one to connect to"
        )

    ray = SimpleNamespace(is_initialized=lambda: False, init=init)
    monkeypatch.setitem(sys.modules, "ray", ray)
    with pytest.raises(
        UsageError, match="no Ray cluster is reachable: Could not find any running Ray"
    ) as error:
        ray_cluster.Cluster("actor_manager.address", "ray://nowhere:10001", 2)
    assert len(str(error.value).splitlines()) == 2
