"""Actors in lockstep, as the learner sees them: rounds of chunks in a fixed order, independent of timing.

Actors wait only for models: round r needs publication max(r - 1, 1). The number of the newest publication therefore
shows which rounds may have started. The saved state of the actors is their state after the last of these rounds.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import cast

import numpy as np

from border_cli.actors.manager import ActorManager, Link
from border_cli.actors.spec import ActorSpec, ActorState, Rounds, model_number
from border_cli.config.schema import ActorManagerConfig, RayConfig
from border_cli.core.errors import ActorLostError
from border_cli.core.protocols import ExperienceSource, StopCheck
from border_cli.core.state import State, check_like, joined, section
from border_cli.core.types import (
    ActorStat,
    Chunk,
    Column,
    Items,
    ModelInfo,
    concat_items,
    count_episodes,
    empty_items,
)
from border_cli.runtime.stopping import Backoff, Deadline


def make_manager(
    spec: ActorSpec,
    columns: tuple[Column, ...],
    n_actors: int,
    config: ActorManagerConfig,
    should_stop: StopCheck,
    on_exception: Callable[[ActorLostError], None],
) -> ExperienceSource:
    """The source of experience for `actor_manager.type=process` and `ray`. Raises UsageError if no cluster is reachable."""
    if spec.rounds is not None:  # a lost actor ends the run: its round can never be complete
        config = replace(config, restarts=0, min_actors=n_actors)
    if isinstance(config, RayConfig):
        from border_cli.actors.ray_actors import RayLink

        link: Link = RayLink(config, n_actors)
    else:
        link = Link()
    manager = ActorManager(spec, columns, n_actors, config, should_stop, on_exception, link)
    return manager if spec.rounds is None else LockstepSource(manager)


class LockstepSource:
    """The actors of a manager in rounds: `collect` returns whole rounds."""

    def __init__(self, manager: ActorManager) -> None:
        n_actors = manager.n_actors
        self._manager = manager
        self._rounds = cast("Rounds", manager.spec.rounds)
        self._next = 0  # the round whose chunks are inserted next
        self._inserted = np.zeros((n_actors, 2), np.int64)  # env steps and episodes before that round
        # Round → env steps by actor, for rounds that an earlier launch has started, perhaps with another budget.
        self._earlier: dict[int, list[int]] = {}
        self._pieces: list[list[Items]] = [[] for _ in range(n_actors)]
        self._complete: list[deque[Chunk]] = [deque() for _ in range(n_actors)]
        self.present, self.stats, self.stop = manager.present, manager.stats, manager.stop

    def start(self, model: ModelInfo, state: State | None = None) -> None:
        """See `ActorManager.begin`. From a saved state the actors continue in the rounds that had started."""
        published = 0 if state is None else self._load(state)
        self._manager.spec = replace(self._manager.spec, rounds=self._rounds)
        actors = [self._resumed(actor, state) for actor in range(self._manager.n_actors)]
        self._manager.begin(model, actors, published)

    @property
    def model_due(self) -> bool:
        """Whether the model that follows the last inserted round has not been published yet."""
        return self._manager.publications < self._next + 1

    def collect(self) -> list[Chunk]:
        """The chunks of the next round in the order of the actors; nothing while one of them is missing.

        After `stop` there is nothing any more. Raises ActorLostError as `ActorManager.collect`.
        """
        self._sort(self._manager.collect())
        actors = self._acting(self._next)
        # A round without any env step is the end of the budget, unless an earlier launch had a smaller one.
        if self._manager.stopped or not (actors or self._next in self._earlier):
            return []
        if not all(self._complete[actor] for actor in actors):
            return []
        chunks = [self._complete[actor].popleft() for actor in actors]
        for chunk in chunks:
            self._inserted[chunk.actor] += chunk.env_steps, count_episodes(chunk.items)
        self._next += 1
        return chunks

    def grant(self, credits: Sequence[int], env_steps: int) -> None:
        """There is no credit in lockstep: the rounds say how far actors may go, and exploration follows them."""

    def publish(self, model: ModelInfo) -> None:
        """As `ActorManager.publish`; actors wait for the model."""
        self._manager.publish(model)
        self._manager.status.wake()

    def state(self, whole: bool = True) -> State:
        """Wait until the rounds that have started are complete; then the rounds, their chunks and each actor's state.

        If not whole, only the number of the next round and the counts. Raises ActorLostError if an actor is lost.
        """
        if not whole:
            first = max(self._next, self._rounds.first)
            earlier = sum(sum(self._earlier[round_]) for round_ in range(self._next, first))
            return joined({"rounds": self._rounds_state(self._rounds.before(first) - earlier)})
        started = range(self._next, self._manager.publications + 2)
        expected = Counter(actor for round_ in started for actor in self._acting(round_))
        self._await(
            lambda: all(len(self._complete[actor]) >= n for actor, n in expected.items()),
            "the rounds under way",
        )
        for actor in self._manager.actors:
            actor.request_state()
        self._await(
            lambda: all(actor.sent_state is not None for actor in self._manager.actors), "the actors' states"
        )
        steps = [
            [self._env_steps(round_, actor) for actor in range(self._manager.n_actors)] for round_ in started
        ]
        rounds = self._rounds_state(self._rounds.before(started.stop), steps)
        chunks = {
            f"{actor}/{k}": _chunk_state(chunk)
            for actor, queue in enumerate(self._complete)
            for k, chunk in enumerate(queue)
        }
        actors = {f"actor{a.actor}": a.sent_state for a in self._manager.actors if a.sent_state is not None}
        return joined({"rounds": rounds, "chunks": joined(chunks), **actors})

    def _rounds_state(self, env_steps: int = 0, started: Sequence[Sequence[int]] = ()) -> State:
        """env_steps: before the first round that is not in the state · started: env steps by round and actor."""
        arrays = {
            "inserted": self._inserted.copy(),
            "started": np.array(started, np.int64).reshape(-1, self._manager.n_actors),
        }
        values = {"next": self._next, "publications": self._manager.publications, "env_steps": env_steps}
        return State(arrays, values)

    def _resumed(self, actor: int, state: State | None) -> tuple[ActorStat, State | None]:
        """Counts and state that an actor begins with."""
        if state is None:
            return ActorStat(actor), None
        # Without a state of its own, the actor starts with the next round, whose number gives new seeds.
        values = {"round": self._next, "incarnation": self._next + 1}
        saved = joined({"own": State({}, values)})
        if f"actor{actor}" in state.values:
            saved = section(state, f"actor{actor}")
            check_like(section(saved, "own"), State({}, values), f"actor {actor}")
            values = section(saved, "own").values
        env_steps, episodes = self._inserted[actor].tolist()
        for chunk in self._complete[actor]:
            env_steps += chunk.env_steps
            episodes += count_episodes(chunk.items)
        counts = actor, values["incarnation"], env_steps, episodes
        return ActorStat(*counts, env_steps_before=env_steps), saved

    def _load(self, state: State) -> int:
        """Load the rounds. Returns the number of publications before the one that the actors start with.

        Raises IncompatibleStateError for a state that does not fit.
        """
        rounds = section(state, "rounds")
        check_like(rounds, self._rounds_state(), "the rounds", growing=("started",))
        values = rounds.values
        self._next, self._inserted = values["next"], rounds.arrays["inserted"].copy()
        self._earlier = dict(enumerate(rounds.arrays["started"].tolist(), self._next))
        # The present budget holds from the first round that has not started.
        first = self._next + len(self._earlier)
        self._rounds = replace(self._rounds, first=first, first_env_steps=values["env_steps"])
        if not self._earlier:
            return model_number(self._next) - 1
        chunks = section(state, "chunks")
        for actor, queue in enumerate(self._complete):
            for k in range(sum(env_steps[actor] > 0 for env_steps in self._earlier.values())):
                saved = section(chunks, f"{actor}/{k}")
                rows = np.size(saved.arrays.get("env", ()))
                chunk = Chunk(actor, 0, 0, 0, 0, empty_items(self._manager.columns, rows))
                check_like(saved, _chunk_state(chunk), "a chunk")
                queue.append(replace(chunk, items=saved.arrays, **saved.values))
        return int(values["publications"]) - 1

    def _sort(self, arrived: Sequence[Chunk]) -> None:
        """Join the pieces of each actor's round. The last piece of a round stands for all of its env steps.

        Sequence numbers are dropped: they depend on how often the run was resumed.
        """
        for chunk in arrived:
            pieces = self._pieces[chunk.actor]
            if not chunk.env_steps:
                pieces.append(chunk.copy().items)
                continue
            items = concat_items([*pieces, chunk.items])
            order = np.argsort(items["env"], kind="stable")  # by environment, each in the order of time
            # These are copies, which outlive the ring's rows.
            items = {name: column[order] for name, column in items.items()}
            self._complete[chunk.actor].append(replace(chunk, sequence=0, items=items))
            pieces.clear()

    def _env_steps(self, round_: int, actor: int) -> int:
        if round_ in self._earlier:
            return self._earlier[round_][actor]
        return sum(self._rounds.env_steps(round_, actor))

    def _acting(self, round_: int) -> list[int]:
        """Actors that take any env step in a round. In the last round of a budget some may not."""
        return [actor for actor in range(self._manager.n_actors) if self._env_steps(round_, actor) > 0]

    def _await(self, done: Callable[[], bool], what: str) -> None:
        """Wait for actors. Raises ActorLostError if one is lost, or if none of them acts for too long."""
        backoff, deadline = Backoff(), Deadline(self._manager.config.heartbeat_timeout_s)
        while not done():
            self._sort(self._manager.collect())
            if any(actor.state == ActorState.ACTING for actor in self._manager.actors):
                deadline = Deadline(self._manager.config.heartbeat_timeout_s)
            if deadline.passed:
                states = ", ".join(f"{actor.actor} {actor.doing}" for actor in self._manager.actors)
                raise ActorLostError(f"the learner timed out waiting for {what}; actors: {states}")
            backoff.sleep()


def _chunk_state(chunk: Chunk) -> State:
    values = {"incarnation": chunk.incarnation, "env_steps": chunk.env_steps, "version": chunk.version}
    return State(dict(chunk.items), values)
