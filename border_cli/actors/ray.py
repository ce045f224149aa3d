"""Actors on a Ray cluster (https://www.ray.io): `actor_manager=ray`.

The learner stays in its own process, and each actor is a Ray actor that runs the ordinary loop (`actors.remote`). The
learner pulls: one or two calls per actor are under way, which carry credit and models there and chunks back. A version of
the model is put into Ray's object store once, from where all actors of a node read the same copy. Ray places the actors;
their supervision, with restarts and back-off, is that of actors in processes.
"""

from __future__ import annotations

import contextlib
import logging
import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from border_cli.actors.lockstep import LockstepManager
from border_cli.actors.manager import ActorManager
from border_cli.actors.process import ActorHandle, Finished, ModelSink, Shared
from border_cli.actors.remote import Command, RemoteActor, RemoteSetup, Reply
from border_cli.actors.spec import LOCKSTEP_SLOTS, ActorId, ActorSpec, ActorStatus
from border_cli.config.schema import RayConfig
from border_cli.core.errors import ActorLostError, ResourceError
from border_cli.core.protocols import StopCheck
from border_cli.core.state import State
from border_cli.core.types import ActorStat, Chunk, Column, ModelInfo
from border_cli.runtime.child import Child, log_here
from border_cli.runtime.ray_cluster import Cluster, brief
from border_cli.runtime.supervised import Condition, Limits
from border_cli.runtime.worker import Failed

_CALLS = 2
"""Calls under way per actor at most."""
_logger = logging.getLogger(__name__)


def make_manager(
    spec: ActorSpec,
    columns: tuple[Column, ...],
    n_actors: int,
    config: RayConfig,
    should_stop: StopCheck,
    on_exception: Callable[[ActorLostError], None],
) -> ActorManager:
    """The manager for `actor_manager.type=ray`, in lockstep if the actors have rounds. Raises UsageError."""
    kind = RayManager if spec.rounds is None else RayLockstepManager
    return kind(spec, columns, n_actors, config, should_stop, on_exception)


# -- models --------------------------------------------------------------------


class RayModels:
    """Publications of the model. Each is copied at once, and put into the object store when an actor first needs it.

    Implements `ModelSink`.
    """

    def __init__(self, ray: Any, kept: int) -> None:
        self._ray = ray
        self._kept = kept
        self._models: dict[int, ModelInfo] = {}
        self._refs: dict[int, Any] = {}
        self.publications = 0

    def publish(self, model: ModelInfo) -> None:
        """Make this model the newest."""
        self.publications += 1
        arrays = {name: array.copy() for name, array in model.arrays.items()}
        self._models[self.publications] = ModelInfo(model.version, arrays)
        for kept in (self._models, self._refs):
            kept.pop(self.publications - self._kept, None)

    def since(self, number: int) -> dict[int, Any]:
        """References to the publications after this one that are kept, by their number."""
        for new in self._models:
            if new > number and new not in self._refs:
                self._refs[new] = self._ray.put(self._models[new])
        return {new: ref for new, ref in self._refs.items() if new > number}

    def close(self) -> None:
        """Forget the models."""
        self._models.clear()
        self._refs.clear()


# -- one actor -----------------------------------------------------------------


class ArrivedChunks:
    """Chunks of two calls, which may come in another order, in the order of their numbers. Implements `ChunkSource`."""

    def __init__(self) -> None:
        self._chunks: dict[int, Chunk] = {}
        self._next = 0

    def add(self, chunk: Chunk) -> None:
        """Take a chunk that has arrived."""
        self._chunks[chunk.sequence] = chunk

    def pop_all(self) -> list[Chunk]:
        """The chunks of which no earlier one is missing."""
        chunks = []
        while (chunk := self._chunks.pop(self._next, None)) is not None:
            chunks.append(chunk)
            self._next += 1
        return chunks


@dataclass
class RayLink:
    """What all actors of a run have in common. options: of the Ray actors."""

    ray: Any
    models: RayModels
    options: dict[str, Any]


