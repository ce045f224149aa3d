"""An actor on another machine: what runs there, and what goes to it and comes back, each in one call.

`RemoteActor` runs the ordinary loop of an actor in a thread, with a ring, a model channel and a status of its own. The
learner calls `collect` with new credit and models, and gets the chunks that the actor has handed over. Two calls may be
under way: a new one makes the one before return at once, so the learner can always tell something new. This module does
not know what carries the calls; see `border_cli.actors.ray_actors`.
"""

from __future__ import annotations

import platform
import threading
import time
from dataclasses import dataclass, replace

from border_cli.actors.actor import run_actor
from border_cli.actors.spec import LOCKSTEP_SLOTS, ActorId, ActorSpec, ActorState, StatusBlock
from border_cli.core.state import State
from border_cli.core.types import Chunk, Column, ModelInfo
from border_cli.runtime.transport import ModelChannel, Ring
from border_cli.runtime.worker import Failed, Ready, failed, log_through, one_torch_thread

WAIT_S = 0.2
"""How long a call waits for chunks at most [s]."""


@dataclass(frozen=True)
class Command:
    """What the learner tells an actor.

    number: of the call, from 0 · credit, env_steps: see `ActorStatus` · wants_state: whether it asks for the actor's state.
    """

    number: int
    credit: int
    env_steps: int
    stop: bool = False
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


class RemoteActor:
    """One incarnation of an actor. Two calls of `collect` may run at a time."""

    def __init__(self, setup: RemoteSetup) -> None:
        self._changed = threading.Condition()
        self._told = self._replied = 0  # number of the next call to be obeyed, and to be answered
        self._messages: list[object] = []
        self._wants_state = False
        self._all_status = StatusBlock(1)
        self._status = self._all_status[0]
        self._status.credit = setup.actor_id.env_steps
        self._ring = _NotifyingRing(setup.columns, setup.capacity, self._changed)
        self._models = ModelChannel(setup.layout, LOCKSTEP_SLOTS, setup.published)
        log_through(self.send, f"actor {setup.actor_id.actor}", setup.level)
        threading.Thread(target=self._run, args=(setup,), name="actor", daemon=True).start()

    def collect(self, command: Command, *models: ModelInfo) -> Reply:
        """Take what the learner tells, and wait for chunks: WAIT_S at most, and until the next call."""
        with self._changed:
            # Calls may arrive in another order; they are obeyed and answered in the order of their numbers.
            self._changed.wait_for(lambda: self._told == command.number)
            for model in models:
                self._models.publish(model)
            self._wants_state |= command.wants_state
            self._all_status.announce(command.env_steps)
            self._all_status.grant([command.credit])
            if command.stop:
                self._all_status.request_stop()
            self._told += 1
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._replied == command.number)
            chunks: list[Chunk] = []

            def is_due() -> bool:
                chunks.extend(chunk.copy() for chunk in self._ring.pop_all())
                self._status.changed.set()  # there may be room again, or a new model
                return bool(chunks or self._messages or self._told > command.number + 1)

            self._changed.wait_for(is_due, WAIT_S)
            messages, self._messages = self._messages, []
            self._replied += 1
            self._changed.notify_all()
            status = self._status
            first = status.first_step_ns
            seconds = (time.monotonic_ns() - first) / 1e9 if first else 0.0
            return Reply(chunks, messages, status.state, status.heartbeat, seconds, status.blocked_ns)

    def _run(self, setup: RemoteSetup) -> None:
        spec, actor_id = setup.spec, setup.actor_id
        parts = self._models, self._ring, self._status, self.send, self._state_wanted
        try:
            run_actor(spec, actor_id, *parts, setup.state)
        except BaseException as error:  # noqa: BLE001 - also SystemExit, which user code may raise
            self.send(failed_here(error, f"actor {actor_id.actor}"))

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


class _NotifyingRing(Ring):
    """A ring between two threads, the reader of which waits for chunks. changed: notified of each."""

    def __init__(self, columns: tuple[Column, ...], capacity: int, changed: threading.Condition) -> None:
        super().__init__(columns, capacity)
        self._changed = changed

    def push(self, chunk: Chunk) -> None:
        super().push(chunk)
        with self._changed:
            self._changed.notify_all()


def failed_here(error: BaseException, name: str) -> Failed:
    """The message about an exception that ended the actor, with the name of the machine."""
    failure, node = failed(error, name), platform.node()
    first, newline, rest = failure.error.partition("\n")
    text = f"{first} (on node {node}){newline}{rest}"
    return replace(failure, error=text, context={**failure.context, "node": node})
