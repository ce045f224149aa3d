"""Actors on a Ray cluster (https://www.ray.io): `actor_manager=ray`.

The learner stays in its own process. Each actor is a Ray actor, `RemoteActor`: it runs the ordinary loop of an actor in a
thread, with a ring, a model channel and a status of its own. The learner calls it with new credit and models, and the
answer brings chunks. A version of the model is put into Ray's object store once, from where all actors of a node read the
same copy. Ray places the actors; their supervision, with restarts and back-off, is that of actors in processes.
"""

from __future__ import annotations

import contextlib
import logging
import math
import platform
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from border_cli.actors.actor import run_actor
from border_cli.actors.manager import ActorHandle, Link
from border_cli.actors.spec import LOCKSTEP_SLOTS, ActorId, ActorSpec, ActorState, ActorStatus, StatusBlock
from border_cli.config.schema import RayConfig
from border_cli.core.errors import ResourceError
from border_cli.core.state import State
from border_cli.core.types import Chunk, Column, ModelInfo
from border_cli.runtime.child import Child, log_here
from border_cli.runtime.ray_cluster import Cluster, brief
from border_cli.runtime.stopping import Deadline
from border_cli.runtime.supervision import Condition
from border_cli.runtime.transport import ModelChannel, Ring
from border_cli.runtime.worker import Failed, Ready, failed, log_through, one_torch_thread

WAIT_S = 0.2
"""How long a call waits for chunks of an actor that acts, and the pause between two calls that have nothing to tell [s]."""
_IDLE_S = 0.005
"""How long a call waits for chunks of an actor that does not act [s]."""
_logger = logging.getLogger(__name__)


# -- on a node of the cluster --------------------------------------------------


@dataclass(frozen=True)
class RemoteSetup:
    """What an actor is made of.

    columns, capacity: of its ring · layout: of the models · published: how many were published before the first that it
    gets · level: of what it logs · state: what lockstep continues from.
    """

    spec: ActorSpec
    actor_id: ActorId
    columns: tuple[Column, ...]
    capacity: int
    layout: tuple[Column, ...]
    published: int
    level: int
    state: State | None = None


@dataclass(frozen=True)
class Reply:
    """What an actor tells the learner. seconds: since its first env step, 0 before it; for the others see `ActorStatus`."""

    chunks: list[Chunk]
    messages: list[object]
    state: ActorState
    heartbeat: int
    seconds: float
    blocked_ns: int


class RemoteActor:
    """One incarnation of an actor."""

    def __init__(self, setup: RemoteSetup) -> None:
        self._changed = threading.Condition()
        self._messages: list[object] = []
        self._wants_state = False
        self._all_status = StatusBlock(1)
        self._status = self._all_status[0]
        self._status.credit = setup.actor_id.env_steps
        self._ring = _NotifyingRing(setup.columns, setup.capacity, self._changed)
        self._models = ModelChannel(setup.layout, LOCKSTEP_SLOTS, setup.published)
        log_through(self.send, f"actor {setup.actor_id.actor}", setup.level)
        threading.Thread(target=self._run, args=(setup,), name="actor", daemon=True).start()

    def collect(
        self, credit: int, env_steps: int, stop: bool, wants_state: bool, *models: ModelInfo
    ) -> Reply:
        """Apply what the learner sends, and wait for chunks; only briefly if the actor does not act.

        wants_state: in lockstep, whether the actor is to send its state · for the others see `ActorStatus`.
        """
        status = self._status
        with self._changed:
            for model in models:
                self._models.publish(model)
            self._wants_state |= wants_state
            self._all_status.grant([credit], env_steps)
            if stop:
                self._all_status.request_stop()
            chunks: list[Chunk] = []

            def is_due() -> bool:
                done = status.state is ActorState.DONE  # before the last chunks are taken
                chunks.extend(chunk.copy() for chunk in self._ring.pop_all())
                status.changed.set()  # there may be room again, or a new model
                return bool(done or chunks or self._messages)

            if not self._changed.wait_for(is_due, _IDLE_S) and status.state is ActorState.ACTING:
                self._changed.wait_for(is_due, WAIT_S)
            messages, self._messages = self._messages, []
        first = status.first_step_ns
        seconds = (time.monotonic_ns() - first) / 1e9 if first else 0.0
        return Reply(chunks, messages, status.state, status.heartbeat, seconds, status.blocked_ns)

    def _run(self, setup: RemoteSetup) -> None:
        def state_wanted() -> bool:
            wanted, self._wants_state = self._wants_state, False
            return wanted

        name = f"actor {setup.actor_id.actor}"
        parts = self._models, self._ring, self._status, self.send, state_wanted
        try:
            run_actor(setup.spec, setup.actor_id, *parts, setup.state)
        except BaseException as error:  # noqa: BLE001 - also SystemExit, which user code may raise
            failure, node = failed(error, name), platform.node()
            first, newline, rest = failure.error.partition("\n")
            text = f"{first} (on node {node}){newline}{rest}"
            self.send(replace(failure, error=text, context={**failure.context, "node": node}))

    def send(self, message: object) -> None:
        """Put this message, or log record, into the next reply."""
        if isinstance(message, Ready):
            one_torch_thread()  # of the policy, which has imported torch by now
        with self._changed:
            self._messages.append(message)
            self._changed.notify_all()


