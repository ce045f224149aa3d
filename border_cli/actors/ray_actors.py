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
from dataclasses import replace
from typing import Any, cast

from border_cli.actors import manager
from border_cli.actors.actor import Finished
from border_cli.actors.process import ActorHandle, Link
from border_cli.actors.remote import Command, RemoteActor, RemoteSetup, Reply
from border_cli.actors.spec import LOCKSTEP_SLOTS, ActorId, ActorSpec, ActorStatus
from border_cli.config.schema import RayConfig
from border_cli.core.errors import ActorLostError, ResourceError
from border_cli.core.protocols import ExperienceSource, StopCheck
from border_cli.core.types import ActorStat, Chunk, Column, ModelInfo
from border_cli.runtime.child import Child, log_here
from border_cli.runtime.ray_cluster import Cluster, brief
from border_cli.runtime.transport import ModelChannel
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
) -> ExperienceSource:
    """The source for `actor_manager.type=ray`. Raises UsageError if no cluster is reachable."""
    link = RayLink(config, n_actors)
    return manager.make_manager(spec, columns, n_actors, config, should_stop, on_exception, link)


# -- one actor -----------------------------------------------------------------


class RayChild:
    """A Ray actor in the place of a child process: it has what `SupervisedProcess` uses of a `Child`.

    It is also the `ChunkSource` of the chunks that its replies have brought.
    """

    pid = None
    descriptors = ()
    start_error: ResourceError | None = None
    last_output = ""

    def __init__(self, link: RayLink, setup: RemoteSetup, status: ActorStatus) -> None:
        self._link = link
        self._status = status
        self._actor_id = setup.actor_id
        self._sent = setup.published  # number of the last publication that was sent
        self._told = (-1, False)  # credit and stop of the last command
        self._n_commands = 0
        self._wants_state = False
        self._chunks: list[Chunk] = []
        self.calls: deque[Any] = deque()
        """References to the answers that are awaited. They come in the order of the calls."""
        self._has_answered = False
        self._blocked_before = status.blocked_ns  # by earlier incarnations
        self._ended = ""  # how it ended; empty while it runs
        remote: Any = link.ray.remote(RemoteActor)
        self._actor = remote.options(max_restarts=0, max_concurrency=_CALLS, **link.options).remote(setup)
        self.tell()

    def send(self, message: object) -> None:
        """Ask for the actor's state, which is the only message that there is."""
        del message
        self._wants_state = True
        self.tell()

    def receive(self, last: bool = False) -> Iterator[object]:
        """Messages that have arrived. Tells the actor what is new."""
        del last
        while self.calls and self._link.ray.wait([self.calls[0]], num_returns=1, timeout=0)[0]:
            yield from self._take(self.calls.popleft())
        if self._status.stop_requested and not self._has_answered and not self._ended:
            self.kill()  # it still waits for its place on the cluster
            of = self._actor_id
            yield Finished(ActorStat(of.actor, of.incarnation, of.env_steps))  # those of earlier incarnations
        self.tell()

    def pop_all(self) -> list[Chunk]:
        chunks, self._chunks = self._chunks, []
        return chunks

    def _take(self, ref: Any) -> Iterator[object]:
        try:
            reply: Reply = self._link.ray.get(ref)
        except Exception as e:  # noqa: BLE001 - whatever Ray raises: the actor is not there any more
            self._end(f"was lost: {brief(e)}")
            return
        self._has_answered = True
        self._chunks += reply.chunks
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
                self._end("has ended")
            if isinstance(message, Finished):  # the times of all incarnations
                seconds = (time.monotonic_ns() - first) / 1e9 if first else 0.0
                stat = replace(message.stat, seconds=seconds, blocked_seconds=status.blocked_ns / 1e9)
                message = Finished(stat)
            yield message

    def tell(self) -> None:
        """Call the actor, if no call is under way, or if there is something new to tell and room for another one."""
        if self._ended:
            return
        status, newest = self._status, self._link.models.publications
        now = credit, stop = status.credit, status.stop_requested
        is_new = now != self._told or self._wants_state or newest > self._sent
        if len(self.calls) >= _CALLS or (self.calls and not is_new):
            return
        models = self._link.models_after(self._sent)
        command = Command(self._n_commands, credit, status.global_env_steps, stop, self._wants_state)
        self.calls.append(self._actor.collect.remote(command, *models))
        self._n_commands += 1
        self._told, self._wants_state = now, False
        self._sent = newest

    def exited(self) -> bool:
        """Whether the actor has ended, and all that it has sent is here, or is lost."""
        return bool(self._ended)

    @property
    def exit_reason(self) -> str:
        """How it ended."""
        return self._ended

    def kill(self) -> None:
        """Kill it at once."""
        self._end("was killed")
        with contextlib.suppress(Exception):  # it may be gone, or its node
            self._link.ray.kill(self._actor, no_restart=True)

    def end(self, grace_s: float = 0.0) -> None:
        """Kill it, and forget the answers."""
        del grace_s
        self.kill()

    def _end(self, how: str) -> None:
        self._ended = self._ended or how
        self.calls.clear()


