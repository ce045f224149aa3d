"""Actors on a cluster without a cluster: the order of chunks, models, and a cluster that is not there."""

from __future__ import annotations

import logging
import threading
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from border_cli.actors.actor import Finished
from border_cli.actors.ray_actors import RayChild, RayLink
from border_cli.actors.remote import Command, RemoteActor, RemoteSetup, Reply
from border_cli.actors.spec import ActorSpec, ActorState, StatusBlock
from border_cli.config.resolve import ratio_tolerance
from border_cli.config.schema import RayConfig, TrainConfig
from border_cli.core.errors import UsageError
from border_cli.core.types import ActorStat, Chunk, Column, empty_items
from border_cli.runtime import ray_cluster
from border_cli.runtime.supervised import Failed, Ready
from border_cli.runtime.transport import model_layout
from tests.fakes import COUNTING_COLUMNS, counting_actors, model

COLUMNS = (Column("obs", (2,), "float32"), Column("n_steps", (), "int32"), Column("done", (), "bool"))


def chunk(sequence: int, rows: int = 3) -> Chunk:
    items = empty_items(COLUMNS, rows)
    items["obs"][:] = np.arange(2 * rows).reshape(rows, 2) + 10 * sequence
    items["n_steps"][:] = 1
    items["done"][-1:] = True
    return Chunk(1, 2, sequence, rows, 7, items)


def setup_of(spec: ActorSpec, incarnation: int = 0, env_steps: int = 0, capacity: int = 64) -> RemoteSetup:
    actor_id = spec.actor_id(0, incarnation, 1, env_steps)
    return RemoteSetup(spec, actor_id, COUNTING_COLUMNS, capacity, model_layout(model()), 0, 30)


def link_to(store: Any, in_rounds: bool = False, published: int = 0) -> RayLink:
    """A link to this in the place of Ray, with one model."""
    link = RayLink.__new__(RayLink)
    link.ray, link.options = store, {}
    link.open_models(model(), in_rounds, published).publish(model(published + 1))
    return link


def test_a_model_is_put_into_the_store_once_and_only_if_an_actor_needs_it() -> None:
    put: list[int] = []
    store = SimpleNamespace(put=lambda info: put.append(info.version) or f"ref {info.version}")
    link = link_to(store)
    newest = model(2)
    link.models.publish(newest)
    newest.arrays["weight"][:] = 99.0  # the learner goes on
    assert link.models_after(0) == ["ref 2"]
    assert link.models_after(0) == ["ref 2"]
    assert (put, link.models_after(2), link.models.publications) == ([2], [], 2)
    lockstep = link_to(store, in_rounds=True, published=5)
    for version in (7, 8, 9):
        lockstep.models.publish(model(version))
    assert lockstep.models_after(6) == ["ref 7", "ref 8", "ref 9"]
    assert lockstep.models_after(8) == ["ref 9"]


def test_calls_that_arrive_in_another_order_are_obeyed_and_answered_in_their_own() -> None:
    actor = RemoteActor(setup_of(counting_actors(lengths=[7])))
    order: list[int] = []

    def call(number: int, credit: int) -> None:
        actor.collect(Command(number, credit, 0), model(number))
        order.append(number)

    later = threading.Thread(target=call, args=(1, 8))
    later.start()
    assert actor._models.publications == 0
    call(0, 3)
    later.join(30)
    assert (order, actor._status.credit, actor._models.publications) == ([0, 1], 8, 2)
    assert actor._models.take(2).version == 1
    actor.collect(Command(2, 8, 100, stop=True))


def test_an_actor_that_waits_for_room_goes_on_when_its_chunks_are_taken() -> None:
    actor = RemoteActor(setup_of(counting_actors(n_buffer=4, lengths=[7]), capacity=8))
    reply = actor.collect(Command(0, 100, 0), model())
    chunks, number = reply.chunks, 1
    while sum(chunk.env_steps for chunk in chunks) < 100:
        chunks += actor.collect(Command(number, 100, 0)).chunks
        number += 1
    assert [chunk.sequence for chunk in chunks] == list(range(len(chunks)))
    assert sum(chunk.env_steps for chunk in chunks) == 100
    actor.collect(Command(number, 100, 0, stop=True))