class RayChild:
    """A Ray actor in the place of a child process: it has what `SupervisedProcess` uses of a `Child`.

    first: number of the first publication that it may need.
    """

    pid = None
    descriptors = ()
    start_error: ResourceError | None = None
    last_output = ""

    def __init__(
        self, link: RayLink, setup: RemoteSetup, status: ActorStatus, chunks: ArrivedChunks, first: int
    ) -> None:
        self._link = link
        self._status = status
        self._chunks = chunks
        self._actor_id = setup.actor_id
        self._sent = first - 1  # number of the last publication that was sent
        self._told = (-1, False)  # credit and stop of the last command
        self._n_commands = 0
        self._wants_state = False
        self._calls: deque[Any] = deque()
        self._has_answered = False
        self._blocked_before = status.blocked_ns  # by earlier incarnations
        self._ended = ""  # how it ended; empty while it runs
        remote: Any = link.ray.remote(RemoteActor)
        self._actor = remote.options(max_restarts=0, max_concurrency=_CALLS, **link.options).remote(setup)
        self.tell()

    @property
    def calls(self) -> Sequence[Any]:
        """References to the answers that are awaited."""
        return self._calls

    def send(self, message: object) -> None:
        """Ask for the actor's state, which is the only message that there is."""
        del message
        self._wants_state = True
        self.tell()

    def receive(self, last: bool = False) -> Iterator[object]:
        """Messages that have arrived. Tells the actor what is new."""
        del last
        if self._calls:
            ready, _ = self._link.ray.wait(list(self._calls), num_returns=len(self._calls), timeout=0)
            for ref in ready:
                if ref in self._calls:  # they are forgotten when the actor is lost
                    self._calls.remove(ref)
                    yield from self._take(ref)
        if self._status.stop_requested and not self._has_answered and not self._ended:
            self.kill()  # it still waits for its place on the cluster
            of = self._actor_id
            yield Finished(ActorStat(of.actor, of.incarnation, of.env_steps))  # those of earlier incarnations
        self.tell()

    def _take(self, ref: Any) -> Iterator[object]:
        try:
            reply: Reply = self._link.ray.get(ref)
        except Exception as e:  # noqa: BLE001 - whatever Ray raises: the actor is not there any more
            self._ended = f"was lost: {brief(e)}"
            self._calls.clear()
            return
        self._has_answered = True
        for chunk in reply.chunks:
            self._chunks.add(chunk)
        status = self._status
        first = status.first_step_ns
        if reply.seconds and not first:
            first = time.monotonic_ns() - int(1e9 * reply.seconds)
        status.state, status.heartbeat, status.first_step_ns = reply.state, reply.heartbeat, first
        status.blocked_ns = self._blocked_before + reply.blocked_ns
        for message in reply.messages:
            if isinstance(message, logging.LogRecord):
                log_here(message)
                continue
            if isinstance(message, Finished | Failed):
                self._ended = "has ended"
            if isinstance(message, Finished):  # the times of all incarnations
                seconds = (time.monotonic_ns() - first) / 1e9 if first else 0.0
                stat = replace(message.stat, seconds=seconds, blocked_seconds=status.blocked_ns / 1e9)
                message = Finished(stat)
            yield message

    def tell(self) -> None:
        """Call the actor, if no call is under way, or if there is something new to tell and room for another one."""
        if self._ended:
            return
        status, models = self._status, self._link.models
        now = credit, stop = status.credit, status.stop_requested
        is_new = now != self._told or self._wants_state or models.publications > self._sent
        if len(self._calls) >= _CALLS or (self._calls and not is_new):
            return
        new = models.since(self._sent)
        command = Command(
            self._n_commands, credit, status.global_env_steps, stop, tuple(new), self._wants_state
        )
        self._calls.append(self._actor.collect.remote(command, *new.values()))
        self._n_commands += 1
        self._told, self._wants_state = now, False
        self._sent = max([self._sent, *new])

    def exited(self) -> bool:
        """Whether the actor has ended and all that it has sent is here, or whether it is lost."""
        return bool(self._ended) and not self._calls

    @property
    def exit_reason(self) -> str:
        """How it ended."""
        return self._ended

    def kill(self) -> None:
        """Kill it at once."""
        self._ended = self._ended or "was killed"
        self._calls.clear()
        with contextlib.suppress(Exception):  # it may be gone, or its node
            self._link.ray.kill(self._actor, no_restart=True)

    def end(self, grace_s: float = 0.0) -> None:
        """Kill it, and forget the answers."""
        del grace_s
        self.kill()


