"""An actor on another machine: what runs there, and what goes to it and comes back, each in one call.

`RemoteActor` runs the ordinary loop of an actor in a thread. The learner calls `collect` with new credit and models, and
gets the chunks that the actor has handed over. A new call makes an older one that still waits return at once, so the
learner can always tell something new. This module does not know what carries the calls; see `border_cli.actors.ray_actors`.
"""

from __future__ import annotations

import platform
import threading
import time
from dataclasses import dataclass, field, replace

from border_cli.actors.actor import run_actor
from border_cli.actors.spec import LOCKSTEP_SLOTS, ActorId, ActorSpec, ActorState
from border_cli.core.state import State
from border_cli.core.types import Chunk, Column, Items, ModelInfo, empty_items
from border_cli.runtime.worker import Failed, Ready, failed, log_through, one_torch_thread

WAIT_S = 0.2
"""How long a call waits for chunks at most [s]."""


@dataclass(frozen=True)
class Command:
    """What the learner tells an actor.

    number: of the call, because a call with a model may arrive after a later one · credit, env_steps: see
    `actors.loop.Status` · publications: numbers of those that come with the call, in their order · wants_state: whether it
    asks for the actor's state.
    """

    number: int
    credit: int
    env_steps: int
    stop: bool = False
    publications: tuple[int, ...] = ()
    wants_state: bool = False


@dataclass(frozen=True)
class Reply:
    """What an actor tells the learner.

    messages: Ready, Finished, Failed, SentState or what it has logged · seconds: since its first env step, 0 before it.
    """

    chunks: list[Chunk]
    messages: list[object]
    state: ActorState
    heartbeat: int
    seconds: float
    blocked_ns: int


@dataclass
class LocalStatus:
    """Implements `actors.loop.Status` between two threads."""

    credit: int
    global_env_steps: int = 0
    stop_requested: bool = False
    state: ActorState = ActorState.STARTING
    first_step_ns: int = 0
    blocked_ns: int = 0
    heartbeat: int = 0
    changed: threading.Event = field(default_factory=threading.Event)

    def wait(self, seconds: float) -> None:
        self.changed.wait(seconds)
        self.changed.clear()


class QueueSink:
    """Implements `actors.loop.ChunkSink`: a queue of chunks. capacity: rows; a full queue is waited for."""

    def __init__(self, columns: tuple[Column, ...], capacity: int, changed: threading.Condition) -> None:
        self._columns = columns
        self._capacity = capacity
        self._changed = changed
        self._queue: list[Chunk] = []

    def reserve(self, rows: int) -> Items | None:
        queued = sum(chunk.rows for chunk in self._queue)
        return empty_items(self._columns, rows) if queued < self._capacity else None

    def push(self, chunk: Chunk) -> None:
        with self._changed:
            self._queue.append(chunk)
            self._changed.notify_all()

    def __len__(self) -> int:
        return len(self._queue)

    def take(self) -> list[Chunk]:
        """What is queued, in order. Call it with the lock held."""
        queued, self._queue = self._queue, []
        return queued


class ReceivedModels:
    """Implements `RoundModels`."""

    def __init__(self) -> None:
        self._models: dict[int, ModelInfo] = {}
        self._seen = 0
        self._newest: tuple[int, ModelInfo | None] = (0, None)

    @property
    def publications(self) -> int:
        """Number of the newest publication, 0 before the first."""
        return self._newest[0]

    def add(self, number: int, model: ModelInfo) -> None:
        """Add a publication. The newest LOCKSTEP_SLOTS are kept."""
        newest = max(self._newest, (number, model), key=lambda publication: publication[0])
        models = self._models | {number: model}
        self._models = {n: one for n, one in models.items() if n > newest[0] - LOCKSTEP_SLOTS}
        self._newest = newest

    def poll(self) -> ModelInfo | None:
        number, model = self._newest  # read together: another thread may add more meanwhile
        if number == self._seen:
            return None
        self._seen = number
        return model

    def take(self, number: int) -> ModelInfo:
        """The publication with this number."""
        return self._models[number]


@dataclass(frozen=True)
class RemoteSetup:
    """What an actor is made of. capacity: rows that may wait for the learner · state: what lockstep continues from."""

    spec: ActorSpec
    actor_id: ActorId
    columns: tuple[Column, ...]
    capacity: int
    level: int
    state: State | None = None


class RemoteActor:
    """One incarnation of an actor. Its methods may be called by several threads at a time."""

    def __init__(self, setup: RemoteSetup) -> None:
        self._changed = threading.Condition()
        self._entered = 0
        self._newest = -1  # number of the newest command
        self._ended = False
        self._messages: list[object] = []
        self._status = LocalStatus(setup.actor_id.env_steps)
        self._sink = QueueSink(setup.columns, setup.capacity, self._changed)
        self._models = ReceivedModels()
        self._wants_state = False
        log_through(self.send, f"actor {setup.actor_id.actor}", setup.level)
        self._thread = threading.Thread(target=self._run, args=(setup,), name="actor", daemon=True)
        self._thread.start()

    def collect(self, command: Command, *models: ModelInfo) -> Reply:
        """Take what the learner tells, and wait for chunks: WAIT_S at most, and until the next call."""
        status, until = self._status, time.monotonic() + WAIT_S
        with self._changed:
            self._entered += 1
            mine = self._entered
            if command.number > self._newest:
                self._newest = command.number
                status.global_env_steps, status.credit = command.env_steps, command.credit
                status.stop_requested = command.stop
            for number, model in zip(command.publications, models, strict=True):
                self._models.add(number, model)
            self._wants_state |= command.wants_state
            status.changed.set()
            self._changed.notify_all()
            while not (len(self._sink) or self._messages or self._ended or self._entered > mine):
                if (left := until - time.monotonic()) <= 0:
                    break
                self._changed.wait(left)
            messages = list(self._messages)
            self._messages.clear()
            first = status.first_step_ns
            chunks = self._sink.take()
            status.changed.set()  # there is room again
            return Reply(
                chunks,
                messages,
                status.state,
                status.heartbeat,
                (time.monotonic_ns() - first) / 1e9 if first else 0.0,
                status.blocked_ns,
            )

    def _run(self, setup: RemoteSetup) -> None:
        spec, actor_id = setup.spec, setup.actor_id
        parts = self._models, self._sink, self._status, self.send, self._state_wanted
        try:
            run_actor(spec, actor_id, *parts, setup.state)
        except BaseException as error:  # noqa: BLE001 - also SystemExit, which user code may raise
            self.send(failed_here(error, f"actor {actor_id.actor}"))
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def _state_wanted(self) -> bool:
        wanted, self._wants_state = self._wants_state, False
        return wanted

    def send(self, message: object) -> None:
        """Let the next reply have this message, or record of a log."""
        if isinstance(message, Ready):
            one_torch_thread()  # of the policy, which has imported torch by now
        with self._changed:
            self._messages.append(message)
            self._changed.notify_all()


def failed_here(error: BaseException, name: str) -> Failed:
    """The message about an exception that ended the actor, with the name of the machine."""
    found, node = failed(error, name), platform.node()
    first, newline, rest = found.error.partition("\n")
    text = f"{first} (on node {node}){newline}{rest}"
    return replace(found, error=text, context={**found.context, "node": node})