class Store:
    """In the place of Ray: calls of one actor, whose answers arrive when the test says so."""

    def __init__(self) -> None:
        self.n_calls = 0
        self.answers: dict[int, Any] = {}

    def remote(self, _: type) -> Any:
        collect = SimpleNamespace(remote=self._call)
        return SimpleNamespace(
            options=lambda **_: SimpleNamespace(remote=lambda _: SimpleNamespace(collect=collect))
        )

    def _call(self, *_: Any) -> int:
        self.n_calls += 1
        return self.n_calls

    def put(self, _: Any) -> None: ...

    def wait(self, calls: list[int], **_: Any) -> tuple[list[int], list[int]]:
        return [one for one in calls if one in self.answers], []

    def get(self, call: int) -> Any:
        answer = self.answers[call]
        if isinstance(answer, Exception):
            raise answer
        return answer

    def kill(self, *_: Any, **__: Any) -> None: ...


def two_calls(store: Store) -> RayChild:
    """An actor with two calls under way."""
    block = StatusBlock(1)
    child = RayChild(link_to(store), setup_of(counting_actors(lengths=[7])), block[0])
    block.grant([5])
    child.tell()
    assert list(child.calls) == [1, 2]
    return child


def answer(messages: list[object], *chunks: Chunk) -> Reply:
    return Reply(list(chunks), messages, ActorState.DONE, 1, 0.0, 0)


def test_answers_are_taken_in_the_order_of_the_calls() -> None:
    store = Store()
    child = two_calls(store)
    store.answers[2] = answer([Finished(ActorStat(0))], chunk(1))
    assert (list(child.receive()), child.exited(), child.pop_all()) == ([], False, [])
    store.answers[1] = answer([], chunk(0))
    assert [type(message) for message in child.receive()] == [Finished]
    assert [arrived.sequence for arrived in child.pop_all()] == [0, 1]
    assert child.exited() and not child.pop_all()


def test_a_lost_actor_has_ended_at_once() -> None:
    store = Store()
    child = two_calls(store)
    store.answers |= {1: RuntimeError("the node left"), 2: RuntimeError("the node left")}
    assert list(child.receive()) == []
    assert child.exited() and child.exit_reason == "was lost: the node left"


def test_an_actor_that_waits_for_its_place_ends_when_the_run_does() -> None:
    block = StatusBlock(1)
    setup = setup_of(counting_actors(lengths=[7]), incarnation=1, env_steps=40)  # of earlier incarnations
    child = RayChild(link_to(Store()), setup, block[0])
    block.request_stop()
    (message,) = child.receive()
    assert isinstance(message, Finished)
    assert (message.stat.state, message.stat.incarnation, message.stat.env_steps) == ("starting", 1, 40)
    assert child.exited() and not child.calls


def test_the_times_of_an_actor_are_those_of_all_its_incarnations() -> None:
    store = Store()
    block = StatusBlock(1)
    block[0].first_step_ns, block[0].blocked_ns = 1, 3_000_000_000  # an earlier one was blocked for 3 s
    child = RayChild(link_to(store), setup_of(counting_actors(lengths=[7]), incarnation=1), block[0])
    end = Finished(ActorStat(0, seconds=1.0, blocked_seconds=0.5))
    store.answers[1] = replace(answer([end]), seconds=1.0, blocked_ns=500_000_000)
    (message,) = child.receive()
    assert isinstance(message, Finished)
    assert message.stat.blocked_seconds == 3.5
    assert message.stat.seconds > 1.0