class RayHandle(ActorHandle):
    """The learner's handle of one actor on a cluster."""

    start_hint = "allowed: a higher actor_manager.start_timeout_s, fewer actors, or a cluster with more CPUs"

    def __init__(
        self,
        actor: int,
        shared: Shared,
        limits: Limits,
        counts: ActorStat | None,
        state: State | None,
        link: RayLink,
    ) -> None:
        super().__init__(actor, shared, limits, counts, state)
        self._link = link
        self.needed = True  # whether the run waits for it; else it may wait for a place on the cluster
        self._absent = True  # until it is ready
        self._remote: RayChild | None = None  # the last one

    @property
    def calls(self) -> Sequence[Any]:
        """Answers that are awaited."""
        return () if self._remote is None else self._remote.calls

    def tell(self) -> None:
        """Tell the actor what is new."""
        if self._remote is not None:
            self._remote.tell()

    @property
    def _watched(self) -> bool:
        return self.needed or self._is_ready

    def end(self, grace_s: float = 0.0) -> None:
        """As of a process; Ray's handle is given up with it."""
        super().end(grace_s)
        self._remote = None

    def _make(self, actor_id: ActorId) -> Child:
        shared = self._shared
        self._arriving = arrived = ArrivedChunks()
        level = logging.getLogger().getEffectiveLevel()
        setup = RemoteSetup(shared.spec, actor_id, shared.columns, shared.ring_rows, level, self._state)
        newest = self._link.models.publications
        first = newest if self._state is None and shared.spec.rounds is None else 1
        self._remote = RayChild(self._link, setup, self._status, arrived, first)
        return cast("Child", self._remote)


# -- all actors ----------------------------------------------------------------


class _OnRay(ActorManager):
    """What differs from actors in processes. Raises UsageError if no cluster is reachable."""

    _kept_models = 1
    _poll_interval_s, _poll_share = (
        0.001,
        0.1,
    )  # one takes 0.1 ms with few actors, and some ms with a thousand

    config: RayConfig

    def __post_init__(self) -> None:
        super().__post_init__()
        config, n_actors = self.config, self.n_actors
        cpus = math.ceil(n_actors * config.cpus_per_actor)  # actors mostly wait
        self._cluster = Cluster("actor_manager.address", config.address, cpus)
        others = dict(config.resources)
        options: dict[str, Any] = {"num_cpus": config.cpus_per_actor, "num_gpus": others.pop("GPU", 0)}
        options["resources"] = others
        self._link = RayLink(self._cluster.ray, RayModels(self._cluster.ray, self._kept_models), options)
        capacity = self._cluster.capacity({"CPU": config.cpus_per_actor, **config.resources})
        if capacity < n_actors:
            _logger.warning(
                "the cluster has room for %d of %d actors; the others wait for nodes", capacity, n_actors
            )

    def _make_handle(
        self, actor: int, shared: Shared, limits: Limits, counts: ActorStat, state: State | None
    ) -> ActorHandle:
        return RayHandle(actor, shared, limits, counts, state, self._link)

    def _listen(self, timeout_s: float) -> None:
        handles = [cast("RayHandle", actor) for actor in self._actors]
        callers = {ref: handle for handle in handles for ref in handle.calls}
        if timeout_s > 0 and callers:
            self._cluster.ray.wait(list(callers), num_returns=1, timeout=timeout_s)
        n_ready = sum(actor.condition is Condition.READY for actor in self._actors)
        for handle in handles:
            handle.needed = n_ready < self.config.min_actors
            handle.tell()
        # One question for all calls: Ray needs as long for it as for a single call.
        ready = (
            self._cluster.ray.wait(list(callers), num_returns=len(callers), timeout=0)[0] if callers else []
        )
        for handle in dict.fromkeys([callers[ref] for ref in ready]):
            handle.receive()
        for handle in handles:
            if handle.exited():
                handle.receive()

    def _release(self) -> None:
        try:
            super()._release()
        finally:
            self._cluster.close()


class RayManager(_OnRay):
    """Actors on credit. A run begins with min_actors of them; the others join when the cluster has room."""

    def _make_model_sink(self, model: ModelInfo, state: State | None) -> ModelSink:
        return self._link.models

    def _enough_started(self, group: Sequence[ActorHandle]) -> bool:
        ready = sum(actor.was_ready for actor in self._actors)
        return ready >= min(self.config.min_actors, self.n_actors) or super()._enough_started(group)


class RayLockstepManager(_OnRay, LockstepManager):
    """Actors in rounds: all of them have to be there."""

    _kept_models = LOCKSTEP_SLOTS

    def _sink_after(self, model: ModelInfo, published: int) -> ModelSink:
        self._link.models.publications = published
        return self._link.models
