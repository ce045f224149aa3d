"""Actors in lockstep, as the learner sees them: rounds of chunks in a fixed order, whatever the timing.

The model channel alone lets actors go on: round r needs publication max(r - 1, 1). Everything that may be under way is
therefore known from the number of the newest publication, and the state of all actors is that after the last round they
may begin.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from border_cli.actors.board import ActorState
from border_cli.actors.manager import ActorManager
from border_cli.actors.place import ActorSpec
from border_cli.actors.rounds import LOCKSTEP_SLOTS, Rounds, model_number
from border_cli.config.schema import ActorManagerConfig
from border_cli.core.errors import ActorLostError, UnfitStateError
from border_cli.core.items import Chunk, Column, Items, count_episodes, empty_items
from border_cli.core.protocols import ActorStat, ModelInfo, StopCheck
from border_cli.core.state import State, check_arrays, count, joined, listed, require, section
from border_cli.runtime.clock import Backoff, Deadline
from border_cli.transport.model_channel import ModelChannel, model_layout


class LockstepManager(ActorManager):
    """Implements `trainers.lockstep.RoundSource`. An actor that is lost ends the run: its round can never be whole."""

    def __init__(
        self,
        spec: ActorSpec,
        rounds: Rounds,
        columns: tuple[Column, ...],
        config: ActorManagerConfig,
        should_stop: StopCheck = lambda: False,
        on_exception: Callable[[ActorLostError], None] = lambda _: None,
    ) -> None:
        config = replace(config, restarts=0, min_actors=rounds.n_actors, on_env_error="stop")
        super().__init__(spec, columns, rounds.n_actors, config, should_stop, on_exception)
        self._rounds = rounds
        self._columns = columns
        self._next = 0  # the round whose chunks are inserted next
        # Env steps and episodes by actor, before that round.
        self._inserted = [[0, 0] for _ in range(rounds.n_actors)]
        # Of rounds that an earlier launch has begun: env steps by actor.
        self._earlier: dict[int, list[int]] = {}
        self._under_way: list[list[Items]] = [[] for _ in range(rounds.n_actors)]
        self._whole: list[deque[Chunk]] = [deque() for _ in range(rounds.n_actors)]

    @property
    def model_due(self) -> bool:
        """Whether the model of the round that was inserted last is still to be published."""
        return self._publications < self._next + 1

    def collect(self) -> list[Chunk]:
        """The chunks of the next round, in the order of the actors, once all of them are there; nothing until then.

        Raises ActorLostError as of `ActorManager`; after `stop` there is nothing any more.
        """
        self._sort(super().collect())
        if self._stopped or not self._round_is_whole(self._next):
            return []
        chunks = self._take_round(self._next)
        self._next += 1
        return chunks

    def grant(self, credits: Sequence[int]) -> None:
        """In lockstep there is no credit: the rounds say how far actors may go."""

    def announce(self, env_steps: int) -> None:
        """In lockstep exploration follows the rounds."""

    def state(self, whole: bool = True) -> State:
        """Chunks that are on their way, and all of every actor, once the rounds that may have begun are over.

        Raises ActorLostError where one is lost meanwhile. Not whole: the number of the round to come.
        """
        if not whole:
            begun = {"next": self._next, "env_steps": self._before_next(), "inserted": self._counts()}
            return joined({"rounds": State({}, begun)})
        self._await_rounds()
        for slot in self._slots:
            slot.request_state()
        actors = self._await_states()
        chunks = {
            f"{actor}/{k}": chunk for actor, queue in enumerate(self._whole) for k, chunk in enumerate(queue)
        }
        states = {
            "rounds": State({}, self._rounds_values()),
            "chunks": joined({name: _chunk_state(chunk) for name, chunk in chunks.items()}),
        }
        return joined(states | {f"actor{i}": state for i, state in enumerate(actors)})

    def _rounds_values(self) -> dict[str, object]:
        """How far the rounds are, and what was taken in those that have begun: a later budget does not change that."""
        begun = range(self._next, self._publications + 2)
        actors = range(self._rounds.n_actors)
        return {
            "next": self._next,
            "inserted": self._counts(),
            "publications": self._publications,
            "begun": [[self._env_steps(round_, actor) for actor in actors] for round_ in begun],
            "env_steps": self._rounds.before(begun.stop),
        }

    def _counts(self) -> list[list[int]]:
        return [list(pair) for pair in self._inserted]

    def _before_next(self) -> int:
        """Env steps of all rounds before the next. Those that an earlier launch had begun are counted by themselves."""
        first = max(self._next, self._rounds.first)
        earlier = (sum(self._earlier[round_]) for round_ in range(self._next, first))
        return self._rounds.before(first) - sum(earlier)

    def _make_channel(self, model: ModelInfo, state: State | None) -> ModelChannel:
        published = 0 if state is None else self._load(state)
        return ModelChannel(model_layout(model), LOCKSTEP_SLOTS, published)

    def _seat(self, actor: int, state: State | None) -> tuple[ActorStat, State | None]:
        if state is None:
            return ActorStat(actor), None
        if f"actor{actor}" not in state.values:
            # From the round that comes next; its number makes the seeds new.
            env_steps, episodes = self._inserted[actor]
            counts = {"round": self._next, "env_steps": env_steps, "episodes": episodes}
            stat = ActorStat(actor, self._next + 1, env_steps, episodes, env_steps_before=env_steps)
            return stat, joined({"counts": State({}, counts)})
        own = section(state, f"actor{actor}")
        counts = section(own, "counts").values
        require(counts, ("round", "incarnation", "env_steps", "episodes"), f"actor {actor}")
        if counts["round"] != self._publications + 2:
            raise UnfitStateError(f"actor {actor} is in round {counts['round']}, and waits for no model")
        incarnation, env_steps, episodes = (
            count(counts[name], name) for name in ("incarnation", "env_steps", "episodes")
        )
        return ActorStat(actor, incarnation, env_steps, episodes, env_steps_before=env_steps), own

    def _load(self, state: State) -> int:
        """Take over the rounds; the number of publications before the one that the actors are started with.

        Raises UnfitStateError for a state that no run of these actors has been in.
        """
        rounds = section(state, "rounds").values
        require(rounds, ("next", "env_steps"), "the rounds")
        self._next = count(rounds["next"], "the next round")
        env_steps = count(rounds["env_steps"], "the env steps of the rounds")
        if "inserted" in rounds:  # not in what was saved before it was counted
            self._inserted = self._read_inserted(rounds["inserted"])
        if "publications" not in rounds:
            self._count_from(self._next, env_steps)
            return model_number(self._next) - 1
        require(rounds, ("publications", "begun"), "the rounds")
        publications = count(rounds["publications"], "the publications of the model")
        if publications not in (max(self._next, 1), self._next + 1):
            raise UnfitStateError(f"round {self._next} comes next, and {publications} models were published")
        self._earlier = self._read_begun(rounds["begun"], publications + 2)
        self._count_from(publications + 2, env_steps)
        chunks = section(state, "chunks")
        for actor, queue in enumerate(self._whole):
            for k in range(sum(env_steps[actor] > 0 for env_steps in self._earlier.values())):
                queue.append(self._chunk(actor, section(chunks, f"{actor}/{k}")))
        if sum(map(len, self._whole)) != len(chunks.values):
            raise UnfitStateError("there are chunks of rounds that have not begun")
        return publications - 1

    def _read_inserted(self, inserted: Any) -> list[list[int]]:
        return [
            [count(n, "what an actor has done") for n in listed(pair, "what an actor has done", 2)]
            for pair in listed(inserted, "what the actors have done", self._rounds.n_actors)
        ]

    def _read_begun(self, begun: Any, stop: int) -> dict[int, list[int]]:
        """Env steps by actor of each round that has begun. stop: the first that has not."""
        rounds = listed(begun, "the rounds that have begun", stop - self._next)
        return {
            round_: [
                count(n, "env steps of a round") for n in listed(env_steps, "a round", self._rounds.n_actors)
            ]
            for round_, env_steps in enumerate(rounds, self._next)
        }

    def _count_from(self, round_: int, env_steps: int) -> None:
        """Rounds are counted on from this one, whatever the budget was for those before it."""
        self._rounds = replace(self._rounds, first=round_, first_env_steps=env_steps)
        self._spec = replace(self._spec, rounds=self._rounds)

    def _chunk(self, actor: int, state: State) -> Chunk:
        names = ("incarnation", "env_steps", "version")
        require(state.values, names, "a chunk")
        require(state.arrays, ("span", "env"), "a chunk")
        incarnation, env_steps, version = (count(state.values[name], name) for name in names)
        rows = np.size(state.arrays["span"])
        if any(array.shape[:1] != (rows,) for array in state.arrays.values()):
            raise UnfitStateError("the columns of a chunk are not of one length")
        check_arrays(state.arrays, empty_items(self._columns, rows), "a chunk")
        if state.arrays["env"].min(initial=0) < 0 or state.arrays["span"].min(initial=0) < 0:
            raise UnfitStateError("a chunk has rows of nobody, or of no time")
        return Chunk(actor, incarnation, 0, env_steps, version, state.arrays)

    @property
    def _publications(self) -> int:
        return 0 if self._models is None else self._models.publications

    def _sort(self, arrived: Sequence[Chunk]) -> None:
        """Put the pieces of each actor's round together. The last of a round stands for all of its env steps.

        Their sequence is forgotten: it depends on how often the run was resumed.
        """
        for chunk in arrived:
            pieces = self._under_way[chunk.actor]
            pieces.append(chunk.items)
            if chunk.env_steps:
                self._whole[chunk.actor].append(replace(chunk, sequence=0, items=_by_environment(pieces)))
                self._under_way[chunk.actor] = []

    def _env_steps(self, round_: int, actor: int) -> int:
        if round_ in self._earlier:
            return self._earlier[round_][actor]
        return sum(self._rounds.env_steps(round_, actor))

    def _expected(self, round_: int) -> list[int]:
        """Actors that take any env step in a round: the last one of a budget may leave some without."""
        return [actor for actor in range(self._rounds.n_actors) if self._env_steps(round_, actor) > 0]

    def _round_is_whole(self, round_: int) -> bool:
        waiting = self._expected(round_)
        # One without any is the end of a budget; where that was an earlier launch's, the rounds go on behind it.
        return all(self._whole[actor] for actor in waiting) and (bool(waiting) or round_ in self._earlier)

    def _take_round(self, round_: int) -> list[Chunk]:
        chunks = [self._whole[actor].popleft() for actor in self._expected(round_)]
        for chunk in chunks:
            self._inserted[chunk.actor][0] += chunk.env_steps
            self._inserted[chunk.actor][1] += count_episodes(chunk.items)
        return chunks

    def _await_rounds(self) -> None:
        """Return when every round that may have begun has arrived as a whole."""
        expected = Counter(
            actor for round_ in range(self._next, self._publications + 2) for actor in self._expected(round_)
        )
        self._await(
            lambda: all(len(self._whole[actor]) >= n for actor, n in expected.items()),
            "the rounds under way",
        )

    def _await_states(self) -> list[State]:
        self._await(lambda: all(slot.sent_state is not None for slot in self._slots), "the actors' states")
        return [slot.sent_state for slot in self._slots if slot.sent_state is not None]

    def _await(self, done: Callable[[], bool], what: str) -> None:
        """Wait for actors. Raises ActorLostError where one is lost, and where for too long none of them does anything."""
        backoff, deadline = Backoff(), Deadline(self._config.heartbeat_timeout_s)
        while not done():
            self._sort(super().collect())
            if any(slot.state == ActorState.ACTING for slot in self._slots):
                deadline = Deadline(self._config.heartbeat_timeout_s)
            if deadline.passed:
                states = ", ".join(f"{i} {slot.state.words}" for i, slot in enumerate(self._slots))
                raise ActorLostError(f"the learner waited in vain for {what}; actors: {states}")
            backoff.sleep()


def _by_environment(pieces: Sequence[Items]) -> Items:
    """Rows of a round, those of one environment after those of the one before, each in the order of time."""
    items = {name: np.concatenate([piece[name] for piece in pieces]) for name in pieces[0]}
    order = np.argsort(items["env"], kind="stable")
    return {name: column[order] for name, column in items.items()}


def _chunk_state(chunk: Chunk) -> State:
    values = {
        "incarnation": chunk.incarnation,
        "env_steps": chunk.env_steps,
        "version": chunk.version,
    }
    return State(dict(chunk.items), values)