class _NotifyingRing(Ring):
    """A ring between two threads, whose reader waits for chunks. changed: notified of each chunk."""

    def __init__(self, columns: tuple[Column, ...], capacity: int, changed: threading.Condition) -> None:
        super().__init__(columns, capacity)
        self._changed = changed

    def push(self, chunk: Chunk) -> None:
        super().push(chunk)
        with self._changed:
            self._changed.notify_all()


# -- in the learner ------------------------------------------------------------


class RayChild:
    """A Ray actor in the place of a child process: it has what `SupervisedProcess` uses of a `Child`.

    Only one call is open at a time. The next one follows when there is something to tell, or after a pause.
    """

    pid = None
    descriptors = ()
    start_error: ResourceError | None = None
    last_output = ""

    def __init__(self, link: RayLink, setup: RemoteSetup, status: ActorStatus) -> None:
        self._link = link
        self._status = status
        self._sent = setup.published  # number of the last publication that was sent
        self._last_told: tuple[int, bool] | None = None  # credit and stop of the last call
        self._wants_state = False
        self._chunks: list[Chunk] = []
        self.call: Any = None
        """Reference to the answer that is awaited."""
        self._pause = Deadline(0.0)
        self._has_answered = False
        self._blocked_before = status.blocked_ns  # by earlier incarnations
        self.exit_reason = ""  # empty while it runs
        remote: Any = link.ray.remote(RemoteActor)
        self._actor = remote.options(max_restarts=0, **link.options).remote(setup)
        self.tell()

    def send(self, message: object) -> None:
        """Ask for the actor's state. There is no other message."""
        self._wants_state = True
        self.tell()

    def receive(self) -> Iterator[object]:
        """Messages that have arrived. Tells the actor what is new."""
        if self.call is not None and self._link.ray.wait([self.call], num_returns=1, timeout=0)[0]:
            yield from self._take()
        if self._status.stop_requested and not self._has_answered and not self.exit_reason:
            self._status.state = ActorState.DONE  # it still waits for its place on the cluster
            self.kill()
        self.tell()

    def pop_all(self) -> list[Chunk]:
        chunks, self._chunks = self._chunks, []
        return chunks

    def _take(self) -> Iterator[object]:
        call, self.call = self.call, None
        try:
            reply: Reply = self._link.ray.get(call)
        except Exception as e:  # noqa: BLE001 - whatever Ray raises: the actor is not there any more
            self.exit_reason = f"was lost: {brief(e)}"
            return
        self._has_answered = True
        self._chunks += reply.chunks
        self._pause = Deadline(0.0 if reply.chunks or reply.messages else WAIT_S)
        status = self._status
        if reply.seconds and not status.first_step_ns:
            status.first_step_ns = time.monotonic_ns() - int(1e9 * reply.seconds)
        status.state, status.heartbeat = reply.state, reply.heartbeat
        status.blocked_ns = self._blocked_before + reply.blocked_ns
        if reply.state is ActorState.DONE or any(isinstance(m, Failed) for m in reply.messages):
            self.exit_reason = "has ended"
        for message in reply.messages:
            if isinstance(message, logging.LogRecord):
                log_here(message)
            else:
                yield message

    def tell(self) -> None:
        """Call the actor, if no call is under way and there is something to tell, or the pause is over."""
        status, newest = self._status, self._link.models.publications
        now = status.credit, status.stop_requested
        is_new = now != self._last_told or self._wants_state or newest > self._sent
        if self.exit_reason or self.call is not None or not (is_new or self._pause.passed):
            return
        orders = status.credit, status.global_env_steps, status.stop_requested, self._wants_state
        self.call = self._actor.collect.remote(*orders, *self._link.models_after(self._sent))
        self._last_told, self._wants_state, self._sent = now, False, newest

    def exited(self) -> bool:
        """Whether the actor has ended, and everything that it sent has arrived or is lost."""
        return bool(self.exit_reason)

    def kill(self) -> None:
        self.exit_reason, self.call = self.exit_reason or "was killed", None
        with contextlib.suppress(Exception):  # it may be gone, or its node
            self._link.ray.kill(self._actor, no_restart=True)

    def end(self, grace_s: float = 0.0) -> None:
        """Kill it, and forget the answer."""
        self.kill()


