"""The words that learner and actors read of each other while they run: credit, stop, counts, signs of life.

Each word has one writer; an actor's words have the learner while it has no process. What the learner writes and what
an actor writes stand on different cache lines.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from typing import Any

from border_cli.runtime.memory import WORD, Block, Layout


class ActorState(enum.IntEnum):
    """What an actor is doing."""

    STARTING = 0
    MAKING_ENVIRONMENT = 1
    WAITING_FOR_MODEL = 2
    RESETTING = 3
    ACTING = 4
    WAITING_FOR_CREDIT = 5
    WAITING_FOR_ROOM = 6
    STOPPING = 7
    DONE = 8

    @property
    def words(self) -> str:
        """As a person reads it."""
        return self.name.lower().replace("_", " ")


class ActorLine:
    """The words of one actor."""

    def __init__(self, shared: memoryview, credit: memoryview, own: memoryview) -> None:
        self._shared = shared
        self._credit = credit
        self._own = own

    @property
    def stop_requested(self) -> bool:
        """Whether the learner has asked every actor to leave."""
        return bool(self._shared[_STOP])

    @property
    def global_env_steps(self) -> int:
        """Env steps of the whole run, as the learner last announced them."""
        return int(self._shared[_ENV_STEPS])

    @property
    def credit(self) -> int:
        """Env steps this actor may have taken in all."""
        return int(self._credit[0])

    @property
    def state(self) -> ActorState:
        """What the actor is doing."""
        return ActorState(self._own[_STATE])

    @state.setter
    def state(self, state: ActorState) -> None:
        self._own[_STATE] = state

    @property
    def heartbeat(self) -> int:
        """A count that grows while the actor lives, also while it waits."""
        return int(self._own[_HEARTBEAT])

    def beat(self) -> None:
        """Show a sign of life."""
        self._own[_HEARTBEAT] += 1

    @property
    def blocked_ns(self) -> int:
        """Nanoseconds spent waiting for credit or room."""
        return int(self._own[_BLOCKED])

    def add_blocked(self, nanoseconds: int) -> None:
        """Count time spent waiting."""
        self._own[_BLOCKED] += nanoseconds

    @property
    def first_step_ns(self) -> int:
        """When the first env step began, on the monotonic clock; 0 before it."""
        return int(self._own[_FIRST_STEP])

    @first_step_ns.setter
    def first_step_ns(self, at: int) -> None:
        self._own[_FIRST_STEP] = at


_STOP, _ENV_STEPS = range(2)
_HEARTBEAT, _STATE, _BLOCKED, _FIRST_STEP = range(4)


class Board:
    """Made by the learner and passed to each actor's process. Raises ResourceError if there is no memory."""

    def __init__(self, n_actors: int, block: Block | None = None) -> None:
        self._n_actors = n_actors
        layout = Layout()
        shared = layout.reserve(2 * WORD)
        places = [(layout.reserve(WORD), layout.reserve(4 * WORD)) for _ in range(n_actors)]
        self._block = block or Block(layout.size, "the actors' board")
        self._shared = self._block.words(shared, 2)
        self._credits = [self._block.words(credit, 1) for credit, _ in places]
        self._lines = [
            ActorLine(self._shared, credit, self._block.words(own, 4))
            for credit, (_, own) in zip(self._credits, places, strict=True)
        ]

    def __reduce__(self) -> tuple[Callable[..., Board], tuple[Any, ...]]:
        return Board, (self._n_actors, self._block)

    def line(self, actor: int) -> ActorLine:
        """The words of one actor."""
        return self._lines[actor]

    def grant(self, credits: Sequence[int]) -> None:
        """Set each actor's credit (env steps in all)."""
        for word, credit in zip(self._credits, credits, strict=True):
            word[0] = credit

    def limit(self, actor: int, credit: int) -> None:
        """Set one actor's credit, as long as it has no process."""
        self._credits[actor][0] = credit

    def announce(self, env_steps: int) -> None:
        """Set the global count of env steps."""
        self._shared[_ENV_STEPS] = env_steps

    def request_stop(self) -> None:
        """Ask every actor to leave."""
        self._shared[_STOP] = 1

    def close(self) -> None:
        """Give the descriptor back; the words stay readable."""
        self._block.close()