def test_the_room_of_a_cluster_is_not_lost_to_rounding() -> None:
    cluster = ray_cluster.Cluster.__new__(ray_cluster.Cluster)
    nodes = [
        {"Alive": True, "Resources": {"CPU": 1.0, "GPU": 3.0}},
        {"Alive": False, "Resources": {"CPU": 9.0}},
    ]
    cluster.ray = SimpleNamespace(nodes=lambda: nodes)
    assert [cluster.capacity({"CPU": need}) for need in (0.1, 0.3, 1, 2)] == [10, 3, 1, 0]
    assert cluster.capacity({"CPU": 0.1, "GPU": 1.0, "sim": 0}) == 3


def test_a_call_returns_with_chunks_and_at_once_when_a_newer_one_comes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("border_cli.actors.remote.WAIT_S", 60.0)
    spec = counting_actors(n_buffer=4, lengths=[7])
    actor = RemoteActor(setup_of(spec))
    first = actor.collect(Command(0, 0, 0), model())
    assert first.messages == [Ready(True)]
    answers: list[Any] = []
    waiting = threading.Thread(target=lambda: answers.append(actor.collect(Command(1, 0, 0))))
    waiting.start()
    while actor._told < 2:
        pass
    reply = actor.collect(Command(2, 1000, 100))
    waiting.join(30)
    assert not waiting.is_alive()
    chunks, number = [*answers[0].chunks, *reply.chunks], 3
    while sum(one.env_steps for one in chunks) < 1000:
        chunks += actor.collect(Command(number, 1000, 100)).chunks
        number += 1
    assert [one.sequence for one in chunks] == list(range(len(chunks)))
    end = actor.collect(Command(number, 1000, 100, stop=True))
    assert [type(message).__name__ for message in end.messages] == ["Finished"]


def test_an_exception_of_an_environment_comes_with_the_name_of_the_machine() -> None:
    spec = counting_actors(fault="raise", fault_at="make", lengths=[7])
    actor = RemoteActor(setup_of(spec))
    (message,) = actor.collect(Command(0, 0, 0)).messages
    assert isinstance(message, Failed)
    assert " (on node " in message.error.splitlines()[0]
    assert "CountingEnv raises" in message.traceback


def test_what_an_actor_logs_comes_with_its_traceback_and_never_raises(
    capsys: pytest.CaptureFixture[str],
) -> None:
    spec = counting_actors(lengths=[7])
    actor = RemoteActor(setup_of(spec))
    logger = logging.getLogger("an environment")
    logger.warning("%d", "no number")
    try:
        raise KeyError("missing")
    except KeyError:
        logger.exception("failed")
    messages = actor.collect(Command(0, 0, 0)).messages
    (record,) = (one for one in messages if isinstance(one, logging.LogRecord) and one.name == logger.name)
    text = record.getMessage()
    assert (record.levelno, record.name) == (logging.ERROR, "an environment")
    assert text.startswith("actor 0: failed\nTraceback") and text.endswith("KeyError: 'missing'")
    assert "--- Logging error ---" in capsys.readouterr().err


@pytest.mark.parametrize("address", ["auto", "ray://nowhere:10001"])
def test_a_cluster_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    def init(**_: Any) -> None:
        raise ConnectionError(
            "Could not find any running Ray instance.\nPlease specify the one to connect to"
        )

    monkeypatch.setattr(
        ray_cluster, "import_ray", lambda _: SimpleNamespace(is_initialized=lambda: False, init=init)
    )
    with pytest.raises(
        UsageError, match="no Ray cluster is reachable: Could not find any running Ray instance"
    ) as error:
        ray_cluster.Cluster("actor_manager.address", address, 2)
    assert len(str(error.value).splitlines()) == 2


def test_on_a_cluster_each_actor_has_credit_for_a_whole_chunk() -> None:
    config = TrainConfig(actor_manager=RayConfig(n_buffer=256), n_actors=8)
    assert ratio_tolerance(config) == 8 * 256