class RayHandle(ActorHandle):
    """The learner's handle of one actor on a cluster."""

    start_hint = "allowed: a higher actor_manager.start_timeout_s, fewer actors, or a cluster with more CPUs"

    needed = True  # whether the run waits for it; else it may wait for a place on the cluster
    _absent = True  # until it is ready

    @property
    def remote(self) -> RayChild | None:
        """What runs now, if anything."""
        return cast("RayChild | None", self._child)

    @property
    def _watched(self) -> bool:
        return self.needed or self._is_ready

    def _make(self, actor_id: ActorId) -> Child:
        shared, link = self._shared, cast("RayLink", self._shared.link)
        parts = shared.columns, shared.ring_rows, link.models.layout, link.models.publications - 1
        level = logging.getLogger().getEffectiveLevel()
        setup = RemoteSetup(shared.spec, actor_id, *parts, level, self._state)
        self._arriving = child = RayChild(link, setup, self._status)
        return cast("Child", child)


# -- all actors ----------------------------------------------------------------


class RayLink(Link):
    """Actors on a cluster. A run on credit begins with min_actors of them; the others join when there is room."""

    handle_class = RayHandle
    poll_interval_s, poll_share = 0.001, 0.1  # 0.1 ms with few actors, and some ms with a thousand
    may_join = True

    def __init__(self, config: RayConfig, n_actors: int) -> None:
        super().__init__()
        cpus = math.ceil(n_actors * config.cpus_per_actor)  # actors mostly wait
        self._cluster = Cluster("actor_manager.address", config.address, cpus)
        self.ray = self._cluster.ray
        need = {"CPU": config.cpus_per_actor, **config.resources}
        self.options = self._cluster.options(need)
        capacity = self._cluster.capacity(need)
        if capacity < n_actors:
            _logger.warning(
                "the cluster has room for %d of %d actors; the others wait for nodes", capacity, n_actors
            )

    def open_models(self, model: ModelInfo, in_rounds: bool, published: int) -> ModelChannel:
        self._kept = LOCKSTEP_SLOTS if in_rounds else 1
        self._refs: dict[int, Any] = {}  # in the object store, by the number of the publication
        return super().open_models(model, in_rounds, published)

    def models_after(self, number: int) -> list[Any]:
        """References to the publications after this one: to the newest alone, or in lockstep to all.

        Each is put into the object store when an actor first needs it.
        """
        newest = self.models.publications
        oldest = newest - self._kept + 1
        self._refs = {n: ref for n, ref in self._refs.items() if n >= oldest}
        wanted = range(max(number + 1, oldest), newest + 1)
        for n in wanted:
            if n not in self._refs:
                model = self.models.take(n)
                self._refs[n] = self.ray.put(ModelInfo(model.version, model.arrays))
        return [self._refs[n] for n in wanted]

    def listen(self, actors: Sequence[ActorHandle], timeout_s: float, needed: bool) -> None:
        handles = cast("Sequence[RayHandle]", actors)
        callers = {remote.calls[0]: h for h in handles if (remote := h.remote) is not None and remote.calls}
        if timeout_s > 0 and callers:
            self.ray.wait(list(callers), num_returns=1, timeout=timeout_s)
        for handle in handles:
            handle.needed = needed
            if handle.remote is not None:
                handle.remote.tell()
        # One question for all calls: Ray needs as long for it as for a single call.
        ready = self.ray.wait(list(callers), num_returns=len(callers), timeout=0)[0] if callers else []
        for ref in ready:
            callers[ref].receive()
        for handle in handles:
            if handle.exited():
                handle.receive()

    def close(self) -> None:
        super().close()
        self._cluster.close()