class RayHandle(ActorHandle):
    """The learner's handle of one actor on a cluster."""

    start_hint = "allowed: a higher actor_manager.start_timeout_s, fewer actors, or a cluster with more CPUs"

    needed = True  # whether the run waits for it; else it may wait for a place on the cluster

    @property
    def remote(self) -> RayChild | None:
        return cast("RayChild | None", self._child)

    @property
    def is_watched(self) -> bool:
        return self.needed or self.condition is Condition.READY

    def make_child(self, actor_id: ActorId) -> Child:
        link = cast("RayLink", self._link)
        parts = link.columns, link.ring_rows, link.models.layout, link.models.publications - 1
        level = logging.getLogger().getEffectiveLevel()
        child = RayChild(link, RemoteSetup(link.spec, actor_id, *parts, level, self._state), self._status)
        self._pop_all = child.pop_all
        return cast("Child", child)


# -- all actors ----------------------------------------------------------------


class RayLink(Link):
    """Actors on a cluster. A run on credit begins with min_actors of them; the others join when there is room."""

    handle_class = RayHandle
    poll_interval_s, poll_share = 0.001, 0.1  # 0.1 ms with few actors, and some ms with a thousand
    may_join = True

    def __init__(self, config: RayConfig, n_actors: int) -> None:
        super().__init__()
        self._min_actors = config.min_actors
        cpus = math.ceil(n_actors * config.cpus_per_actor)  # actors mostly wait
        self._cluster = Cluster("actor_manager.address", config.address, cpus)
        self.ray = self._cluster.ray
        need = {"CPU": config.cpus_per_actor, **config.resources}
        self.options = self._cluster.options(need)
        self._refs: dict[int, Any] = {}  # in the object store, by the number of the publication
        capacity = self._cluster.capacity(need)
        if capacity < n_actors:
            _logger.warning(
                "the cluster has room for %d of %d actors; the others wait for nodes", capacity, n_actors
            )

    def models_after(self, number: int) -> list[Any]:
        """References to the publications after this one: to the newest alone, or in lockstep to all.

        Each is put into the object store when an actor first needs it.
        """
        newest = self.models.publications
        oldest = newest - (1 if self.spec.rounds is None else LOCKSTEP_SLOTS) + 1
        self._refs = {n: ref for n, ref in self._refs.items() if n >= oldest}
        wanted = range(max(number + 1, oldest), newest + 1)
        for n in wanted:
            if n not in self._refs:
                model = self.models.take(n)
                self._refs[n] = self.ray.put(ModelInfo(model.version, model.arrays))
        return [self._refs[n] for n in wanted]

    def listen(self, actors: Sequence[ActorHandle], timeout_s: float) -> None:
        handles = cast("Sequence[RayHandle]", actors)
        needed = sum(handle.condition is Condition.READY for handle in handles) < self._min_actors
        callers = {h.remote.call: h for h in handles if h.remote is not None and h.remote.call is not None}
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
